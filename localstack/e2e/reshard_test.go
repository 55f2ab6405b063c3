package e2e

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestShardKeysChangeUnderLoad gives two collections another key while eight clients of the Go
// driver write to them through two routers, and kills a writer during the first rewrite: no
// operation fails, none is lost or done twice.
func TestShardKeysChangeUnderLoad(t *testing.T) {
	store := "dir:" + t.TempDir()
	c := startCluster(t, store, 2, 2)
	client := c.client()
	l := startLoad(client)
	time.Sleep(2 * time.Second)
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		time.Sleep(50 * time.Millisecond)
		c.writers[0].kill()
		c.writers[0].start()
	}()
	admin := c.client().Database("admin")
	for _, ns := range []string{"load.docs", "load.counters"} {
		start := time.Now()
		err := admin.RunCommand(context.Background(), bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}}).Err()
		if err != nil {
			t.Errorf("shard %s: %v", ns, err)
		}
		t.Logf("%s took %v", ns, time.Since(start).Round(time.Millisecond))
	}
	<-killed
	time.Sleep(time.Second)
	l.stop()
	l.audit(t, client)
	n, err := admin.Client().Database("config").Collection("collections").CountDocuments(context.Background(), bson.D{{Key: "key._id", Value: "hashed"}})
	if err != nil || n != 2 {
		t.Errorf("%d collections have a hashed key, %v", n, err)
	}
	for _, r := range c.roles() {
		r.stop()
	}
	fsck(t, store)
}
