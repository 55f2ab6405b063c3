package e2e

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

var operations = flag.Int("ops", 4000, "operations of TestDocumentsAreLinearizable, at least")

// TestDocumentsAreLinearizable has 40 clients of the Go driver work on shared documents
// through two routers, while writers are killed and chunks are moved: per document, what they
// were told could have happened one after another. Some clients do not wait for answers:
// whether their writes happened is looked up in the log.
func TestDocumentsAreLinearizable(t *testing.T) {
	c := startCluster(t, newStore(t), 2, 3)
	c.shard(c.client(), "load.things")
	v := newView(t, c.store)
	log := startCopy(v)
	d := startDocuments(t, documentsOptions{perGroup: 5, perDoc: 1500, hurry: 150}, c.uri())
	m := startMover(v, "load", "things", 200*time.Millisecond)
	var gaps []time.Duration
	for n := 0; n < *rounds || log.takeovers() < *rounds || m.count() < *rounds || d.count() < *operations; n++ {
		w := c.writers[rand.IntN(len(c.writers))]
		time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
		mark := d.mark()
		w.kill()
		w.start()
		gaps = append(gaps, d.settle(t, mark))
		w.ready()
	}
	d.stop()
	m.stop()
	log.stop()
	quantiles(t, "kill of a writer, until every group goes on", gaps)
	t.Logf("%d kills, %d moves, refused: %v", len(gaps), m.count(), m.refused)
	d.check(t, log)
	for _, r := range c.roles() {
		r.stop()
	}
	fsck(t, c.store)
}
