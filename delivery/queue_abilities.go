package delivery

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// elsewhere is the alternative to abilities that a [store.Consumer] lacks.
const elsewhere = "keep layers and dead letters in a queue on another engine, such as PostgreSQL: pass the source of this queue to its method Source"

// looksElsewhere is the alternative to an engine that cannot look into its queues.
const looksElsewhere = "use an engine that can, such as SQLite, PostgreSQL or JetStream"

// consumes reports whether an engine has no leases.
func consumes(engine store.Engine) bool {
	_, leases := engine.(store.Store)
	return !leases
}

// missing returns an error if the engine does not support an option of the queue, or nil.
// Only the engine knows its abilities, and which one a program has may be configured. So
// the methods of the queue return the error, and NewQueue does not panic.
func (s *queueSettings) missing(engine store.Engine, name string) error {
	what, alternative := s.firstMissing(engine)
	if what == "" {
		return nil
	}
	return guard.MarkPermanent(fmt.Errorf("delivery: queue %q: %w: a %T cannot do %s; %s", name, errors.ErrUnsupported, engine, what, alternative))
}

// firstMissing names the first option that the engine does not support, and the
// alternative, or returns "" if it supports all of them.
func (s *queueSettings) firstMissing(engine store.Engine) (what, alternative string) {
	_, takesInOrder := engine.(store.InOrder)
	if s.ordered && !takesInOrder {
		return "WithOrdered: it cannot take the messages of a key in order, since it is not a store.InOrder",
			"use SQLite or PostgreSQL; asyncop.KeyOrderedWait keeps the order of the calls in one worker, except for messages that wait in a layer"
	}
	if consumes(engine) {
		return s.missingInConsumer(engine), elsewhere
	}
	_, canLook := engine.(store.Inspector)
	_, takesByKey := engine.(store.ByKey)
	switch {
	case s.maxDepth > 0 && !canLook:
		return "WithMaxDepth: it cannot count messages, since it is not a store.Inspector", looksElsewhere
	case s.fairByKey && !takesByKey:
		return "WithFairByKey: it cannot take by key, since it is not a store.ByKey", "use SQLite or PostgreSQL, or give each key a queue of its own"
	}
	return "", ""
}

// missingInConsumer names the first option that an engine without leases does not
// support.
func (s *queueSettings) missingInConsumer(engine store.Engine) string {
	_, isConsumer := engine.(store.Consumer)
	switch {
	case !isConsumer:
		return "the work of a queue: it is neither a store.Store, which has leases, nor a store.Consumer"
	case s.lease > 0:
		return "WithLease: it has no leases, and its client decides when a worker that was killed is noticed"
	case s.maxDepth > 0:
		return "WithMaxDepth: it has no index to count with"
	case s.fairByKey:
		return "WithFairByKey: it has no index of keys"
	}
	for i, l := range s.layers {
		if l.MaxConcurrent > 0 || l.Rate > 0 {
			return fmt.Sprintf("the limits of layer %d: its layers come with the new messages", i+1)
		}
	}
	return ""
}

// withoutAbilities removes the options that an engine may not support. A queue that lacks
// an ability returns an error from each call, so it does not need them.
func (s *queueSettings) withoutAbilities() {
	s.lease = 0
	s.maxDepth = 0
	s.fairByKey = false
	s.ordered = false
}

// unable is the source of a queue whose engine lacks an ability.
type unable[T any] struct {
	err   error
	first Source[T] // to be closed, or nil
}

// Receive implements [Source].
func (s unable[T]) Receive(context.Context, int) ([]message.Message[T], error) { return nil, s.err }

// Close implements [Source].
func (s unable[T]) Close(ctx context.Context) error {
	if s.first == nil {
		return nil
	}
	return s.first.Close(ctx)
}
