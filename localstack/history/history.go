// Package history judges what clients were told: whether single-document operations that ran
// side by side could have happened one after another.
//
// A client notes each operation before it sends it (Call) and again with the answer (Return).
// A crash of the server, a lost reply or a timeout leaves operations without an answer:
// their outcome is unknown. The write-ahead log resolves it. Every write carries its client's
// id into its log record, so what is in no log object (Logged) never happened, and the rest
// did, at some time after its call. Without that step a checker drowns in what might have
// been; with it, an operation that stays unknown is a failed test.
//
// The simulation and the tests of real processes share the model.
package history

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/granarydb/granary/manifest"
)

// Kind is what a client did to one document.
type Kind uint8

// The operations of the workload: enough to tell a lost write, a doubled one, a stale read
// and a resurrected document apart. Inc is not idempotent and tells its result, so that a
// chain of them shows every gap.
const (
	Read    Kind = iota
	Insert       // insert {_id, v}
	Inc          // findAndModify {$inc: {v}}, new: true
	Add          // update {$inc: {v}}
	Replace      // update by replacement
	Swap         // update {_id, v: Old} -> v: Val
	Delete       // delete
)

// String is the operation's name in histories and logs.
func (k Kind) String() string {
	return [...]string{"read", "insert", "inc", "add", "replace", "swap", "delete"}[k]
}

// Input is one operation on one document, as the client meant it.
type Input struct {
	Kind     Kind
	Doc      int
	Val, Old int64

	place int // of a write that is in the log: its place among those on the document
}

// Output is what the client was told. Unknown: no answer that says whether it happened.
type Output struct {
	Found   bool // read, inc: the document existed; update, delete: n > 0
	Val     int64
	Dup     bool // insert: E11000
	Unknown bool
}

// document is the model's state: one register that may be absent.
type document struct {
	exists bool
	val    int64
	place  int // of the last write of the log
}

// Model is a document as MongoDB's single-document operations define it.
var Model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byDoc := map[int][]porcupine.Operation{}
		for _, op := range history {
			d := op.Input.(Input).Doc
			byDoc[d] = append(byDoc[d], op)
		}
		docs := make([]int, 0, len(byDoc))
		for d := range byDoc {
			docs = append(docs, d)
		}
		sort.Ints(docs)
		parts := make([][]porcupine.Operation, 0, len(docs))
		for _, d := range docs {
			parts = append(parts, byDoc[d])
		}
		return parts
	},
	Init: func() any { return document{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(document), input.(Input), output.(Output)
		next, want := s.apply(in)
		if next.place = s.place; in.place > 0 {
			if in.place != s.place+1 {
				return false, s
			}
			next.place = in.place
		}
		return out.Unknown || out == want, next
	},
	DescribeOperation: func(input, output any) string {
		in, out := input.(Input), output.(Output)
		return fmt.Sprintf("%v doc %d val %d old %d -> %+v", in.Kind, in.Doc, in.Val, in.Old, out)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}

// apply is what in does to s and what its client must be told.
func (s document) apply(in Input) (document, Output) {
	switch in.Kind {
	case Read:
		return s, Output{Found: s.exists, Val: s.val}
	case Insert:
		if s.exists {
			return s, Output{Dup: true}
		}
		return document{exists: true, val: in.Val}, Output{}
	}
	if !s.exists || in.Kind == Swap && s.val != in.Old {
		return s, Output{}
	}
	switch in.Kind {
	case Inc:
		return document{exists: true, val: s.val + in.Val}, Output{Found: true, Val: s.val + in.Val}
	case Add:
		return document{exists: true, val: s.val + in.Val}, Output{Found: true}
	case Replace, Swap:
		return document{exists: true, val: in.Val}, Output{Found: true}
	case Delete:
		return document{}, Output{Found: true}
	}
	panic(fmt.Sprintf("history: unknown operation kind %d", in.Kind))
}

// History collects what clients did. Time is a logical counter: under virtual time many
// events share one instant, and touching intervals would count as concurrent.
type History struct {
	mu    sync.Mutex
	clock int64
	ops   []event
}

type event struct {
	client    int
	in        Input
	out       Output
	call, ret int64
	id        string // of a write: how its WAL record is found
}

// Call notes the start of an operation and returns its number.
func (h *History) Call(client int, in Input, id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	h.ops = append(h.ops, event{client: client, in: in, out: Output{Unknown: true}, call: h.clock, ret: -1, id: id})
	return len(h.ops) - 1
}

// Sent tells the id of the write that operation n became, where it is known only once it is
// on its way. Of several calls the last counts.
func (h *History) Sent(n int, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops[n].id = id
}

// Return notes the answer to operation n. Operations that never return stay unknown.
func (h *History) Return(n int, out Output) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clock++
	h.ops[n].out, h.ops[n].ret = out, h.clock
}

