package delivery

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const adviceOtherEngine = "keep layers and dead letters in a queue on another engine, such as PostgreSQL: pass the source of this queue to its method Source"

const adviceInspector = "use an engine that can, such as SQLite, PostgreSQL or JetStream"

const adviceByKey = "use SQLite or PostgreSQL, or give each key a queue of its own"

func hasLeases(engine store.Engine) bool {
	_, ok := engine.(store.Store)
	return ok
}

// missing returns an error if the engine does not support an option of the queue, or nil.
func (s *queueSettings) missing(engine store.Engine, name string) error {
	what, alternative := s.firstMissing(engine)
	if what == "" {
		return nil
	}
	return guard.MarkPermanent(fmt.Errorf("delivery: queue %q: %w: a %T cannot do %s; %s", name, errors.ErrUnsupported, engine, what, alternative))
}

// firstMissing names the first option that the engine does not support, and the
// alternative, or returns "".
func (s *queueSettings) firstMissing(engine store.Engine) (what, alternative string) {
	_, takesInOrder := engine.(store.InOrder)
	if s.ordered && !takesInOrder {
		return "WithOrdered: it cannot take the messages of a key in order, since it is not a store.InOrder",
			"use SQLite or PostgreSQL; asyncop.KeyOrderedWait keeps the order of the calls in one worker, except for messages that wait in a layer"
	}
	if !hasLeases(engine) {
		return s.missingInConsumer(engine)
	}
	_, canLook := engine.(store.Inspector)
	_, takesByKey := engine.(store.ByKey)
	switch {
	case s.maxDepth > 0 && !canLook:
		return "WithMaxDepth: it cannot count messages, since it is not a store.Inspector", adviceInspector
	case s.fairByKey && !takesByKey:
		return "WithFairByKey: it cannot take by key, since it is not a store.ByKey", adviceByKey
	}
	return "", ""
}

// missingInConsumer is firstMissing for an engine without leases.
func (s *queueSettings) missingInConsumer(engine store.Engine) (what, alternative string) {
	_, isConsumer := engine.(store.Consumer)
	switch {
	case !isConsumer:
		return "the work of a queue: it is neither a store.Store, which has leases, nor a store.Consumer", adviceInspector
	case s.lease > 0:
		return "WithLease: it does not lease messages",
			"set the session timeout of its client instead, or use an engine with leases, such as SQLite, PostgreSQL or JetStream"
	case s.maxDepth > 0:
		return "WithMaxDepth: it has no index to count with", adviceInspector
	case s.fairByKey:
		return "WithFairByKey: it has no index of keys", adviceByKey
	}
	for i, l := range s.layers {
		if l.MaxConcurrent > 0 || l.Rate > 0 {
			return fmt.Sprintf("the limits of layer %d: its layers come with the new messages", i+1), adviceOtherEngine
		}
	}
	return "", ""
}

// withoutAbilities removes the options that an engine may not support: each call of a
// queue that lacks an ability returns an error.
func (s *queueSettings) withoutAbilities() {
	s.lease = 0
	s.maxDepth = 0
	s.fairByKey = false
	s.ordered = false
}

// failingSource is the source of a queue whose engine lacks an ability.
type failingSource[T any] struct {
	err   error     // of each Receive
	first Source[T] // closed by Close; or nil
}

// Receive implements [Source].
func (s failingSource[T]) Receive(context.Context, int) ([]message.Message[T], error) {
	return nil, s.err
}

// Close implements [Source].
func (s failingSource[T]) Close(ctx context.Context) error {
	if s.first == nil {
		return nil
	}
	return s.first.Close(ctx)
}
