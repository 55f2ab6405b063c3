// Package command answers MongoDB's commands: what mongosh and drivers send, over a Router.
//
// # How a command runs
//
//	request --> Command of that name --> its fields are known, and of the right type -->
//	Run --> router --> reply document
//
// Commands stand in one table, a file a family: handshake, diagnostics, sessions, crud,
// find, aggregate, definitions, sharding, chunks, whereabouts, stats, config, and later, which
// says what there is instead of what is not. A Command names every field that it reads; a field
// that nobody knows is an error, as in MongoDB, so that a wish that is not fulfilled is never
// passed over in silence. What is not in the table is CommandNotFound.
//
// # What is kept between commands
//
// Cursors: id, namespace, session, and the router's cursor. They idle out, they are bounded
// in number, and they end with their session. Nothing else is kept, and nothing of it
// matters: when the process dies, clients get CursorNotFound from another one and ask again.
package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/granarydb/granary/chunkstore/admission"
	"github.com/granarydb/granary/chunkstore/alarm"
	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/manifest"
	"github.com/granarydb/granary/manifest/balancing"
	"github.com/granarydb/granary/manifest/host"
	"github.com/granarydb/granary/router"
	"github.com/granarydb/granary/router/wire"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// Version is the server version that clients are told: they choose by it what they use.
const Version = "8.0.0"

// Options tune Commands. Zero fields mean the defaults.
type Options struct {
	// Address is where clients reach this router, for listings; "localhost:27017".
	Address string
	// Program is the program's own version, for buildInfo.
	Program string
	// CursorIdle is how long a cursor lives without a getMore; 10 min.
	CursorIdle time.Duration
	// CursorsMax bounds the open cursors; 10,000.
	CursorsMax int
	// Patience limits commands without maxTimeMS; 30 s.
	Patience time.Duration
	// PipelineBytes bounds what $sort and $group of one aggregation hold; 64 MiB.
	PipelineBytes int
	// Gate lets commands in; nil: all at once. Sorts is the memory that $sort and $group of all
	// aggregations share; nil: no bound.
	Gate  *admission.Gate
	Sorts *admission.Account
	// Bounds are what serverStatus shows of the bounds of this process, besides the Gate's;
	// nil: none.
	Bounds func() []admission.Bound
	// HotTails are the collections of which nearly all inserts go to the upper end of one chunk,
	// by namespace, as far as this process knows, each with a sentence about it; nil: none.
	HotTails func() map[string]string
	// Verdicts tell how the collections of a root stand, by a balancer's rules; nil: none is
	// known.
	Verdicts func(*manifest.State) []balancing.Verdict
	Log      *slog.Logger // nil: silent
	// Alarm hears what is answered of what is Corrupt; nil: nobody does.
	Alarm *alarm.Bell
}

