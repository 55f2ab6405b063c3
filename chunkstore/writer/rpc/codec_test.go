package rpc_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/chunkstore/writer/rpc"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/errkind"
	"github.com/granarydb/granary/manifest/shardkey"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "rewrite testdata")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// message is what every request and reply has.
type message interface {
	Append([]byte) []byte
	Parse([]byte) error
}

// equal compares messages; an empty byte slice is a nil one on the wire.
var equal = cmp.Options{cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(bson.RawValue{})}

func doc(elements ...bson.E) bson.Raw {
	b, err := bson.Marshal(append(bson.D{}, elements...))
	if err != nil {
		panic(err)
	}
	return b
}

func value(v any) bson.RawValue {
	d := doc(bson.E{Key: "v", Value: v})
	return d.Lookup("v")
}

// Generators of every type, with all fields and the edges of numbers.

var (
	genBytes = rapid.SliceOfN(rapid.Byte(), 0, 40)
	genDoc   = rapid.Custom(func(t *rapid.T) bson.Raw {
		if rapid.Bool().Draw(t, "nil") {
			return nil
		}
		return doc(bson.E{Key: rapid.StringN(0, 8, 20).Filter(noNUL).Draw(t, "k"), Value: rapid.Int64().Draw(t, "v")},
			bson.E{Key: "sub", Value: bson.D{{Key: "a", Value: bson.A{1, "x"}}}})
	})
	genFull  = genDoc.Filter(func(d bson.Raw) bool { return d != nil })
	genValue = rapid.Custom(func(t *rapid.T) bson.RawValue {
		return rapid.SampledFrom([]bson.RawValue{
			{}, value(nil), value(1), value("x"), value(bson.D{}), value(bson.A{}), value(bson.NewObjectID()),
			value(bson.MinKey{}), value(1.5), value(bson.Regex{Pattern: "a", Options: "i"}), value(true), value(bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}),
		}).Draw(t, "value")
	})
	genUpdate = genValue.Filter(func(v bson.RawValue) bool {
		return v.Type == 0 || v.Type == bson.TypeEmbeddedDocument || v.Type == bson.TypeArray
	})
	genPosition = rapid.Custom(func(t *rapid.T) manifest.Position {
		return manifest.Position{Epoch: manifest.Epoch(rapid.Uint64().Draw(t, "epoch")), Next: rapid.Uint64().Draw(t, "next")}
	})
	genHeader = rapid.Custom(func(t *rapid.T) rpc.Header {
		return rpc.Header{
			Shard:       manifest.ShardID(rapid.SampledFrom([]string{"", "shard01", "a-b"}).Draw(t, "shard")),
			Collection:  manifest.CollectionID(rapid.Uint32().Draw(t, "coll")),
			RootVersion: manifest.Version(rapid.Uint64().Draw(t, "root")),
			Deadline:    time.Duration(rapid.Int64Min(0).Draw(t, "deadline")),
		}
	})
	genRange = rapid.Custom(func(t *rapid.T) shardkey.Range {
		return shardkey.Range{Min: genBytes.Draw(t, "min"), Max: genBytes.Draw(t, "max")}
	})
	genTarget = rapid.Custom(func(t *rapid.T) rpc.Target {
		return rpc.Target{
			ID: manifest.ChunkID(rapid.Uint64().Draw(t, "id")), Version: manifest.ChunkVersion(rapid.Uint64().Draw(t, "v")),
			Min: genBytes.Draw(t, "min"), Ranges: rapid.SliceOfN(genRange, 0, 3).Draw(t, "ranges"),
		}
	})
	genBatch = rapid.Custom(func(t *rapid.T) rpc.Batch {
		return rpc.Batch{Docs: rapid.IntRange(0, 1<<31-1).Draw(t, "docs"), Bytes: rapid.IntRange(0, 1<<31-1).Draw(t, "bytes")}
	})
	genChunkAt = rapid.Custom(func(t *rapid.T) manifest.ChunkAt {
		return manifest.ChunkAt{
			Collection: manifest.CollectionID(rapid.Uint32().Draw(t, "coll")), Min: genBytes.Draw(t, "min"),
			ID: manifest.ChunkID(rapid.Uint64().Draw(t, "id")), Version: manifest.ChunkVersion(rapid.Uint64().Draw(t, "v")),
		}
	})
	genOpID = rapid.Custom(func(t *rapid.T) (id rpc.OpID) {
		copy(id.Session[:], rapid.SliceOfN(rapid.Byte(), 0, 32).Draw(t, "session"))
		id.Txn, id.Stmt, id.Attempt = rapid.Int64().Draw(t, "txn"), rapid.Int32().Draw(t, "stmt"), rapid.Int32().Draw(t, "attempt")
		return id
	})
	genText  = rapid.SampledFrom([]string{"", "E11000 duplicate key", "with \x00 NUL", "\u65e5\u672c"})
	genError = rapid.Custom(func(t *rapid.T) *mongoerr.Error {
		return &mongoerr.Error{
			Code: mongoerr.Code(rapid.Int32().Draw(t, "code")), Message: genText.Draw(t, "message"),
			Labels: rapid.SliceOfN(rapid.SampledFrom([]string{"", "RetryableWriteError"}), 0, 2).Draw(t, "labels"), Info: genDoc.Draw(t, "info"),
		}
	})
)

