package main

import (
	"context"

	"github.com/granarydb/granary/router"
	"github.com/urfave/cli/v3"
)

func splitCommand() *cli.Command {
	return &cli.Command{
		Name:  "split",
		Usage: "cut a collection's chunks at points",
		Description: `Cuts at one point, or at all points of a file in one commit: a chunk for each minute of a day
is as quick as one. Touches no document, and needs no writer. Chunks that were cut by hand
are not merged by themselves for a day.

   granary split --ns shop.orders --at '{"customer": 1000}'
   granary split --ns logs.events --points minutes.json --dry-run
   seq -f '{"k": %g}' 100 100 900 | granary split --ns shop.orders --points -`,
		Flags: []cli.Flag{
			storeFlag(), outputFlag(), namespaceFlag(), dryRunFlag(),
			&cli.StringFlag{Name: "at", Usage: `a point: '{"k": 1}'; fields that it leaves out are MinKey`},
			&cli.StringFlag{Name: "points", Usage: "a file of points, one a line or an array; -: the standard input"},
		},
		Action: runSplit,
	}
}

func runSplit(ctx context.Context, cmd *cli.Command) error {
	points, err := pointsOf(cmd)
	if err != nil {
		return err
	}
	c, err := openChunks(ctx, cmd)
	if err != nil {
		return err
	}
	defer c.close()
	splits, err := router.PlanSplits(c.root.State(), c.ns, points)
	if err != nil {
		return err
	}
	d := done{verb: "cut", Chunks: []chunkLine{}, Known: len(points)}
	for _, split := range splits {
		d.Chunks = append(d.Chunks, lineOf(c.root.State().ChunkAt(split.Chunk)))
		for _, p := range split.Points {
			d.Points = append(d.Points, router.ExtendedJSON(p.BSON))
			d.Known--
		}
	}
	if len(splits) > 0 && !cmd.Bool("dry-run") {
		if err := c.router.SplitAt(ctx, c.ns, points, chunkWait); err != nil {
			return err
		}
	}
	return c.show(d)
}

// pointsOf reads --at or --points.
func pointsOf(cmd *cli.Command) (router.Documents, error) {
	at, file := cmd.String("at"), cmd.String("points")
	switch {
	case (at == "") == (file == ""):
		return nil, usage(`split needs --at '{"k": 1}' or --points FILE, one of them`)
	case file != "":
		return readPoints(file)
	}
	return oneDocument(cmd, "at")
}
