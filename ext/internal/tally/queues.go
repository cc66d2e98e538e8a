package tally

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// countLimit is how long a queue may take to be counted.
const countLimit = 10 * time.Second

// Count counts a queue. Of its reasons the first maxReasons by name are distinguished.
func Count(ctx context.Context, s store.Inspector, queue string) (c store.Counts, err error) {
	ctx, cancel := context.WithTimeout(ctx, countLimit)
	defer cancel()
	c, err = s.Count(ctx, queue, store.Filter{})
	if err != nil {
		return c, fmt.Errorf("queue %q: %w", queue, err)
	}
	names := slices.Sorted(maps.Keys(c.Reasons))
	for _, name := range names[min(maxReasons, len(names)):] {
		c.Reasons[other.Name()] += c.Reasons[name]
		delete(c.Reasons, name)
	}
	return c, nil
}

// CheckQueues returns the error for names of queues that make no sense.
func CheckQueues(names []string) error {
	if len(names) == 0 {
		return errors.New("no queue")
	}
	for i, name := range names {
		if name == "" || slices.Contains(names[:i], name) {
			return fmt.Errorf("queue %q: the name must not be empty, and not be there twice", name)
		}
	}
	return nil
}