func noNUL(s string) bool { return !strings.Contains(s, "\x00") }

// generated makes one of each message.
var generated = map[string]func(*rapid.T) message{
	"ReadRequest": func(t *rapid.T) message {
		return &rpc.ReadRequest{
			Header: genHeader.Draw(t, "h"), Targets: rapid.SliceOfN(genTarget, 0, 3).Draw(t, "targets"),
			Level: rapid.SampledFrom([]rpc.Level{rpc.Lease, rpc.Verified}).Draw(t, "level"),
			Query: rpc.Query{
				Mode:   rapid.SampledFrom([]rpc.ReadMode{rpc.Find, rpc.Count, rpc.Distinct, rpc.Keys}).Draw(t, "mode"),
				Filter: genDoc.Draw(t, "filter"), Projection: genDoc.Draw(t, "projection"), Sort: genDoc.Draw(t, "sort"),
				KeyOrder: rapid.Int8Range(-1, 1).Draw(t, "order"), Skip: rapid.Int64().Draw(t, "skip"), Limit: rapid.Int64().Draw(t, "limit"),
				Field: genText.Draw(t, "field"), WithSortKey: rapid.Bool().Draw(t, "with"),
			},
			Batch: genBatch.Draw(t, "batch"),
		}
	},
	"ReadReply": func(t *rapid.T) message {
		return &rpc.ReadReply{
			Docs: rapid.SliceOfN(genFull, 0, 4).Draw(t, "docs"), Cursor: rapid.Uint64().Draw(t, "cursor"), N: rapid.Int64().Draw(t, "n"),
			DataVersion: manifest.DataVersion(rapid.Uint64().Draw(t, "dv")), Gained: manifest.Version(rapid.Uint64().Draw(t, "gained")),
			Stats: rpc.ReadStats{DocsExamined: rapid.Int64().Draw(t, "ex"), BucketRequests: rapid.Int64().Draw(t, "rq"), BucketBytes: rapid.Int64().Draw(t, "by")},
		}
	},
	"CursorRequest": func(t *rapid.T) message {
		return &rpc.CursorRequest{Header: genHeader.Draw(t, "h"), Cursor: rapid.Uint64().Draw(t, "cursor"), Close: rapid.Bool().Draw(t, "close"), Batch: genBatch.Draw(t, "batch")}
	},
	"WriteRequest": func(t *rapid.T) message {
		r := &rpc.WriteRequest{Header: genHeader.Draw(t, "h"), Targets: rapid.SliceOfN(genTarget, 1, 3).Draw(t, "targets"), Ordered: rapid.Bool().Draw(t, "ordered"), Early: rapid.Bool().Draw(t, "early"), After: genPosition.Draw(t, "after")}
		r.Ops = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rpc.WriteOp {
			return rpc.WriteOp{
				Kind: rapid.SampledFrom([]rpc.WriteKind{rpc.Insert, rpc.Update, rpc.Delete, rpc.Intent, rpc.Refuse}).Draw(t, "kind"),
				Op:   genOpID.Draw(t, "op"), Target: rapid.IntRange(0, len(r.Targets)-1).Draw(t, "target"), Key: genBytes.Draw(t, "key"),
				Doc: genDoc.Draw(t, "doc"), Filter: genDoc.Draw(t, "filter"), Update: genUpdate.Draw(t, "update"),
				ArrayFilters: rapid.SliceOfN(genFull, 0, 2).Draw(t, "af"), Sort: genDoc.Draw(t, "sort"), Multi: rapid.Bool().Draw(t, "multi"),
				Upsert: rapid.Bool().Draw(t, "upsert"), Return: rapid.SampledFrom([]rpc.ReturnDoc{rpc.ReturnNone, rpc.ReturnBefore, rpc.ReturnAfter}).Draw(t, "return"),
				Projection: genDoc.Draw(t, "projection"),
			}
		}), 0, 4).Draw(t, "ops")
		return r
	},
	"WriteReply": func(t *rapid.T) message {
		return &rpc.WriteReply{Results: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rpc.WriteResult {
			r := rpc.WriteResult{
				N: rapid.Int64().Draw(t, "n"), Modified: rapid.Int64().Draw(t, "m"), UpsertedID: genValue.Draw(t, "id"),
				Value: genDoc.Draw(t, "value"), Stale: rapid.Bool().Draw(t, "stale"), Waits: manifest.ShardID(genText.Draw(t, "waits")),
			}
			if rapid.Bool().Draw(t, "failed") {
				r.Err = genError.Draw(t, "err")
			}
			return r
		}), 0, 4).Draw(t, "results"), Until: genPosition.Draw(t, "until")}
	},
	"PromiseRequest": func(t *rapid.T) message {
		return &rpc.PromiseRequest{Header: genHeader.Draw(t, "h"), Chunks: rapid.SliceOfN(genChunkAt, 0, 3).Draw(t, "chunks")}
	},
	"PromiseReply": func(t *rapid.T) message {
		return &rpc.PromiseReply{Epoch: manifest.Epoch(rapid.Uint64().Draw(t, "e")), Position: genPosition.Draw(t, "at")}
	},
	"PrepareRequest": func(t *rapid.T) message {
		r := &rpc.PrepareRequest{
			Header: genHeader.Draw(t, "h"), Chunk: genChunkAt.Draw(t, "chunk"), Key: genBytes.Draw(t, "key"), Op: genOpID.Draw(t, "op"),
			From: manifest.OwnerAt{Shard: manifest.ShardID(genText.Draw(t, "from")), Epoch: manifest.Epoch(rapid.Uint64().Draw(t, "e"))},
			Doc:  genDoc.Draw(t, "doc"), Reply: genBytes.Draw(t, "reply"), Expires: rapid.Int64().Draw(t, "expires"),
		}
		copy(r.Token[:], genBytes.Draw(t, "token"))
		return r
	},
	"PrepareReply": func(t *rapid.T) message {
		return &rpc.PrepareReply{Exists: rapid.Bool().Draw(t, "x"), Epoch: manifest.Epoch(rapid.Uint64().Draw(t, "e")), Seq: manifest.Seq(rapid.Uint64().Draw(t, "seq"))}
	},
	"DecideRequest": func(t *rapid.T) message {
		r := &rpc.DecideRequest{Header: genHeader.Draw(t, "h"), Aborted: rapid.Bool().Draw(t, "aborted")}
		copy(r.Token[:], genBytes.Draw(t, "token"))
		return r
	},
	"DecideReply": func(*rapid.T) message { return &rpc.DecideReply{} },
	"MoveRequest": func(t *rapid.T) message {
		return &rpc.MoveRequest{Header: genHeader.Draw(t, "h"), Chunks: rapid.SliceOfN(genChunkAt, 0, 3).Draw(t, "chunks"), To: manifest.ShardID(genText.Draw(t, "to"))}
	},
	"MoveReply": func(t *rapid.T) message {
		return &rpc.MoveReply{Version: manifest.Version(rapid.Uint64().Draw(t, "v"))}
	},
	"LoadsRequest": func(t *rapid.T) message { return &rpc.LoadsRequest{Header: genHeader.Draw(t, "h")} },
	"LoadsReply": func(t *rapid.T) message {
		rate := rapid.Float64Range(0, 1e9)
		return &rpc.LoadsReply{Chunks: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rpc.ChunkLoad {
			at := genChunkAt.Draw(t, "at")
			return rpc.ChunkLoad{
				Collection: at.Collection, ID: at.ID, Version: at.Version, Reads: rate.Draw(t, "r"), Writes: rate.Draw(t, "w"), Inserts: rate.Draw(t, "i"),
				UnflushedRows: rapid.Int64().Draw(t, "rows"), UnflushedBytes: rapid.Int64().Draw(t, "bytes"), TailShare: rate.Draw(t, "tail"),
				Median: genBytes.Draw(t, "median"), Age: time.Duration(rapid.Int64().Draw(t, "age")),
			}
		}), 0, 3).Draw(t, "chunks"), Copying: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) rpc.Copying {
			at := genChunkAt.Draw(t, "at")
			return rpc.Copying{
				Collection: at.Collection, Chunk: at.ID, Chunks: rapid.Int64().Draw(t, "n"), To: manifest.ShardID(genText.Draw(t, "to")),
				Bytes: rapid.Int64().Draw(t, "bytes"), Total: rapid.Int64().Draw(t, "total"),
			}
		}), 0, 2).Draw(t, "copying")}
	},
	"FlushRequest": func(t *rapid.T) message { return &rpc.FlushRequest{Header: genHeader.Draw(t, "h")} },
	"FlushReply": func(t *rapid.T) message {
		return &rpc.FlushReply{Version: manifest.Version(rapid.Uint64().Draw(t, "v"))}
	},
}

