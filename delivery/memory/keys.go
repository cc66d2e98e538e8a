package memory

import (
	"context"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.KeyCounter = (*Engine)(nil)

// CountKeys implements [store.KeyCounter].
func (m *Engine) CountKeys(ctx context.Context, q store.KeyQuery) (list []store.KeyCounts, err error) {
	err = m.do(ctx, func() error {
		err := storearg.KeyQuery(q)
		if err != nil {
			return err
		}
		counts := map[string]*store.KeyCounts{}
		for _, queue := range q.Queues {
			m.eachOfKey(queue, counts, addWaiting)
		}
		if q.Dead != "" {
			m.eachOfKey(q.Dead, counts, func(c *store.KeyCounts, _ *memoryEntry) { c.Dead++ })
		}
		top := storearg.NewTopKeys(q)
		for _, c := range counts {
			top.Add(*c)
		}
		list = top.List()
		return nil
	})
	return list, err
}

// eachOfKey calls add for each message with a key in a queue, with the counts of its key.
func (m *Engine) eachOfKey(queue string, counts map[string]*store.KeyCounts, add func(*store.KeyCounts, *memoryEntry)) {
	q := m.queues[queue]
	if q == nil {
		return
	}
	for key, entries := range q.keys {
		if key == "" {
			continue
		}
		c := counts[key]
		if c == nil {
			c = &store.KeyCounts{Key: key}
			counts[key] = c
		}
		for _, e := range entries.list {
			add(c, e)
		}
	}
}

func addWaiting(c *store.KeyCounts, e *memoryEntry) {
	if c.Waiting == 0 || e.Arrived.Before(c.Oldest) {
		c.Oldest = e.Arrived
	}
	c.Waiting++
	switch {
	case e.Held:
		c.Held++
	case e.at.Equal(parked):
	case c.Next.IsZero() || e.at.Before(c.Next):
		c.Next = e.at
	}
}
