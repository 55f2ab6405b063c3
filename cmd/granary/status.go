package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/host"
	"github.com/urfave/cli/v3"
)

// status is what the root says, as -o json prints it.
type status struct {
	Store       string             `json:"store"`
	Cluster     string             `json:"cluster"`
	Version     manifest.Version   `json:"version"`
	Shards      []shardStatus      `json:"shards"`
	Collections []collectionStatus `json:"collections"`
}

type shardStatus struct {
	ID     manifest.ShardID `json:"id"`
	State  string           `json:"state"`
	Epoch  manifest.Epoch   `json:"epoch"`
	Holder string           `json:"holder,omitempty"`
	Floor  string           `json:"floor"`
	Open   int              `json:"openEpochs"`
	Chunks int              `json:"chunks"`
	Rows   int64            `json:"rows"`
	Bytes  int64            `json:"bytes"`
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

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show shards, who holds them, and collections",
		Description: `One read of the root. Rows and bytes are those in segments: what a running writer has
not flushed yet is in its log.

   granary status --store dir:./granary-data -o json`,
		Flags: []cli.Flag{storeFlag(), outputFlag()},
		Action: func(ctx context.Context, cmd *cli.Command) error {
			b, root, err := openCluster(ctx, cmd, host.System())
			if err != nil {
				return err
			}
			defer b.Close()
			s := statusOf(root.State())
			s.Store = b.String()
			if cmd.String("output") == "json" {
				return printJSON(cmd.Root().Writer, s)
			}
			return printStatus(cmd, s)
		},
	}
}

func statusOf(state *manifest.State) status {
	s := status{Cluster: fmt.Sprintf("%x", state.ClusterID()), Version: state.Version(), Shards: []shardStatus{}, Collections: []collectionStatus{}}
	names := map[manifest.ShardStatus]string{manifest.ShardFree: "free", manifest.ShardHeld: "held", manifest.ShardDraining: "draining"}
	at := map[manifest.ShardID]int{}
	for i, sh := range state.Shards() {
		at[sh.ID] = i
		s.Shards = append(s.Shards, shardStatus{ID: sh.ID, State: names[sh.Status], Epoch: sh.Epoch, Holder: sh.Holder, Floor: sh.Floor.String(), Open: len(sh.OpenEpochs)})
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
	return s
}

func printStatus(cmd *cli.Command, s status) error {
	w := tabwriter.NewWriter(cmd.Root().Writer, 0, 4, 2, ' ', 0)
	fmt.Fprintf(w, "store %s, cluster %s, root version %d\n\n", s.Store, s.Cluster, s.Version)
	fmt.Fprintln(w, "SHARD\tSTATE\tEPOCH\tHOLDER\tFLOOR\tOPEN EPOCHS\tCHUNKS\tROWS\tBYTES")
	for _, sh := range s.Shards {
		fmt.Fprintf(w, "%s\t%s\t%d\t%.8s\t%s\t%d\t%d\t%d\t%d\n", sh.ID, sh.State, sh.Epoch, sh.Holder, sh.Floor, sh.Open, sh.Chunks, sh.Rows, sh.Bytes)
	}
	fmt.Fprintln(w, "\nCOLLECTION\tKEY\tSHARDED\tCHUNKS\tROWS\tBYTES")
	for _, c := range s.Collections {
		rows := fmt.Sprint(c.Rows)
		if !c.Exact {
			rows = "~" + rows
		}
		fmt.Fprintf(w, "%s\t%s\t%t\t%d\t%s\t%d\n", c.Namespace, c.Key, c.Sharded, c.Chunks, rows, c.Bytes)
	}
	return w.Flush()
}
