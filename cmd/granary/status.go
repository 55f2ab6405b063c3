package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/granarydb/granary/chunkstore/bucket"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

// status is what the root, the log and the holders say, as -o json prints it.
type status struct {
	Store   string           `json:"store"`
	Cluster string           `json:"cluster"`
	Version manifest.Version `json:"version"`
	// Alarms are the holders that found stored bytes that are not what was written.
	Alarms      []alarmStatus      `json:"alarms"`
	Shards      []shardStatus      `json:"shards"`
	Collections []collectionStatus `json:"collections"`
	// The newest first, as far back as the root remembers.
	Takeovers []takeoverStatus `json:"takeovers"`
	Moves     []moveStatus     `json:"moves"`
	Copying   []copyStatus     `json:"copying"`
	// Collections that are getting another shard key, as their routers said last.
	Resharding []reshardStatus  `json:"resharding"`
	Compaction compactionStatus `json:"compaction"`
	// Collections of which nearly all inserts go to the upper end of one chunk, as the holders say.
	HotTails []hotTailStatus `json:"hotTails"`
}

type hotTailStatus struct {
	Namespace string           `json:"ns"`
	Shard     manifest.ShardID `json:"shard"`
	Share     float64          `json:"share"`
	PerSecond float64          `json:"insertsPerSecond"`
	Says      string           `json:"says"`
}

type reshardStatus struct {
	Namespace string `json:"ns"`
	Key       string `json:"key"`
	Phase     string `json:"phase"`
	Rows      int64  `json:"rows"`
	RowsTotal int64  `json:"rowsTotal"`
	Bytes     int64  `json:"bytes"`
	Seconds   int64  `json:"secondsRunning"`
	TakenOver int64  `json:"takenOver"` // processes that died over it
	At        string `json:"at"`
}

type alarmStatus struct {
	Holder  string `json:"holder"`
	Address string `json:"address"`
	Corrupt int64  `json:"corrupt"` // times since the process began
	Last    string `json:"last"`    // what was found
	Age     int64  `json:"lastAgeMillis"`
}

type shardStatus struct {
	ID      manifest.ShardID `json:"id"`
	State   string           `json:"state"` // free, held, draining
	Epoch   manifest.Epoch   `json:"epoch"`
	Holder  string           `json:"holder,omitempty"`
	Address string           `json:"address,omitempty"`
	// What the holder says; left out when nobody holds the shard or the holder has no
	// address. The others are left out when it does not answer.
	Answers   *bool  `json:"answers,omitempty"`
	Phase     string `json:"phase,omitempty"`
	LeaseAge  *int64 `json:"leaseAgeMillis,omitempty"` // since it was last known to hold it
	AckAge    *int64 `json:"ackAgeMillis,omitempty"`   // since it last stored a batch
	Unflushed *int64 `json:"unflushedBytes,omitempty"`

	Floor string `json:"floor"`
	Open  int    `json:"openEpochs"`
	// The log above the floor: what a takeover would replay.
	WALObjects int   `json:"walObjects"`
	WALBytes   int64 `json:"walBytes"`
	Chunks     int   `json:"chunks"`
	Rows       int64 `json:"rows"`
	Bytes      int64 `json:"bytes"`
}

type collectionStatus struct {
	Namespace string `json:"ns"`
	Key       string `json:"key"`
	Sharded   bool   `json:"sharded"`
	Chunks    int    `json:"chunks"`
	Rows      int64  `json:"rows"`
	Exact     bool   `json:"rowsExact"`
	Bytes     int64  `json:"bytes"`
}

type takeoverStatus struct {
	Version manifest.Version `json:"version"`
	At      string           `json:"at"` // by the committer's clock
	Shard   string           `json:"shard"`
	Epoch   int64            `json:"epoch"`
	Holder  string           `json:"holder"`
}

// copyStatus is a move to another location: so many bytes of keys and documents are there.
type copyStatus struct {
	Namespace string           `json:"ns"`
	Chunk     manifest.ChunkID `json:"chunk"` // the first
	Chunks    int64            `json:"chunks"`
	From      manifest.ShardID `json:"from"`
	To        manifest.ShardID `json:"to"`
	Bytes     int64            `json:"bytes"`
	Total     int64            `json:"bytesTotal"`
}

type moveStatus struct {
	Version   manifest.Version `json:"version"`
	At        string           `json:"at"`
	Namespace string           `json:"ns"`
	From      string           `json:"from"`
	To        string           `json:"to"`
}

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show shards, who holds them, and collections",
		Description: `Reads the root, lists the log above the floors, and asks the holders how they are. Rows and
bytes are those in segments: what a running writer has not flushed yet is in its log. Where
writers have a secret, GRANARY_SECRET must be set for them to answer.

   granary status --store dir:./granary-data -o json
   granary status --watch --every 1s`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag("table", "json", "yaml"),
			&cli.BoolFlag{Name: "watch", Aliases: []string{"w"}, Usage: "show it again and again"},
			&cli.DurationFlag{Name: "every", Value: 2 * time.Second, Validator: positive[time.Duration]("--every"), Usage: "the time between two looks, with --watch"},
		},
		Action: runStatus,
	}
}

func runStatus(ctx context.Context, cmd *cli.Command) error {
	h := host.System()
	secret, err := sharedSecret()
	if err != nil {
		return err
	}
	b, root, err := openCluster(ctx, cmd, h)
	if err != nil {
		return err
	}
	defer b.Close()
	ask := newAsker(secret, h)
	defer ask.Close()
	look := func() (status, error) {
		s := statusOf(root.State())
		s.Store = b.String()
		if err := s.addWAL(ctx, b, root.State()); err != nil {
			return s, err
		}
		s.ask(ctx, ask, root.State())
		s.askLoads(ctx, ask, root.State())
		return s, nil
	}
	s, err := look()
	if err == nil {
		err = show(cmd, s, true)
	}
	for err == nil && cmd.Bool("watch") {
		if h.Sleep(ctx, cmd.Duration("every")) != nil {
			return nil
		}
		if _, _, err = root.Load(ctx); err == nil {
			s, err = look()
		}
		if ctx.Err() != nil {
			return nil // this look was not finished, and nobody watches any more
		}
		if err == nil {
			err = show(cmd, s, false)
		}
	}
	return err
}