// fresh makes an empty message of each type.
var fresh = map[string]func() message{
	"ReadRequest": func() message { return new(rpc.ReadRequest) }, "ReadReply": func() message { return new(rpc.ReadReply) },
	"CursorRequest": func() message { return new(rpc.CursorRequest) },
	"WriteRequest":  func() message { return new(rpc.WriteRequest) }, "WriteReply": func() message { return new(rpc.WriteReply) },
	"PromiseRequest": func() message { return new(rpc.PromiseRequest) }, "PromiseReply": func() message { return new(rpc.PromiseReply) },
	"PrepareRequest": func() message { return new(rpc.PrepareRequest) }, "PrepareReply": func() message { return new(rpc.PrepareReply) },
	"DecideRequest": func() message { return new(rpc.DecideRequest) }, "DecideReply": func() message { return new(rpc.DecideReply) },
	"MoveRequest": func() message { return new(rpc.MoveRequest) }, "MoveReply": func() message { return new(rpc.MoveReply) },
	"LoadsRequest": func() message { return new(rpc.LoadsRequest) }, "LoadsReply": func() message { return new(rpc.LoadsReply) },
	"FlushRequest": func() message { return new(rpc.FlushRequest) }, "FlushReply": func() message { return new(rpc.FlushReply) },
}

