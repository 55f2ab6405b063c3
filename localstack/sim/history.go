package sim

import (
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// OpKind is what a client did to one document.
type OpKind uint8

// The operations of the workload: enough to tell a lost write, a doubled one, a stale read
// and a resurrected document apart. Inc is not idempotent and tells its result, so that a
// chain of them shows every gap.
const (
	OpRead    OpKind = iota
	OpInsert         // insert {_id, v}
	OpInc            // findAndModify {$inc: {v}}, new: true
	OpAdd            // update {$inc: {v}}
	OpReplace        // update by replacement
	OpSwap           // update {_id, v: Old} -> v: Val
	OpDelete         // delete
)

// String is the operation's name in histories and logs.
func (k OpKind) String() string {
	return [...]string{"read", "insert", "inc", "add", "replace", "swap", "delete"}[k]
}

// Input is one operation on one document, as the client meant it.
type Input struct {
	Kind     OpKind
	Doc      int
	Val, Old int64
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
	case OpRead:
		return s, Output{Found: s.exists, Val: s.val}
	case OpInsert:
		if s.exists {
			return s, Output{Dup: true}
		}
		return document{true, in.Val}, Output{}
	}
	if !s.exists || in.Kind == OpSwap && s.val != in.Old {
		return s, Output{}
	}
	switch in.Kind {
	case OpInc:
		return document{true, s.val + in.Val}, Output{Found: true, Val: s.val + in.Val}
	case OpAdd:
		return document{true, s.val + in.Val}, Output{Found: true}
	case OpReplace, OpSwap:
		return document{true, in.Val}, Output{Found: true}
	case OpDelete:
		return document{}, Output{Found: true}
	}
	panic(fmt.Sprintf("sim: unknown operation kind %d", in.Kind))
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

// Check asks porcupine whether the history is linearizable, per document. Unknown writes
// whose id never reached the log did not happen, and are left out; the others may have
// happened at any time after their call. logged tells which ids reached it.
func (h *History) Check(logged map[string]bool, timeout time.Duration) (porcupine.CheckResult, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.clock + 1
	var ops []porcupine.Operation
	for i, e := range h.ops {
		ret := e.ret
		if e.out.Unknown {
			if e.in.Kind == OpRead || !logged[e.id] {
				continue
			}
			ret = end
		}
		ops = append(ops, porcupine.Operation{ClientId: i, Input: e.in, Output: e.out, Call: e.call, Return: ret})
	}
	for _, part := range Model.Partition(ops) {
		if res := porcupine.CheckOperationsTimeout(Model, part, timeout); res != porcupine.Ok {
			return res, describe(part)
		}
	}
	return porcupine.Ok, ""
}

func describe(part []porcupine.Operation) string {
	sort.Slice(part, func(i, j int) bool { return part[i].Call < part[j].Call })
	var s string
	for _, op := range part {
		s += fmt.Sprintf("  [%d, %d] %s\n", op.Call, op.Return, Model.DescribeOperation(op.Input, op.Output))
	}
	return s
}
