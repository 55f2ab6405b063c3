package diskcache

import (
	"container/list"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// entriesMax bounds the files of a slot, and with them the memory of the index: about 200
// bytes each.
const entriesMax = 1 << 18

// blockSize is what file systems round the size of a file up to.
const blockSize = 4096

// coverMax bounds the files that one Get is put together from.
const coverMax = 8

// address is the hash of a store's URL and a key.
type address [16]byte

// extent is one file.
type extent struct {
	at          address
	off, length int64
	whole       bool
	cost        int64
	hit         bool // read since it came into the queue
	place       *list.Element
}

func (e *extent) end() int64 { return e.off + e.length }

// name is the file's name in the directory of its address.
func (e *extent) name() string {
	kind := "r1"
	if e.whole {
		kind = "w1"
	}
	return fmt.Sprintf("%x-%x-%x.%s", e.at, e.off, e.length, kind)
}

// fan is the directory that the files of an address are in.
func (a address) fan() string { return hex.EncodeToString(a[:1]) }

// parseName is the inverse of name; nil for a name that name never makes.
func parseName(name string) *extent {
	rest, kind, _ := strings.Cut(name, ".")
	part := strings.Split(rest, "-")
	if len(part) != 3 || len(part[0]) != 2*len(address{}) {
		return nil
	}
	e := &extent{whole: kind == "w1"}
	if _, err := hex.Decode(e.at[:], []byte(part[0])); err != nil {
		return nil
	}
	for i, n := range []*int64{&e.off, &e.length} {
		var err error
		if *n, err = strconv.ParseInt(part[1+i], 16, 64); err != nil || *n < 0 {
			return nil
		}
	}
	if e.length == 0 || e.off+e.length < e.length || e.name() != name {
		return nil
	}
	return e
}

// index knows the files of the slot. Safe for concurrent use; its mutex is never held while
// a file is touched.
type index struct {
	budget  int64
	entries int // at most

	mu      sync.Mutex
	objects map[address][]*extent // by offset
	queue   list.List             // of *extent, the next to go in front
	bytes   int64
	// forgets counts the objects that were forgotten: what was read before one of them may
	// be of before it.
	forgets int64
}

func newIndex(budget int64) *index {
	return &index{budget: budget, entries: entriesMax, objects: map[address][]*extent{}}
}

// now is the moment, for add.
func (x *index) now() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.forgets
}

// usage is how many files there are, and what they take.
func (x *index) usage() (entries int, bytes int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.queue.Len(), x.bytes
}

// whole is the file that holds the whole object, or nil.
func (x *index) whole(a address) *extent {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.objects[a] {
		if e.whole {
			e.hit = true
			return e
		}
	}
	return nil
}

// cover is what the files have of a range of an object: all of it up to `from`, and all of it
// from `to` on. head are the files of the one, tail those of the other, in order; where from
// passes to, they have everything.
type cover struct {
	head, tail []*extent
	from, to   int64
}

// find looks for the files that cover [from, to) of an object.
func (x *index) find(a address, from, to int64) cover {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := cover{from: from, to: to}
	list := x.objects[a]
	for c.from < to && len(c.head) < coverMax {
		e := furthest(list, c.from)
		if e == nil {
			break
		}
		e.hit = true
		c.head, c.from = append(c.head, e), e.end()
	}
	for c.to > c.from && len(c.head)+len(c.tail) < coverMax {
		e := earliest(list, c.to)
		if e == nil {
			break
		}
		e.hit = true
		c.tail, c.to = slices.Insert(c.tail, 0, e), e.off
	}
	return c
}

// furthest is the file that has the byte at `at` and reaches furthest; nil: none.
func furthest(list []*extent, at int64) (best *extent) {
	for _, e := range list {
		if e.off > at {
			break
		}
		if e.end() > at && (best == nil || e.end() > best.end()) {
			best = e
		}
	}
	return best
}

// earliest is the file that has the byte before `at` and begins earliest; nil: none.
func earliest(list []*extent, at int64) *extent {
	for _, e := range list {
		if e.off < at && e.end() >= at {
			return e
		}
	}
	return nil
}

// has reports whether one file covers the range.
func (x *index) has(a address, off, length int64) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := furthest(x.objects[a], off)
	return e != nil && e.end() >= off+length
}

// add adds a file of so many bytes, read at a moment or later, and returns the files that
// have to go: those that it covers, and those that pass the budget; or itself, when an object
// was forgotten since.
func (x *index) add(e *extent, fileBytes, as int64) (gone []*extent) {
	e.cost = (fileBytes + blockSize - 1) / blockSize * blockSize
	x.mu.Lock()
	defer x.mu.Unlock()
	if as != x.forgets {
		return []*extent{e}
	}
	for _, old := range slices.Clone(x.objects[e.at]) {
		if old.off >= e.off && old.end() <= e.end() {
			x.removeLocked(old)
			if old.name() != e.name() {
				gone = append(gone, old)
			}
		}
	}
	of := x.objects[e.at]
	at, _ := slices.BinarySearchFunc(of, e.off, func(o *extent, off int64) int {
		return int(min(max(o.off-off, -1), 1))
	})
	x.objects[e.at] = slices.Insert(of, at, e)
	e.place = x.queue.PushBack(e)
	x.bytes += e.cost
	for x.bytes > x.budget || x.queue.Len() > x.entries {
		first := x.queue.Front().Value.(*extent)
		if first.hit && first != e {
			first.hit = false
			x.queue.MoveToBack(first.place)
			continue
		}
		x.removeLocked(first)
		gone = append(gone, first)
	}
	return gone
}

// remove forgets a file; false when it was forgotten already.
func (x *index) remove(e *extent) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.removeLocked(e)
}

func (x *index) removeLocked(e *extent) bool {
	if e.place == nil {
		return false
	}
	x.queue.Remove(e.place)
	e.place = nil
	x.bytes -= e.cost
	rest := slices.DeleteFunc(x.objects[e.at], func(o *extent) bool { return o == e })
	if x.objects[e.at] = rest; len(rest) == 0 {
		delete(x.objects, e.at)
	}
	return true
}

// forget forgets all files of an object.
func (x *index) forget(a address) (gone []*extent) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.forgets++
	gone = slices.Clone(x.objects[a])
	for _, e := range gone {
		x.removeLocked(e)
	}
	return gone
}
