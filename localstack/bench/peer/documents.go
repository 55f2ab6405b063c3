package main

import (
	"fmt"
	"math/rand/v2"
)

// document is what both sides store: about 300 bytes as BSON, and as JSON.
type document struct {
	ID       int64    `bson:"_id" json:"_id"`
	Customer string   `bson:"customer" json:"customer"`
	Status   string   `bson:"status" json:"status"`
	Amount   float64  `bson:"amount" json:"amount"`
	Tags     []string `bson:"tags" json:"tags"`
	Address  address  `bson:"address" json:"address"`
	Note     string   `bson:"note" json:"note"`
}

type address struct {
	Street string `bson:"street" json:"street"`
	City   string `bson:"city" json:"city"`
	Zip    string `bson:"zip" json:"zip"`
}

// documents makes a batch with keys from first on; the same keys give the same documents.
func documents(first int64) []document {
	rng := rand.New(rand.NewPCG(uint64(first), 1))
	list := make([]document, batch)
	for i := range list {
		list[i] = document{
			ID: first + int64(i), Customer: fmt.Sprintf("customer-%08x", rng.Uint32()),
			Status: []string{"open", "paid", "sent", "returned"}[rng.IntN(4)], Amount: float64(rng.IntN(100_000)) / 100,
			Tags:    []string{fmt.Sprintf("tag%d", rng.IntN(50)), fmt.Sprintf("tag%d", rng.IntN(50))},
			Address: address{Street: fmt.Sprintf("%d Long Street", rng.IntN(999)), City: fmt.Sprintf("city-%d", rng.IntN(500)), Zip: fmt.Sprintf("%05d", rng.IntN(99999))},
			Note:    fmt.Sprintf("%016x%016x%016x", rng.Uint64(), rng.Uint64(), rng.Uint64()),
		}
	}
	return list
}