// Whatever is appended is parsed again, and the bytes are a document that the library
// takes as well.
func TestMessagesComeBackAsTheyWere(t *testing.T) {
	for name, gen := range generated {
		t.Run(name, func(t *testing.T) { // one after another: a generator is not for several goroutines
			rapid.Check(t, func(t *rapid.T) {
				sent := gen(t)
				prefix := []byte("prefix")
				raw := sent.Append(prefix)
				if string(raw[:6]) != "prefix" {
					t.Fatal("Append changed what was before")
				}
				raw = raw[6:]
				if err := bson.Raw(raw).Validate(); err != nil {
					t.Fatal(err)
				}
				got := fresh[name]()
				if err := got.Parse(raw); err != nil {
					t.Fatalf("%v in %s", err, bson.Raw(raw))
				}
				if d := cmp.Diff(sent, got, equal); d != "" {
					t.Fatalf("(-sent +got):\n%s", d)
				}
			})
		})
	}
}

// Every message that is cut short, or has a byte too many, is refused.
func TestCutMessagesAreInvalid(t *testing.T) {
	for name, m := range examples() {
		raw := m.Append(nil)
		for n := range raw {
			if err := fresh[name]().Parse(raw[:n]); !errors.Is(err, errkind.Invalid) {
				t.Fatalf("%s cut to %d of %d bytes: %v", name, n, len(raw), err)
			}
		}
		if err := fresh[name]().Parse(append(raw, 0)); !errors.Is(err, errkind.Invalid) {
			t.Errorf("%s with a byte too many: %v", name, err)
		}
	}
}

