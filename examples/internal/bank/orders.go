package bank

import (
	"fmt"
	"math/rand/v2"
)

// The payment providers.
const (
	North = "north"
	South = "south"
)

// Providers are all of them.
var Providers = [...]string{North, South}

// Other returns the other provider.
func Other(provider string) string {
	if provider == North {
		return South
	}
	return North
}

// Order is an element of the stream. A number always stands for the same order.
type Order struct {
	Number int64  `json:"number"` // in the stream, from 1
	ID     string `json:"id"`
	Cents  int64  `json:"cents"`
	First  string `json:"first"` // the provider to try first
}

// Idempotent returns true: an order's request has the same id each time.
func (Order) Idempotent() bool { return true }

// OrderAt returns the order with a number.
func OrderAt(seed uint64, number int64) Order {
	random := rand.New(rand.NewPCG(seed, uint64(number)))
	return Order{
		Number: number, ID: fmt.Sprintf("order-%04d", number), Cents: 100 + random.Int64N(20_000),
		First: Providers[random.IntN(len(Providers))],
	}
}

// Orders returns the first n orders.
func Orders(seed uint64, n int64) []Order {
	orders := make([]Order, n)
	for i := range orders {
		orders[i] = OrderAt(seed, int64(i)+1)
	}
	return orders
}

// Declines reports whether a provider declines an order for good: one order in oneIn.
func Declines(seed uint64, provider string, number int64, oneIn int) bool {
	var which uint64
	if provider == South {
		which = 1
	}
	return rand.New(rand.NewPCG(seed^0xdec11e, uint64(number)<<1|which)).IntN(oneIn) == 0
}

// Payment is the result of an order.
type Payment struct {
	Order    string `json:"order"`
	Provider string `json:"provider,omitempty"` // "" if all declined
	Charge   string `json:"charge,omitempty"`
}
