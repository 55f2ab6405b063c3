package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/granarydb/granary/chunkstore/audit"
	"github.com/granarydb/granary/chunkstore/audit/audittest"
	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/chunkstore/bucket/open"
	"github.com/granarydb/granary/manifest/host"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// euWord is in keys and documents of the EU's users, and nowhere else.
const euWord = "ONLYEU"

// TestZonesKeepTheirBuckets runs a mixed load over three buckets of a real S3 server: afterwards
// no object outside of the EU's bucket has a byte of an EU document or key, whatever it is packed
// in; the audit agrees, and finds an object that is put elsewhere.
func TestZonesKeepTheirBuckets(t *testing.T) {
	server := startS3(t, freeAddr(t))
	url := func(bucket string) string {
		return "s3://" + bucket + "/e2e?region=us-east-1&endpoint=http://" + server.at
	}
	for _, b := range []string{"granary-eu", "granary-us"} {
		if err := os.Mkdir(filepath.Join(server.dir, b), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	store := server.url("s3")
	p := startLocal(t, store)
	client, err := mongo.Connect(options.Client().ApplyURI(p.uri()).SetTimeout(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	z := zonedClient{t, client}
	z.zone("EU", "eu01", url("granary-eu"))
	z.zone("US", "us01", url("granary-us"))
	z.load()
	_ = client.Disconnect(ctx) // while there is a server to say goodbye to
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d after SIGTERM:\n%s", code, p.out)
	}
	outside := []string{s3Bucket, "granary-us"}
	for _, b := range append(outside, "granary-eu") {
		found := objectsWith(t, filepath.Join(server.dir, b, "e2e"), euWord)
		if inside := b == "granary-eu"; inside != (len(found) > 0) {
			t.Errorf("%s: %d objects have a word of the EU: %v", b, len(found), found)
		}
	}
	fsck(t, store)
	if out, err := granary(t, "zones", "audit", "--store", store).CombinedOutput(); err != nil || !strings.Contains(string(out), "all of it is where it may be") {
		t.Errorf("audit: %v\n%s", err, out)
	}
	out, err := granary(t, "zones", "explain", "shop.users", `{"region": "EU", "user": "`+euWord+`7"}`, "--store", store).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "granary-eu") || !strings.Contains(string(out), "zone   EU") {
		t.Errorf("explain: %v\n%s", err, out)
	}
	planted := objectsWith(t, filepath.Join(server.dir, "granary-eu", "e2e"), euWord)[0]
	body, err := os.ReadFile(filepath.Join(server.dir, "granary-eu", "e2e", planted))
	if err == nil {
		var us bucket.Bucket
		if us, err = open.URL(ctx, url("granary-us"), host.System()); err == nil {
			_, err = us.Put(ctx, planted, body, bucket.IfAbsent)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := granary(t, "zones", "audit", "--store", store, "-o", "json")
	out, _ = cmd.Output()
	var report audit.Report
	if err := json.Unmarshal(out, &report); err != nil || cmd.ProcessState.ExitCode() != 1 || len(report.Breaches) != 1 || report.Breaches[0].Object != planted {
		t.Errorf("audit of %s in another bucket: %v, exit code %d\n%s", planted, err, cmd.ProcessState.ExitCode(), out)
	}
}

// zonedClient is a driver's session with a cluster that has zones.
type zonedClient struct {
	t *testing.T
	*mongo.Client
}

func (z zonedClient) admin(cmd bson.D) {
	z.t.Helper()
	if err := z.Database("admin").RunCommand(context.Background(), cmd).Err(); err != nil {
		z.t.Fatal(cmd, err)
	}
}

// zone adds a shard with a location, and the range of a region.
func (z zonedClient) zone(name, shard, url string) {
	z.t.Helper()
	z.admin(bson.D{{Key: "addShard", Value: shard + "/" + url}})
	z.admin(bson.D{{Key: "addShardToZone", Value: shard}, {Key: "zone", Value: name}})
	z.admin(bson.D{{Key: "updateZoneKeyRange", Value: "shop.users"}, {Key: "min", Value: bson.D{{Key: "region", Value: name}}},
		{Key: "max", Value: bson.D{{Key: "region", Value: name + "\x00"}}}, {Key: "zone", Value: name}})
}

// load is what an application does: inserts, updates with and without the shard key, users who
// move to another region, in both directions, chunks that are cut, and deletions.
func (z zonedClient) load() {
	z.t.Helper()
	ctx := context.Background()
	must := func(_ any, err error) {
		z.t.Helper()
		if err != nil {
			z.t.Fatal(err)
		}
	}
	z.admin(bson.D{{Key: "shardCollection", Value: "shop.users"}, {Key: "key", Value: bson.D{{Key: "region", Value: 1}, {Key: "user", Value: 1}}}})
	users := z.Database("shop").Collection("users")
	name := func(region string, i int) string {
		return fmt.Sprint(map[string]string{"EU": euWord, "US": "us", "AS": "as"}[region], i)
	}
	set := func(region, user string) bson.D {
		return bson.D{{Key: "$set", Value: bson.D{{Key: "region", Value: region}, {Key: "user", Value: user}, {Key: "mail", Value: user + "@example.org"}}}}
	}
	for _, region := range []string{"EU", "US", "AS"} {
		var docs []any
		for i := range 200 {
			docs = append(docs, bson.D{{Key: "_id", Value: fmt.Sprint(region, i)}, {Key: "region", Value: region}, {Key: "user", Value: name(region, i)},
				{Key: "mail", Value: name(region, i) + "@example.org"}, {Key: "text", Value: strings.Repeat(name(region, i)+" ", 20)}})
		}
		must(users.InsertMany(ctx, docs))
	}
	z.admin(bson.D{{Key: "split", Value: "shop.users"}, {Key: "middle", Value: bson.D{{Key: "region", Value: "EU"}, {Key: "user", Value: euWord + "5"}}}})
	for i := range 20 {
		for _, region := range []string{"EU", "US"} {
			must(users.UpdateOne(ctx, bson.D{{Key: "region", Value: region}, {Key: "user", Value: name(region, i)}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}))
			must(users.UpdateOne(ctx, bson.D{{Key: "mail", Value: name(region, i) + "@example.org"}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}))
		}
		must(users.DeleteOne(ctx, bson.D{{Key: "region", Value: "EU"}, {Key: "user", Value: name("EU", 100+i)}}))
	}
	after := options.FindOneAndUpdate().SetReturnDocument(options.After)
	for i := range 5 {
		in := users.FindOneAndUpdate(ctx, bson.D{{Key: "region", Value: "AS"}, {Key: "user", Value: name("AS", i)}}, set("EU", name("EU", 1000+i)), after)
		must(nil, in.Err())
		out := users.FindOneAndUpdate(ctx, bson.D{{Key: "region", Value: "EU"}, {Key: "user", Value: name("EU", 50+i)}},
			append(set("US", name("US", 1000+i)), bson.E{Key: "$unset", Value: bson.D{{Key: "text", Value: 1}}}), after)
		must(nil, out.Err())
	}
	n, err := users.CountDocuments(ctx, bson.D{})
	if must(nil, err); n != 580 {
		z.t.Errorf("%d users, expected 580", n)
	}
}

// objectsWith are the files of a bucket's folder that have a word in them.
func objectsWith(t *testing.T, dir, word string) (keys []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		key, err := filepath.Rel(dir, path)
		if err == nil && audittest.Holds(t, word, filepath.ToSlash(key), body) {
			keys = append(keys, filepath.ToSlash(key))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
