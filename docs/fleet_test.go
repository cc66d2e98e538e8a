package docs_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/memory"
)

func Example_fleet() {
	engine := memory.Open()
	defer engine.Close()

	pay := backend.New("payments",
		backend.Limit(50),
		backend.Rate(500, time.Second),
		backend.Shared(engine))

	op := asyncop.OrderedWait(asyncop.Blocking(charge), 10*time.Second, 100, asyncop.WithBackend(pay))
	for receipt, err := range op.Results(slices.Values([]Order{{Shop: "a"}})) {
		fmt.Println(receipt, err)
	}
	// Output: charged <nil>
}