func (o Options) withDefaults() Options {
	if o.Address == "" {
		o.Address = "localhost:27017"
	}
	if o.CursorIdle == 0 {
		o.CursorIdle = 10 * time.Minute
	}
	if o.CursorsMax == 0 {
		o.CursorsMax = 10_000
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	if o.PipelineBytes == 0 {
		o.PipelineBytes = 64 << 20
	}
	if o.Verdicts == nil {
		o.Verdicts = func(*manifest.State) []balancing.Verdict { return nil }
	}
	if o.HotTails == nil {
		o.HotTails = func() map[string]string { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Command is one entry of the table.
type Command struct {
	// Name is as documented; Aliases are other spellings that clients use.
	Name    string
	Aliases []string
	// Help is a sentence for listCommands.
	Help string
	// Admin: only on the database admin.
	Admin bool
	// Fields are the fields that the command reads, besides its name and those that every
	// command has; "*": any.
	Fields []string
	// Ignored are fields that clients send and that change nothing here.
	Ignored []string
	// Run answers. The reply is a whole document with ok. An error becomes {ok: 0, ...}.
	Run func(ctx context.Context, c *call) (bson.Raw, error)

	entry entry
}

// entry is how a command comes in when there are too many.
type entry uint8

const (
	queued    entry = iota // it waits for its turn, or is refused
	continues              // it is counted: a cursor that cannot go on is memory that stays
	always                 // it asks how things are, or frees what is held
)

// Commands answers requests over a Router. Safe for concurrent use.
type Commands struct {
	router  *router.Router
	host    host.Host
	options Options
	table   map[string]*Command
	cursors *cursors
	started time.Duration // Mono
	counts  opCounts

	underway  underway
	topology  topology
	latencies latencies
}

// opCounts are MongoDB's opcounters.
type opCounts struct {
	insert, query, update, delete, getmore, command atomic.Int64
}

// New makes Commands; nil options are the defaults.
func New(r *router.Router, o *Options) *Commands {
	if o == nil {
		o = &Options{}
	}
	s := &Commands{router: r, host: r.Host(), options: o.withDefaults(), table: make(map[string]*Command)}
	s.cursors = newCursors(s.host, s.options.CursorIdle, s.options.CursorsMax)
	s.started = s.host.Mono()
	s.topology = topology{process: r.NewObjectID(), news: make(chan struct{})}
	s.underway.calls = make(map[int64]running)
	for n, family := range [][]Command{
		s.handshake(), s.diagnostics(), s.sessions(), s.crud(), s.find(), s.aggregation(), s.definitions(), s.sharding(), s.shards(), s.balancing(), s.chunks(), s.zones(), s.snapshots(),
		s.whereabouts(), s.statistics(), s.resharding(), s.later(),
	} {
		for i := range family {
			if n < 3 {
				family[i].entry = always
			}
			s.add(&family[i])
		}
	}
	return s
}

func (s *Commands) add(c *Command) {
	for _, name := range append([]string{c.Name}, c.Aliases...) {
		if s.table[name] != nil {
			panic("command: " + name + " is in the table twice")
		}
		s.table[name] = c
	}
}

// List are the commands by name, without their aliases.
func (s *Commands) List() []*Command {
	var list []*Command
	for name, c := range s.table {
		if name == c.Name {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b *Command) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// sweepEvery is the time between two looks for idle cursors.
const sweepEvery = time.Minute

// Run closes idle cursors until ctx ends, and all cursors then; and it takes up what gives a
// collection another shard key when the router that did it has died.
func (s *Commands) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { s.takeUp(ctx) })
	for s.host.Sleep(ctx, sweepEvery) == nil {
		s.cursors.sweep(ctx)
	}
	s.cursors.closeAll(context.WithoutCancel(ctx))
	return nil
}

// Handle answers a request of a connection; see wire.Handler.
func (s *Commands) Handle(ctx context.Context, conn *wire.Conn, m *wire.Request) bson.Raw {
	return s.answer(ctx, m, peer{id: conn.ID(), addr: conn.RemoteAddr(), client: conn.Metadata()})
}

// Do answers a command of this process: a document with $db, validated, as it would come
// over a connection.
func (s *Commands) Do(ctx context.Context, body bson.Raw) bson.Raw {
	m := &wire.Request{Body: body, DB: "admin"}
	if e, err := body.IndexErr(0); err == nil {
		m.Command = e.Key()
	}
	if db, ok := body.Lookup("$db").StringValueOK(); ok {
		m.DB = db
	}
	pass, full := s.Admit(ctx, wire.Glance{Command: []byte(m.Command)})
	if full != nil {
		return errorReply(full)
	}
	defer s.Leave(pass)
	return s.answer(ctx, m, peer{})
}

// peer is who asks.
type peer struct {
	id     int64
	addr   net.Addr // nil: this process
	client bson.Raw // what it said of itself; nil: nothing
}

// String is made when it is asked for: hardly any command does.
func (p peer) String() string {
	if p.addr == nil {
		return "this process"
	}
	return p.addr.String()
}

func (s *Commands) answer(ctx context.Context, m *wire.Request, p peer) bson.Raw {
	reply, err := s.run(ctx, m, p)
	if err != nil {
		s.options.Alarm.Hear(err)
		return errorReply(s.topology.tell(router.MongoError(err), p))
	}
	return reply
}

func (s *Commands) run(ctx context.Context, m *wire.Request, p peer) (bson.Raw, error) {
	cmd := s.table[m.Command]
	if cmd == nil {
		return nil, mongoerr.New(mongoerr.CommandNotFound, "no such command: '%s'", m.Command)
	}
	if cmd.Admin && m.DB != "admin" {
		return nil, mongoerr.New(mongoerr.Unauthorized, "%s may only be run against the admin database.", cmd.Name)
	}
	if err := checkDatabase(m.DB); err != nil {
		return nil, err
	}
	c, err := s.newCall(ctx, cmd, m, p)
	if err != nil {
		return nil, err
	}
	if cmd.Admin && c.maxTime > 0 { // several operations of the router together have the time of one
		limited, cancel := c.limited(ctx)
		defer cancel()
		ctx = limited
	}
	began := s.host.Mono()
	defer s.underway.end(s.underway.begin(c, began))
	reply, err := cmd.Run(ctx, c)
	if err == nil && c.err != nil {
		err = c.err
	}
	if err != nil {
		s.options.Log.Debug("command failed", "command", cmd.Name, "db", m.DB, "cause", err)
		return nil, err
	}
	if reply == nil {
		return nil, fmt.Errorf("command %s gave no reply", cmd.Name)
	}
	s.latencies.took(c, s.host.Mono()-began)
	return reply, nil
}

// Full refuses a request that has not arrived yet; see wire.Doorkeeper.
func (s *Commands) Full(g wire.Glance) *mongoerr.Error {
	if cmd := s.table[string(g.Command)]; cmd == nil || cmd.entry != queued {
		return nil
	}
	return refusal(g, s.options.Gate.Full(g.MaxTime))
}

// Admit lets a request in, or refuses it at once; see wire.Doorkeeper.
func (s *Commands) Admit(ctx context.Context, g wire.Glance) (admission.Pass, *mongoerr.Error) {
	cmd := s.table[string(g.Command)]
	switch {
	case cmd == nil || cmd.entry == always:
		return admission.Pass{}, nil
	case cmd.entry == continues:
		return s.options.Gate.Pass(), nil
	}
	pass, err := s.options.Gate.Enter(ctx, g.MaxTime)
	return pass, refusal(g, err)
}

// refusal is an error of a Gate as a client sees it; nil for nil.
func refusal(g wire.Glance, err error) *mongoerr.Error {
	switch {
	case err == nil:
		return nil
	case !errors.Is(err, admission.Overloaded):
		return router.MongoError(err)
	}
	m := admission.MongoError(err)
	if g.Retryable {
		m.Labels = append(m.Labels, router.RetryableWrite)
	}
	return m
}

// Leave takes a pass of Admit back.
func (s *Commands) Leave(p admission.Pass) { s.options.Gate.Leave(p) }