// show prints one look; one after another on a terminal each takes the place of the last.
func show(cmd *cli.Command, s status, first bool) error {
	out := cmd.Root().Writer
	switch format := cmd.String("output"); {
	case format == "json" && cmd.Bool("watch"):
		return json.NewEncoder(out).Encode(s) // one a line
	case format == "json":
		return printJSON(out, s)
	case format == "yaml":
		if !first {
			fmt.Fprintln(out, "---")
		}
		return printYAML(out, s)
	case !first && onTerminal(out):
		fmt.Fprint(out, "\033[H\033[2J")
	case !first:
		fmt.Fprintln(out)
	}
	return printStatus(out, s)
}

func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && isTerminal(f)
}

func statusOf(state *manifest.State) status {
	s := status{
		Cluster: fmt.Sprintf("%x", state.ClusterID()), Version: state.Version(), Alarms: []alarmStatus{}, Shards: []shardStatus{}, Collections: []collectionStatus{},
		Takeovers: []takeoverStatus{}, Moves: []moveStatus{}, Copying: []copyStatus{}, Resharding: []reshardStatus{}, HotTails: []hotTailStatus{},
	}
	names := map[manifest.ShardStatus]string{manifest.ShardFree: "free", manifest.ShardHeld: "held", manifest.ShardDraining: "draining"}
	at := map[manifest.ShardID]int{}
	for i, sh := range state.Shards() {
		at[sh.ID] = i
		s.Shards = append(s.Shards, shardStatus{
			ID: sh.ID, State: names[sh.Status], Epoch: sh.Epoch, Holder: sh.Holder, Address: sh.Address,
			Floor: sh.Floor.String(), Open: len(sh.OpenEpochs),
		})
	}
	for _, c := range state.Collections() {
		cs := collectionStatus{Namespace: c.Namespace(), Key: c.Key.String(), Sharded: c.Sharded, Exact: true}
		for chunk := range state.Chunks(c.ID) {
			cs.Chunks++
			cs.Rows += chunk.Rows
			cs.Bytes += chunk.Bytes
			cs.Exact = cs.Exact && !chunk.RowsEstimated
			sh := &s.Shards[at[chunk.Shard]]
			sh.Chunks++
			sh.Rows += chunk.Rows
			sh.Bytes += chunk.Bytes
		}
		s.Collections = append(s.Collections, cs)
	}
	s.addHistory(state)
	s.addResharding(state)
	s.Compaction = compactionOfRoot(state)
	return s
}

func (s *status) addResharding(state *manifest.State) {
	for _, r := range state.Records(manifest.RecordReshard) {
		number := func(field string) int64 { n, _ := r.Body.Lookup(field).AsInt64OK(); return n }
		phase, _ := r.Body.Lookup("phase").StringValueOK()
		key, _ := r.Body.Lookup("key").DocumentOK()
		at, _ := r.Body.Lookup("at").DateTimeOK()
		s.Resharding = append(s.Resharding, reshardStatus{
			Namespace: r.ID, Key: key.String(), Phase: phase, Rows: number("rows"), RowsTotal: number("rowsTotal"), Bytes: number("bytes"),
			Seconds: number("secsRunning"), TakenOver: number("takenOver"), At: time.UnixMilli(at).UTC().Format(time.RFC3339),
		})
	}
}

// addHistory finds takeovers and moves among the structural changes that the root remembers.
func (s *status) addHistory(state *manifest.State) {
	history := state.History()
	for i := len(history) - 1; i >= 0; i-- {
		e := &history[i]
		when := time.UnixMilli(e.Millis).UTC().Format(time.RFC3339)
		text := func(field string) string {
			v, _ := e.Detail.Lookup(field).StringValueOK()
			return v
		}
		switch e.What {
		case "claimShard":
			epoch, _ := e.Detail.Lookup("epoch").AsInt64OK()
			if was, _ := e.Detail.Lookup("takeover").BooleanOK(); was {
				s.Takeovers = append(s.Takeovers, takeoverStatus{e.Version, when, text("shard"), epoch, text("holder")})
			}
		case "moveChunk.commit":
			s.Moves = append(s.Moves, moveStatus{e.Version, when, e.NS, text("from"), text("to")})
		}
	}
}

// addWAL counts the log above the floors.
func (s *status) addWAL(ctx context.Context, b bucket.Bucket, state *manifest.State) error {
	for i, sh := range state.Shards() {
		prefix := "wal/" + string(sh.ID) + "/"
		after := ""
		if sh.Floor.Next > 0 {
			after = manifest.WALKey(sh.ID, sh.Floor.Epoch, sh.Floor.Next-1)
		} else if sh.Floor.Epoch > 0 {
			after = prefix + fmt.Sprintf("%020d/", uint64(sh.Floor.Epoch))
		}
		for more := true; more; {
			page, again, err := b.List(ctx, prefix, after, 0)
			if err != nil {
				return fmt.Errorf("list the log of %s: %w", sh.ID, err)
			}
			for _, o := range page {
				s.Shards[i].WALObjects++
				s.Shards[i].WALBytes += o.Size
				after = o.Key
			}
			more = again && len(page) > 0
		}
	}
	return nil
}
