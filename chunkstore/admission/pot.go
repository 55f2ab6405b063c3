package admission

import (
	"sync"
)

// Pot is the memory that a process has for what requests need, in bytes.
type Pot struct {
	size int64

	mu       sync.Mutex // held for a few instructions only
	used     int64
	accounts []*Account
}

// NewPot makes a Pot of size bytes.
func NewPot(size int64) *Pot { return &Pot{size: size} }

// Account is what one use of memory took from a Pot. A nil one has no bound.
type Account struct {
	pot     *Pot
	name    string
	most    int64
	used    int64 // with the pot's mutex
	refused int64
}

// Account opens an account that may have so many percent of the pot. A nil Pot has nil
// accounts.
func (p *Pot) Account(name string, percent int64) *Account {
	if p == nil {
		return nil
	}
	a := &Account{pot: p, name: name, most: p.size * percent / 100}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accounts = append(p.accounts, a)
	return a
}

// left is what the account may still take. Requires: the mutex.
func (a *Account) left() int64 { return min(a.most-a.used, a.pot.size-a.pot.used) }

func (a *Account) add(n int64) {
	a.used += n
	a.pot.used += n
}

// Reserve takes n bytes, or tells that there is no room.
func (a *Account) Reserve(n int64) bool {
	if a == nil {
		return true
	}
	a.pot.mu.Lock()
	defer a.pot.mu.Unlock()
	if n > a.left() {
		a.refused++
		return false
	}
	a.add(n)
	return true
}

// Refusal is the error of a Reserve that found no room.
func (a *Account) Refusal(n int64) error {
	return Refuse("%s have %d of %d bytes of this process's memory, and %d more are needed", a.name, a.Bound().Used, a.most, n)
}

// Take takes as much of want bytes as is decent: a quarter of what is left, and least in any
// case.
func (a *Account) Take(want, least int64) int64 {
	if a == nil {
		return want
	}
	a.pot.mu.Lock()
	defer a.pot.mu.Unlock()
	n := max(min(want, a.left()/4), min(want, least))
	a.add(n)
	return n
}

// Add counts n bytes that are there already; negative ones are given back.
func (a *Account) Add(n int64) {
	if a == nil || n == 0 {
		return
	}
	a.pot.mu.Lock()
	defer a.pot.mu.Unlock()
	a.add(n)
}

// Bound tells how much the account has.
func (a *Account) Bound() Bound {
	if a == nil {
		return Bound{}
	}
	a.pot.mu.Lock()
	defer a.pot.mu.Unlock()
	return a.bound()
}

func (a *Account) bound() Bound {
	return Bound{Name: a.name, Used: a.used, Limit: a.most, Refused: a.refused}
}

// Bounds tells how much each account has, and all together.
func (p *Pot) Bounds() []Bound {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	list := []Bound{{Name: "request_memory", Used: p.used, Limit: p.size}}
	for _, a := range p.accounts {
		list[0].Refused += a.refused
		list = append(list, a.bound())
	}
	return list
}
