package message_test

import (
	"fmt"
	"strings"

	"github.com/weirflow/weir/message"
)

// A message is done when all its parts are.
func ExampleSplit() {
	origin := message.Origin{Source: "orders", Partition: "0", Position: "17"}
	m := message.New("tea, milk", &message.Meta{ID: origin.ID(), Origin: origin}, func(v message.Settlement) {
		fmt.Println("the order is", v)
	})
	for _, line := range message.Split(m, strings.Split(m.Value, ", ")...) {
		fmt.Println(line.Meta().ID, line.Value)
		line.Ack()
	}
	// Output:
	// orders/0/17#1 tea
	// orders/0/17#2 milk
	// the order is done
}
