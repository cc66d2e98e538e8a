package storearg

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weirflow/weir/delivery/store"
)

// maxQueues is the largest number of names in [store.KeyQuery].Queues: a statement of
// SQLite joins at most 500 parts.
const maxQueues = 400

// KeyQuery checks the argument of [store.KeyCounter.CountKeys].
func KeyQuery(q store.KeyQuery) error {
	switch {
	case q.Max < 1:
		return fmt.Errorf("store: KeyQuery.Max is %d: must be at least 1", q.Max)
	case len(q.Queues) == 0 || len(q.Queues) > maxQueues:
		return fmt.Errorf("store: counts by key of %d queues: must be 1 to %d", len(q.Queues), maxQueues)
	}
	names := slices.Clone(q.Queues)
	if q.Dead != "" {
		names = append(names, q.Dead)
	}
	seen := map[string]bool{}
	for _, name := range names {
		if err := Queue(name); err != nil {
			return err
		}
		if seen[name] {
			return fmt.Errorf("store: queue %q is named twice: its messages would count twice", name)
		}
		seen[name] = true
	}
	return nil
}

// TopKeys keeps the first keys of a table by key, in the order that
// [store.KeyCounter.CountKeys] returns. It holds at most twice as many keys as it
// returns.
type TopKeys struct {
	query store.KeyQuery
	first map[string]bool // the keys that come first
	list  []store.KeyCounts
}

// NewTopKeys returns an empty table for the answer to q.
func NewTopKeys(q store.KeyQuery) *TopKeys {
	t := &TopKeys{query: q, first: make(map[string]bool, len(q.First))}
	for _, key := range q.First {
		t.first[key] = true
	}
	return t
}

// Add adds a key, unless it does not match the query. Each key is added once.
func (t *TopKeys) Add(c store.KeyCounts) {
	if !strings.Contains(c.Key, t.query.Contains) {
		return
	}
	t.list = append(t.list, c)
	if len(t.list)-t.query.Max >= t.query.Max {
		t.list = t.List()
	}
}

// List returns the first keys in order.
func (t *TopKeys) List() []store.KeyCounts {
	slices.SortFunc(t.list, func(a, b store.KeyCounts) int {
		return cmp.Or(t.compareFirst(a.Key, b.Key), cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.Dead, a.Dead), cmp.Compare(a.Key, b.Key))
	})
	return t.list[:min(len(t.list), t.query.Max)]
}

// compareFirst compares two keys by whether they come first.
func (t *TopKeys) compareFirst(a, b string) int {
	switch {
	case t.first[a] == t.first[b]:
		return 0
	case t.first[a]:
		return -1
	default:
		return 1
	}
}