// Len is how many operations were begun, and how many of them never got an answer.
func (h *History) Len() (all, unknown int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.ops {
		if e.out.Unknown {
			unknown++
		}
	}
	return len(h.ops), unknown
}

// Unlogged counts the acknowledged changes whose id is not in logged. Where ids are those of
// the log there are none, but for changes that left a document as it was.
func (h *History) Unlogged(logged map[string]manifest.Seq) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.ops {
		if !e.out.Unknown && changes(e.in, e.out) && logged[e.id] == 0 {
			n++
		}
	}
	return n
}

// changes reports whether an answer says that a document was written.
func changes(in Input, out Output) bool {
	if in.Kind == Insert {
		return !out.Dup
	}
	return in.Kind != Read && out.Found
}

// Check returns nil when the history is linearizable, per document. Unknown writes whose id
// is not in logged did not happen, and are left out; the others may have happened at any time
// after their call. The error shows the operations on the first document that fails, or says
// that the time was not enough: that counts as a failure as well.
func (h *History) Check(logged map[string]manifest.Seq, timeout time.Duration) error {
	ops := h.resolved(logged)
	if porcupine.CheckOperationsTimeout(Model, ops, timeout) == porcupine.Ok {
		return nil
	}
	for _, part := range Model.Partition(ops) {
		if porcupine.CheckOperationsTimeout(Model, part, timeout) == porcupine.Illegal {
			return fmt.Errorf("not linearizable:\n%s", describe(part))
		}
	}
	return fmt.Errorf("the checker did not end within %v: unknown counts as failed", timeout)
}

// resolved is what happened, with the place of each write in its document's log.
func (h *History) resolved(logged map[string]manifest.Seq) (ops []porcupine.Operation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	writes := map[int][]int{} // by document: which of ops
	for i, e := range h.ops {
		ret := e.ret
		if e.out.Unknown {
			if e.in.Kind == Read || logged[e.id] == 0 {
				continue
			}
			ret = h.clock + 1
		}
		if logged[e.id] > 0 {
			writes[e.in.Doc] = append(writes[e.in.Doc], len(ops))
		}
		ops = append(ops, porcupine.Operation{ClientId: i, Input: e.in, Output: e.out, Call: e.call, Return: ret})
	}
	seq := func(n int) manifest.Seq { return logged[h.ops[ops[n].ClientId].id] }
	for _, list := range writes {
		slices.SortFunc(list, func(a, b int) int { return cmp.Compare(seq(a), seq(b)) })
		for place, n := range list {
			in := ops[n].Input.(Input)
			in.place = place + 1
			ops[n].Input = in
		}
	}
	return ops
}

func describe(part []porcupine.Operation) string {
	sort.Slice(part, func(i, j int) bool { return part[i].Call < part[j].Call })
	var s string
	for _, op := range part {
		s += fmt.Sprintf("  [%d, %d] %s\n", op.Call, op.Return, Model.DescribeOperation(op.Input, op.Output))
	}
	return s
}
