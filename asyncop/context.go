package asyncop

import (
	"context"

	"github.com/weirflow/weir/asyncop/internal/call"
)

// AttemptFromContext returns the number of the attempt, from 1, that ctx was made for, and 0 for any other context.
func AttemptFromContext(ctx context.Context) int {
	n, _ := ctx.Value(call.NumberKey{}).(int)
	return n
}
