package e2e

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// TestFullDiskLosesNothing fills the disk under the directory store: writes are refused with
// an error, the process lives, reads go on, and when there is room again so do writes. Every
// acknowledged document is there in the end.
func TestFullDiskLosesNothing(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=12m"); err != nil {
		t.Skipf("a small disk cannot be mounted here (%v): it takes root on Linux", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	ballast := filepath.Join(disk, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 6<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	store := "dir:" + filepath.Join(disk, "data")
	p := startLocal(t, store, "--lease", "300ms")
	c := connect(t, p)
	defer disconnect(c)
	docs := c.Database("full").Collection("docs")
	noise := make([]byte, 100<<10)
	acked := 0
	insert := func(ctx context.Context) error {
		fill(noise)
		_, err := docs.InsertOne(ctx, bson.D{{Key: "_id", Value: acked}, {Key: "noise", Value: noise}})
		if err == nil {
			acked++
		}
		return err
	}
	var refused error
	for refused == nil && acked < 500 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		refused = insert(ctx)
		cancel()
	}
	if refused == nil {
		t.Fatalf("%d documents of 100 KB fit on a disk of 6 MB", acked)
	}
	t.Logf("after %d documents: %v", acked, refused)
	if n, err := docs.CountDocuments(context.Background(), bson.D{}); err != nil || n < int64(acked) {
		t.Errorf("with a full disk: %d documents, %v; %d were acknowledged", n, err, acked)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	acked++ // the refused one may be there
	deadline := time.Now().Add(20 * time.Second)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		err := insert(ctx)
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("20 s after there was room again: %v", err)
		}
	}
	ids, err := docs.Distinct(context.Background(), "_id", bson.D{}, options.Distinct()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	values, _ := ids.Values()
	if n := len(values); n != acked && n != acked-1 {
		t.Errorf("%d documents, %d were acknowledged and one was refused", n, acked-1)
	}
	p.kill()
	fsck(t, store)
}

// fill makes bytes that do not compress.
func fill(b []byte) {
	x := uint64(time.Now().UnixNano())
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
}
