// Command stream looks up three names, with retries. The README shows it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// lookup stands for your call: a query, a request, a read from a store. Here the first
// attempt fails.
func lookup(ctx context.Context, key string) (string, error) {
	if asyncop.AttemptFromContext(ctx) == 1 {
		return "", errors.New("busy")
	}
	return strings.ToUpper(key), nil
}

func main() {
	// At most 100 keys are in flight. Each has 5 seconds for its first attempt and up to
	// 3 retries.
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(lookup), 5*time.Second, 100,
		strategies.FixedDelay[string](3, 50*time.Millisecond).RetryIfException(predicates.HasException))
	for name, err := range op.Results(slices.Values([]string{"lhr", "cdg", "fra"})) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(name)
	}
}
