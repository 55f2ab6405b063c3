package balancing

import (
	"strings"

	"github.com/granarydb/granary/manifest"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// That a shard is to be emptied is a record, which stays through whatever its holder does:
// a writer that hands the shard over frees it, and the next one claims it as any other. The
// status of the shard follows the record (Follow); it is what makes moves to it conflict.

const drainPrefix = "drain/"

// Drain is the wish to empty a shard.
type Drain struct {
	By string        `bson:"by,omitempty"`
	At bson.DateTime `bson:"at"`
}

// Draining is the wish about a shard.
func Draining(st *manifest.State, id manifest.ShardID) (d Drain, yes bool) {
	r, ok := st.Record(manifest.RecordBalancer, drainPrefix+string(id))
	if ok {
		_ = bson.Unmarshal(r.Body, &d) // who and when are for people
	}
	return d, ok
}

// Begin are the changes by which a shard begins to be emptied.
func (d Drain) Begin(h *manifest.Shard) []manifest.Change {
	body, _ := bson.Marshal(d)
	changes := []manifest.Change{manifest.PutRecord{Record: manifest.Record{Kind: manifest.RecordBalancer, ID: drainPrefix + string(h.ID), Body: body}}}
	if h.Status == manifest.ShardHeld {
		changes = append(changes, manifest.SetDraining{Shard: h.ID, Draining: true})
	}
	return changes
}

// EndDrain are the changes by which the wish about a shard ends. The shard takes chunks again.
func EndDrain(h *manifest.Shard) []manifest.Change {
	changes := []manifest.Change{forget(h.ID)}
	if h.Status == manifest.ShardDraining {
		changes = append(changes, manifest.SetDraining{Shard: h.ID})
	}
	return changes
}

// Remove are the changes by which an empty shard goes.
func Remove(h *manifest.Shard) (changes []manifest.Change) {
	if h.Status == manifest.ShardHeld {
		changes = append(changes, manifest.SetDraining{Shard: h.ID, Draining: true})
	}
	return append(changes, manifest.RemoveShard{ID: h.ID}, forget(h.ID))
}

func forget(id manifest.ShardID) manifest.Change {
	return manifest.DropRecord{Kind: manifest.RecordBalancer, ID: drainPrefix + string(id)}
}

// Follow are the changes that make the status of each shard what its record says.
func Follow(st *manifest.State) (changes []manifest.Change) {
	for _, h := range st.Shards() {
		if h.Status == manifest.ShardFree {
			continue
		}
		if _, wish := Draining(st, h.ID); wish != (h.Status == manifest.ShardDraining) {
			changes = append(changes, manifest.SetDraining{Shard: h.ID, Draining: wish})
		}
	}
	return changes
}

// IsSetting reports whether a record of the balancer is one that config.settings shows.
func IsSetting(id string) bool { return id != RoundID && !strings.HasPrefix(id, drainPrefix) }
