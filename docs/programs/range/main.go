package main

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop"
)

// lookup stands for your call: a query, a request, a read from a store.
func lookup(ctx context.Context, key string) (string, error) {
	return strings.ToUpper(key), nil
}

func main() {
	keys := []string{"lhr", "cdg", "fra"}
	// At most 100 calls run at once. Each key has 5 seconds.
	op := asyncop.OrderedWait(asyncop.Blocking(lookup), 5*time.Second, 100)
	for name, err := range op.Results(slices.Values(keys)) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name)
	}
}
