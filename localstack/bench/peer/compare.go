package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

const (
	batch = 1000
	// lookupRows are read by lookups; all fit into both memories.
	lookupRows = 50_000
	readers    = 8
)

// compare lets the sides have their turns.
func compare(ctx context.Context, sides [2]side) ([]row, error) {
	for _, s := range sides {
		for first := int64(0); first < lookupRows; first += batch {
			if err := s.insert(ctx, 0, first); err != nil {
				return nil, err
			}
		}
	}
	var next atomic.Int64
	next.Store(lookupRows)
	insert := func(s side, client int) (int, error) {
		return batch, s.insert(ctx, client, next.Add(batch)-batch)
	}
	lookup := func(s side, client int) (int, error) {
		const several = 20
		for range several {
			if err := s.lookup(ctx, client, rand.Int64N(lookupRows)); err != nil {
				return 0, err
			}
		}
		return several, nil
	}
	var table []row
	for _, kind := range []struct {
		name    string
		clients int
		do      func(side, int) (int, error)
	}{
		{"insert, batches of 1000, 1 client: documents", 1, insert},
		{"insert, batches of 1000, 4 clients: documents", 4, insert},
		{"lookup by key, 8 clients: documents", readers, lookup},
	} {
		r := row{name: kind.name}
		for round := range *rounds {
			for i := range sides {
				i = (i + round) % 2 // neither always has the disk after the other
				n, err := during(*turn, kind.clients, func(client int) (int, error) { return kind.do(sides[i], client) })
				if err != nil {
					return nil, fmt.Errorf("%s: %w", kind.name, err)
				}
				r.per[i] = append(r.per[i], n)
			}
		}
		table = append(table, r)
	}
	return table, nil
}

// during has clients work for so long, and returns what they did per second.
func during(d time.Duration, clients int, do func(client int) (int, error)) (float64, error) {
	var all sync.WaitGroup
	var done atomic.Int64
	errs := make([]error, clients)
	start := time.Now()
	for c := range clients {
		all.Go(func() {
			for errs[c] == nil && time.Since(start) < d {
				n, err := do(c)
				done.Add(int64(n))
				errs[c] = err
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(done.Load()) / time.Since(start).Seconds(), nil
}
