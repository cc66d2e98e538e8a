package tallytest

import (
	"context"

	"github.com/weirflow/weir/delivery/store"
)

// Queues is a store that cannot count its queues while it is down.
type Queues struct {
	store.Inspector
	Down *bool
}

// Count implements store.Inspector.
func (s Queues) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	if *s.Down {
		return store.Counts{}, ErrDown
	}
	return s.Inspector.Count(ctx, queue, f)
}
