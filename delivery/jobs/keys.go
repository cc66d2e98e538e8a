package jobs

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const defaultKeys = 50

// KeyFilter chooses keys: see [Keys].
type KeyFilter struct {
	Contains string // only keys that contain this text; "" for all
	Max      int    // most keys returned; 0 means 50
}

func (f KeyFilter) most() int { return cmp.Or(f.Max, defaultKeys) }

// Keys counts the messages of a queue, of its layers and of its dead letters by key
// ([message.Meta].Key), in the order of [store.KeyCounter]. Messages without a key are
// not counted. [Jobs.KeyStates] also returns which keys are held or down.
//
// It reads the keys of all messages once. For a million messages of ten thousand keys
// that takes less than a second on SQLite and PostgreSQL. Keys returns an error if the
// engine is not a [store.KeyCounter], such as JetStream or Kafka, or if the name is the
// name of a layer or of dead letters.
func Keys(ctx context.Context, e store.Engine, queue string, f KeyFilter) ([]store.KeyCounts, error) {
	return countKeys(ctx, e, queue, f, nil)
}

// countKeys is Keys, with the keys in first before the others.
func countKeys(ctx context.Context, e store.Engine, queue string, f KeyFilter, first []string) ([]store.KeyCounts, error) {
	counter, ok := e.(store.KeyCounter)
	if !ok {
		return nil, fmt.Errorf("jobs: a %T does not count by key: it is not a store.KeyCounter. Use SQLite or PostgreSQL, or count "+
			"the messages of one key with Count and a filter, if the engine is a store.Inspector", e)
	}
	inspector, ok := e.(store.Inspector)
	if !ok {
		return nil, fmt.Errorf("jobs: a %T does not list its queues: it is not a store.Inspector", e)
	}
	if f.Max < 0 {
		return nil, fmt.Errorf("jobs: KeyFilter.Max is %d: must not be negative", f.Max)
	}
	of, err := familyOf(ctx, inspector, queue)
	if err != nil {
		return nil, err
	}
	return counter.CountKeys(ctx, store.KeyQuery{Queues: of.waiting, Dead: of.dead, First: first, Contains: f.Contains, Max: f.most()})
}

// family is a queue with the queues that belong to it (law W1).
type family struct {
	waiting []string // the queue, its layers that have messages, and its queue of blocked messages
	dead    string
}

func (f family) all() []string { return append(slices.Clone(f.waiting), f.dead) }

// ordered returns the names in the order in which messages move.
func (f family) ordered() []string {
	names := f.all()
	slices.SortFunc(names, func(a, b string) int { return storearg.PartOf(a).Compare(storearg.PartOf(b)) })
	return names
}

// familyOf returns the family of a queue, which must not belong to another queue.
func familyOf(ctx context.Context, s store.Inspector, queue string) (family, error) {
	base := storearg.PartOf(queue).Queue
	if base != queue {
		return family{}, fmt.Errorf("jobs: queue %q belongs to queue %q: name that queue, whose layers and dead letters are included", queue, base)
	}
	names, err := s.Queues(ctx)
	if err != nil {
		return family{}, err
	}
	f := family{waiting: []string{queue}, dead: storearg.DeadOf(queue)}
	for _, name := range names {
		if name != queue && name != f.dead && storearg.PartOf(name).Queue == queue {
			f.waiting = append(f.waiting, name)
		}
	}
	return f, nil
}
