package delivery

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// checkAbilities returns an error if a message needs an ability that an engine without
// leases and ids lacks.
func (q *Queue[T]) checkAbilities(m *store.Message) error {
	switch {
	case hasLeases(q.engine):
		return nil
	case m.Delay > 0:
		return fmt.Errorf("%w: After: a %T delays messages in layers only; %s", message.ErrRefused, q.engine, adviceOtherEngine)
	case m.Meta.ID != "":
		return fmt.Errorf("%w: ID: a %T does not find a message by its id, and would have it twice; PutAll keeps the id of a message without "+
			"that promise, or %s", message.ErrRefused, q.engine, adviceOtherEngine)
	}
	return nil
}

// settleStored handles the error of a put. If it is a [store.PutError], the engine has
// stored some messages: settleStored settles these, and the messages that the engine can
// never store. It returns nil if all messages are settled.
func settleStored[T any](messages []message.Message[T], err error) error {
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
