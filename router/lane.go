package router

import (
	"encoding/binary"
	"sync"

	"github.com/granarydb/granary/manifest/host"
)

// lane is a session of the router's own. One write at a time uses it, and the next one has
// the next transaction number: an owner that sees it may forget the one before, as with the
// session of any client.
type lane struct {
	session [32]byte
	txn     int64
}

// lanes are the sessions that no write uses now, the last used on top.
type lanes struct {
	host host.Host
	mu   sync.Mutex // never held across a call
	idle []*lane
}

// take gives a lane to one write, under a fresh number.
func (l *lanes) take() *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n *lane
	if last := len(l.idle) - 1; last >= 0 {
		n, l.idle = l.idle[last], l.idle[:last]
	} else {
		// 32 random bytes are no client's session, whose last 16 are a hash or zero.
		n = &lane{}
		for i := 0; i < len(n.session); i += 8 {
			binary.LittleEndian.PutUint64(n.session[i:], l.host.Uint64())
		}
	}
	n.txn++
	return n
}

// put takes a lane back from a write whose outcome is known. The lane of any other is not
// used again, since its write may still be on its way.
func (l *lanes) put(n *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, n)
}
