package delivery

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// elsewhere is where a queue can do what a [store.Consumer] cannot.
const elsewhere = "keep layers and dead letters in a queue on another engine, such as PostgreSQL: its Source takes that of this queue as its first"

// consumes reports whether an engine has no leases.
func consumes(engine store.Engine) bool {
	_, leases := engine.(store.Store)
	return !leases
}

// refuse panics if an engine without leases does not support an option.
func (s *queueSettings) refuse(engine store.Engine, name string) {
	if !consumes(engine) {
		return
	}
	if _, ok := engine.(store.Consumer); !ok {
		panic(fmt.Sprintf("delivery: NewQueue: queue %q: a %T is neither a store.Store, which has leases, nor a store.Consumer", name, engine))
	}
	no := func(option string) {
		panic(fmt.Sprintf("delivery: NewQueue: queue %q: a %T cannot do %s; %s", name, engine, option, elsewhere))
	}
	switch {
	case s.lease > 0:
		no("WithLease: it has no leases, and its client decides when a worker that was killed is noticed")
	case s.maxDepth > 0:
		no("WithMaxDepth: it has no index to count with")
	case s.keepKeyOrder > 0:
		no("WithKeepKeyOrder: it has no index to look with")
	case s.fairByKey:
		no("WithFairByKey: it has no index of keys")
	}
	for i, l := range s.layers {
		if l.MaxConcurrent > 0 || l.Rate > 0 {
			no(fmt.Sprintf("the limits of layer %d: its layers come with the new messages", i+1))
		}
	}
}

// cannot returns an error for what a message asks of an engine without leases and ids.
func (q *Queue[T]) cannot(m *store.Message) error {
	switch {
	case !consumes(q.engine):
		return nil
	case m.Delay > 0:
		return fmt.Errorf("%w: After: a %T delays messages in layers only; %s", message.ErrRefused, q.engine, elsewhere)
	case m.Meta.ID != "":
		return fmt.Errorf("%w: ID: a %T does not find a message by its id, and would have it twice; PutAll keeps the id of a message without "+
			"that promise, or %s", message.ErrRefused, q.engine, elsewhere)
	}
	return nil
}

// partly settles what an engine has stored, or can never store, of messages that it has
// not stored all.
func partly[T any](messages []message.Message[T], err error) error {
	some, ok := errors.AsType[*store.PutError](err)
	if !ok {
		return err
	}
	left := false
	for i, m := range messages {
		switch cause := some.Errs[i]; {
		case cause == nil: // law D1
			m.Ack()
		case errors.Is(cause, message.ErrRefused) && m.Pending(): // law W2
			m.Reject(cause)
		default:
			left = true
		}
	}
	if !left {
		return nil
	}
	return err
}
