package main

import (
	"fmt"
	"math/rand/v2"
)

// The payment providers.
const (
	north = "north"
	south = "south"
)

var providers = [...]string{north, south}

// order is an element of the stream. The stream can be read again: the same number is always the same order.
type order struct {
	Number int64  `json:"number"` // in the stream, from 1
	ID     string `json:"id"`
	Cents  int64  `json:"cents"`
	First  string `json:"first"` // the provider to try first
}

// Idempotent says that the request for an order may be sent again: it has the same id each time, on each visit.
func (order) Idempotent() bool { return true }

// orderAt returns an order of the stream.
func orderAt(seed uint64, number int64) order {
	random := rand.New(rand.NewPCG(seed, uint64(number)))
	return order{
		Number: number, ID: fmt.Sprintf("order-%04d", number), Cents: 100 + random.Int64N(20_000),
		First: providers[random.IntN(len(providers))],
	}
}

// declines says whether a provider declines an order for good, which it does with one in five.
func declines(seed uint64, provider string, number int64) bool {
	var which uint64
	if provider == south {
		which = 1
	}
	return rand.New(rand.NewPCG(seed^0xdec11e, uint64(number)<<1|which)).IntN(5) == 0
}