// A field that is unknown, of another type or out of bounds is refused by its name.
func TestBadFieldsAreRefusedByName(t *testing.T) {
	for _, c := range []struct {
		into message
		doc  bson.D
		says string
	}{
		{&rpc.ReadRequest{}, bson.D{{Key: "shart", Value: "x"}}, `"shart" is not known`},
		{&rpc.ReadRequest{}, bson.D{{Key: "shard", Value: 1}}, `"shard" is not a string`},
		{&rpc.ReadRequest{}, bson.D{{Key: "coll", Value: int64(1) << 32}}, `"coll" is not between`},
		{&rpc.ReadRequest{}, bson.D{{Key: "root", Value: int32(1)}}, `"root" is not an int64`},
		{&rpc.ReadRequest{}, bson.D{{Key: "deadline", Value: int64(-1)}}, `"deadline" is not a duration`},
		{&rpc.ReadRequest{}, bson.D{{Key: "level", Value: int64(2)}}, `"level" is not between 0 and 1`},
		{&rpc.ReadRequest{}, bson.D{{Key: "mode", Value: int64(4)}}, `"mode"`},
		{&rpc.ReadRequest{}, bson.D{{Key: "keyOrder", Value: int64(-2)}}, `"keyOrder" is not -1, 0 or 1`},
		{&rpc.ReadRequest{}, bson.D{{Key: "filter", Value: bson.A{}}}, `"filter" is not a document`},
		{&rpc.ReadRequest{}, bson.D{{Key: "withSortKey", Value: int64(1)}}, `"withSortKey" is not a boolean`},
		{&rpc.ReadRequest{}, bson.D{{Key: "batchDocs", Value: int64(-1)}}, `"batchDocs"`},
		{&rpc.ReadRequest{}, bson.D{{Key: "targets", Value: bson.D{}}}, `"targets" is not an array`},
		{&rpc.ReadRequest{}, bson.D{{Key: "targets", Value: bson.A{1}}}, `"0" is not a document`},
		{&rpc.ReadRequest{}, bson.D{{Key: "targets", Value: bson.A{bson.D{{Key: "x", Value: 1}}}}}, `"x" is not known`},
		{&rpc.ReadRequest{}, bson.D{{Key: "targets", Value: bson.A{bson.D{{Key: "ranges", Value: bson.A{bson.D{{Key: "mid", Value: 1}}}}}}}}, `"mid" is not known`},
		{&rpc.ReadRequest{}, bson.D{{Key: "targets", Value: bson.A{bson.D{{Key: "min", Value: "x"}}}}}, `"min" is not binary data`},
		{&rpc.ReadReply{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.ReadReply{}, bson.D{{Key: "docs", Value: bson.A{1}}}, `"0" is not a document`},
		{&rpc.CursorRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.WriteRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.WriteRequest{}, bson.D{{Key: "ops", Value: bson.A{bson.D{}}}}, "operation 0 is for target 0 of 0"},
		{&rpc.WriteRequest{}, bson.D{{Key: "ops", Value: bson.A{bson.D{{Key: "kind", Value: int64(5)}}}}}, `"kind"`},
		{&rpc.WriteRequest{}, bson.D{{Key: "ops", Value: bson.A{bson.D{{Key: "x", Value: 1}}}}}, `"x" is not known`},
		{&rpc.WriteRequest{}, bson.D{{Key: "ops", Value: bson.A{bson.D{{Key: "update", Value: 1}}}}}, `"update" is not a document or an array`},
		{&rpc.WriteRequest{}, bson.D{{Key: "ops", Value: bson.A{bson.D{{Key: "op", Value: bson.D{{Key: "session", Value: []byte("short")}}}}}}}, `"session" is not 32 bytes`},
		{&rpc.WriteRequest{}, bson.D{{Key: "ops", Value: bson.A{bson.D{{Key: "op", Value: bson.D{{Key: "stmt", Value: int64(1) << 31}}}}}}}, `"stmt" is not an int32`},
		{&rpc.WriteRequest{}, bson.D{{Key: "ops", Value: bson.A{bson.D{{Key: "op", Value: bson.D{{Key: "x", Value: 1}}}}}}}, `"x" is not known`},
		{&rpc.WriteReply{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.WriteReply{}, bson.D{{Key: "results", Value: bson.A{bson.D{{Key: "x", Value: 1}}}}}, `"x" is not known`},
		{&rpc.PromiseRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.PromiseRequest{}, bson.D{{Key: "chunks", Value: bson.A{bson.D{{Key: "x", Value: 1}}}}}, `"x" is not known`},
		{&rpc.PromiseReply{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.PrepareRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.PrepareRequest{}, bson.D{{Key: "token", Value: bson.Binary{Data: []byte("short")}}}, "16 bytes"},
		{&rpc.PrepareReply{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.DecideRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.DecideReply{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.MoveRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.MoveReply{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.LoadsRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.LoadsReply{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
		{&rpc.LoadsReply{}, bson.D{{Key: "chunks", Value: bson.A{bson.D{{Key: "x", Value: 1}}}}}, `"x" is not known`},
		{&rpc.LoadsReply{}, bson.D{{Key: "chunks", Value: bson.A{bson.D{{Key: "tail", Value: -1.0}}}}}, `"tail" is not a rate`},
		{&rpc.FlushRequest{}, bson.D{{Key: "x", Value: 1}}, `"x" is not known`},
	} {
		err := c.into.Parse(doc(c.doc...))
		if !errors.Is(err, errkind.Invalid) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%T %v: %v, want %s", c.into, c.doc, err, c.says)
		}
	}
}

// examples are one telling message of each type.
func examples() map[string]message {
	h := rpc.Header{Shard: "shard01", Collection: 7, RootVersion: 42, Deadline: 9500 * time.Millisecond}
	targets := []rpc.Target{{ID: 3, Version: 5, Min: []byte{0x10}, Ranges: []shardkey.Range{{Min: []byte{0x11}, Max: []byte{0x12}}}}, {ID: 4, Version: 1}}
	at := manifest.ChunkAt{Collection: 7, Min: []byte{0x10}, ID: 3, Version: 5}
	dup := &mongoerr.Error{Code: mongoerr.DuplicateKey, Message: "E11000 duplicate key", Info: doc(bson.E{Key: "keyValue", Value: bson.D{{Key: "_id", Value: 1}}})}
	session := rpc.OpID{Txn: 8, Stmt: 1, Attempt: 2}
	copy(session.Session[:], "0123456789abcdef0123456789abcdef")
	return map[string]message{
		"ReadRequest": &rpc.ReadRequest{
			Header: h, Targets: targets, Level: rpc.Verified,
			Query: rpc.Query{Mode: rpc.Keys, Filter: doc(bson.E{Key: "a", Value: 1}), Sort: doc(bson.E{Key: "b", Value: -1}), KeyOrder: -1, Skip: 1, Limit: 10, WithSortKey: true},
			Batch: rpc.Batch{Docs: 101, Bytes: 1 << 20},
		},
		"ReadReply":     &rpc.ReadReply{Docs: []bson.Raw{doc(bson.E{Key: "_id", Value: 1}), doc()}, Cursor: 1 << 63, N: 2, DataVersion: 3, Gained: 7, Stats: rpc.ReadStats{DocsExamined: 4, BucketRequests: 5, BucketBytes: 6}},
		"CursorRequest": &rpc.CursorRequest{Header: h, Cursor: 1 << 63, Close: true},
		"WriteRequest": &rpc.WriteRequest{Header: h, Targets: targets, Ordered: true, Ops: []rpc.WriteOp{
			{Kind: rpc.Insert, Op: session, Doc: doc(bson.E{Key: "_id", Value: 1})},
			{
				Kind: rpc.Update, Target: 1, Key: []byte{0x10, 0x20}, Filter: doc(bson.E{Key: "_id", Value: 1}), Update: value(bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}),
				ArrayFilters: []bson.Raw{doc(bson.E{Key: "e", Value: 1})}, Multi: true, Upsert: true, Return: rpc.ReturnAfter,
			},
		}},
		"WriteReply": &rpc.WriteReply{Results: []rpc.WriteResult{
			{N: 1}, {N: 1, UpsertedID: value(5), Value: doc(bson.E{Key: "_id", Value: 5})}, {Err: dup}, {Stale: true}, {Stale: true, Waits: "shard02"},
		}},
		"PromiseRequest": &rpc.PromiseRequest{Header: h, Chunks: []manifest.ChunkAt{at}},
		"PromiseReply":   &rpc.PromiseReply{Epoch: 4, Position: manifest.Position{Epoch: 4, Next: 17}},
		"PrepareRequest": &rpc.PrepareRequest{
			Header: h, Chunk: at, Key: []byte("k"), Token: [16]byte{1}, From: manifest.OwnerAt{Shard: "shard02", Epoch: 7},
			Op: rpc.OpID{Session: [32]byte{1}, Txn: 2, Stmt: 3}, Reply: []byte{8}, Expires: 1000,
		},
		"PrepareReply":  &rpc.PrepareReply{Epoch: 4, Seq: 5},
		"DecideRequest": &rpc.DecideRequest{Header: h, Token: [16]byte{1}, Aborted: true},
		"DecideReply":   &rpc.DecideReply{},
		"MoveRequest":   &rpc.MoveRequest{Header: h, Chunks: []manifest.ChunkAt{at, at}, To: "shard02"},
		"MoveReply":     &rpc.MoveReply{Version: 43},
		"LoadsRequest":  &rpc.LoadsRequest{Header: h},
		"LoadsReply": &rpc.LoadsReply{Chunks: []rpc.ChunkLoad{{
			Collection: 3, ID: 7, Version: 5, Reads: 12.5, Writes: 100, Inserts: 80, UnflushedRows: 10, UnflushedBytes: 4096, TailShare: 0.25,
			Median: []byte{0x10, 0x20}, Age: time.Minute,
		}, {Collection: 3, ID: 8, Version: 1, Reads: 1}}, Copying: []rpc.Copying{{Collection: 3, Chunk: 7, Chunks: 2, To: "eu01", Bytes: 1000, Total: 4000}}},
		"FlushRequest": &rpc.FlushRequest{Header: h},
		"FlushReply":   &rpc.FlushReply{Version: 44},
	}
}

// The form on the wire, as text: a change of it is seen in the diff of testdata.
func TestWireForm(t *testing.T) {
	var out strings.Builder
	ex := examples()
	for _, name := range []string{"ReadRequest", "ReadReply", "CursorRequest", "WriteRequest", "WriteReply", "PromiseRequest", "PromiseReply", "PrepareRequest", "PrepareReply", "DecideRequest", "DecideReply", "MoveRequest", "MoveReply", "FlushRequest", "FlushReply", "LoadsRequest", "LoadsReply"} {
		fmt.Fprintf(&out, "%s\n%s\n\n", name, bson.Raw(ex[name].Append(nil)))
	}
	for _, err := range []error{
		fmt.Errorf("shard01 is at root 41: %w", errkind.StaleVersion),
		&mongoerr.Error{Code: mongoerr.CursorNotFound, Message: "cursor id 5 not found"},
		fmt.Errorf("append: %w: %w", errkind.UnknownOutcome, &mongoerr.Error{Code: mongoerr.RetryableInternal, Message: "stopping", Labels: []string{"RetryableWriteError"}}),
		context.DeadlineExceeded,
		errors.New("a bug"),
	} {
		fmt.Fprintf(&out, "error %v\n%s\n\n", err, bson.Raw(rpc.AppendError(nil, err)))
	}
	const file = "testdata/wire.txt"
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), out.String()); d != "" {
		t.Errorf("(-want +got), -update rewrites:\n%s", d)
	}
}

// An error matches after the wire what it matched before, and says the same.
func TestErrorsKeepKindCodeAndText(t *testing.T) {
	sentinels := []error{
		errkind.NotFound, errkind.Conflict, errkind.Throttled, errkind.UnknownOutcome, errkind.Fenced,
		errkind.StaleVersion, errkind.SnapshotUnavailable, errkind.Corrupt, errkind.Invalid, rpc.Unreachable,
	}
	for _, kind := range sentinels {
		for _, code := range []*mongoerr.Error{nil, {Code: mongoerr.DuplicateKey, Message: "dup", Labels: []string{"RetryableWriteError", "x"}, Info: doc(bson.E{Key: "k", Value: 1})}} {
			sent := fmt.Errorf("write chunk 7: %w", kind)
			if code != nil {
				sent = fmt.Errorf("write: %w: %w", kind, code)
			}
			failed, bad := rpc.ParseError(rpc.AppendError(nil, sent))
			if bad != nil {
				t.Fatal(bad)
			}
			for _, s := range sentinels {
				if errors.Is(failed, s) != errors.Is(sent, s) {
					t.Errorf("%v became %v", sent, failed)
				}
			}
			var got *mongoerr.Error
			if errors.As(failed, &got) != (code != nil) {
				t.Errorf("%v became %v", sent, failed)
			}
			if d := cmp.Diff(code, got, equal); d != "" {
				t.Error(d)
			}
			if code == nil && failed.Error() != sent.Error() {
				t.Errorf("%q became %q", sent, failed)
			}
		}
	}
	for _, sent := range []error{errors.New("bug"), context.Canceled, context.DeadlineExceeded, mongoerr.New(mongoerr.BadValue, "no")} {
		failed, bad := rpc.ParseError(rpc.AppendError(nil, sent))
		var got *mongoerr.Error
		if bad != nil || !errors.As(failed, &got) || !strings.Contains(got.Message+got.Error(), strings.TrimPrefix(sent.Error(), "BadValue: ")) {
			t.Errorf("%v became %v, %v", sent, failed, bad)
		}
	}
}

func TestRepliesThatAreNoneAreBad(t *testing.T) {
	for _, d := range []bson.Raw{
		nil, {}, doc(), doc(bson.E{Key: "n", Value: 1.0}), doc(bson.E{Key: "ok", Value: 1}), doc(bson.E{Key: "ok", Value: 2.0}),
		doc(bson.E{Key: "ok", Value: 0.0}), doc(bson.E{Key: "ok", Value: 0.0}, bson.E{Key: "errmsg", Value: "x"}),
		doc(bson.E{Key: "ok", Value: 0.0}, bson.E{Key: "kind", Value: "odd"}), doc(bson.E{Key: "ok", Value: 0.0}, bson.E{Key: "x", Value: 1}),
		doc(bson.E{Key: "ok", Value: 0.0}, bson.E{Key: "errorLabels", Value: 1}),
	} {
		if failed, bad := rpc.ParseError(d); failed != nil || !errors.Is(bad, errkind.Invalid) {
			t.Errorf("%v: %v, %v", d, failed, bad)
		}
	}
	if failed, bad := rpc.ParseError((&rpc.FlushReply{}).Append(nil)); failed != nil || bad != nil {
		t.Error(failed, bad)
	}
}

// FuzzParse: no bytes make a parser panic, and what it takes it gives back the same.
func FuzzParse(f *testing.F) {
	names := []string{"ReadRequest", "ReadReply", "CursorRequest", "WriteRequest", "WriteReply", "PromiseRequest", "PromiseReply", "PrepareRequest", "PrepareReply", "DecideRequest", "DecideReply", "MoveRequest", "MoveReply", "FlushRequest", "FlushReply", "LoadsRequest", "LoadsReply"}
	ex := examples()
	for i, name := range names {
		f.Add(byte(i), ex[name].Append(nil))
	}
	f.Add(byte(0), rpc.AppendError(nil, errkind.Fenced))
	f.Fuzz(func(t *testing.T, which byte, raw []byte) {
		_, _ = rpc.ParseError(raw)
		name := names[int(which)%len(names)]
		m := fresh[name]()
		if m.Parse(raw) != nil {
			return
		}
		again := fresh[name]()
		if err := again.Parse(m.Append(nil)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(m, again, equal); d != "" {
			t.Fatalf("%s: %s", name, d)
		}
	})
}

func BenchmarkWriteRequest(b *testing.B) {
	r := &rpc.WriteRequest{Header: rpc.Header{Shard: "shard01", Collection: 1, RootVersion: 1}, Targets: []rpc.Target{{ID: 1, Version: 1}}}
	d := doc(bson.E{Key: "_id", Value: bson.NewObjectID()}, bson.E{Key: "text", Value: strings.Repeat("x", 270)})
	for i := range 1000 {
		r.Ops = append(r.Ops, rpc.WriteOp{Op: rpc.OpID{Txn: 1, Stmt: int32(i)}, Doc: d})
	}
	raw := r.Append(nil)
	b.Run("append", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		b.ReportAllocs()
		for b.Loop() {
			raw = r.Append(raw[:0])
		}
	})
	b.Run("parse", func(b *testing.B) {
		b.SetBytes(int64(len(raw)))
		b.ReportAllocs()
		for b.Loop() {
			var got rpc.WriteRequest
			if err := got.Parse(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
}
