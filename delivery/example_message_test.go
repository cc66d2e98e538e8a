package delivery_test

import (
	"fmt"
	"strings"

	"github.com/weirflow/weir/delivery"
)

// A message is acknowledged behind all that was made of it.
func ExampleSplit() {
	origin := delivery.Origin{Source: "orders", Partition: "0", Position: "17"}
	m := delivery.New("tea, milk", &delivery.Meta{ID: origin.ID(), Origin: origin}, func(v delivery.Verdict) {
		fmt.Println("the order is", v)
	})
	for _, line := range delivery.Split(m, strings.Split(m.Value, ", ")...) {
		fmt.Println(line.Meta().ID, line.Value)
		line.Ack()
	}
	// Output:
	// orders/0/17#1 tea
	// orders/0/17#2 milk
	// the order is acked
}
