package routertest

import (
	"strings"
	"sync/atomic"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/faultbucket"
	"github.com/granarydb/granary/chunkstore/bucket/layer"
	"github.com/granarydb/granary/chunkstore/reader"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/router"
)

// DyingRouter makes a router that loses the store for ever with the first segment that it
// stores, as one does that is killed there.
func (c *Cluster) DyingRouter() *router.Router {
	var dead atomic.Bool
	store := faultbucket.New(c.Bucket, c.Host, func(call faultbucket.Call) faultbucket.Fault {
		if call.Verb == layer.Put && strings.HasPrefix(call.Key, "seg/") {
			dead.Store(true)
		}
		if dead.Load() {
			return faultbucket.Fault{Kind: faultbucket.Before}
		}
		return faultbucket.Fault{}
	})
	open := func(manifest.LocationID) (bucket.Bucket, error) { return store, nil }
	return router.New(router.Config{
		Root: manifest.NewRoot(bucket.NewCell(store), c.Host, nil), Bucket: store, Store: reader.NewStore(open, nil), Dialer: c, Host: c.Host,
	})
}
