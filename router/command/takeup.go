package command

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A command that writes the documents of a collection anew may take hours, and its router may
// be killed meanwhile. Its client has lost its connection then and cannot tell what became of it;
// as in MongoDB, the work goes on: another router, or the next process on the store, carries
// the command out again, and goes on from what was noted (package reshard), since nothing of the
// collection had been changed. A router that is stopped in good order ends what it does, and so does a client that leaves.

// takeUpEvery is about the time between two looks at what is under way elsewhere. Each costs a
// conditional GET: some cents a month on S3.
const takeUpEvery = 30 * time.Second

// again is the command to send again: what it reads itself, without what came along with it;
// nil for one with a time limit, which is over by then.
func (c *call) again() bson.Raw {
	if c.maxTime > 0 {
		return nil
	}
	b := build().AppendValue(c.cmd.Name, core(c.fields[0].value))
	for _, f := range c.fields[1:] {
		if name := string(f.name); slices.Contains(c.cmd.Fields, name) {
			b.AppendValue(name, core(f.value))
		}
	}
	return bson.Raw(b.Build())
}

// takeUp carries out what others died over until ctx ends, and waits for it.
func (s *Commands) takeUp(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	var silence router.Silence
	for s.host.Sleep(ctx, s.host.Jitter(takeUpEvery)) == nil {
		commands, err := s.router.Abandoned(ctx, &silence)
		if err != nil && ctx.Err() == nil {
			s.options.Log.Warn("whether another router died over a resharding is not known yet", "cause", err)
		}
		for _, body := range commands {
			all.Go(func() {
				s.options.Log.Info("a router has died over a command: it is carried out again", "command", body)
				reply := s.Do(ctx, body)
				s.options.Log.Info("a command of a router that died was carried out again", "command", body, "reply", reply)
			})
		}
	}
}
