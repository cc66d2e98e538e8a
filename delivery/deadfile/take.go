package deadfile

import (
	"context"
	"fmt"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/failed"
)

// Take stores an element that an operator has given up. It returns nil when that is
// durable. The history of the message, if the element is one, comes from ctx
// ([message.MetaFromContext]), and the operator's knowledge of the failure is added to
// it.
//
// The cause is store.UnsafeToRepeat for a call that must not happen twice and may have
// taken effect, store.Permanent for a call that was refused for good (a rejection), and
// else store.Exhausted. An element that was cut off by the end of its operator is not
// taken: it did not fail. An element that can never be taken ([File.Append]) is rejected
// by the operator, if it is a message: its source has the dead letter then. Else it fails
// the run.
//
// An element that is not a message gets a random id, the same each time it is offered.
// Where it may be handed over again, as after a restart from a checkpoint, give it an id
// that is always the same:
//
//	asyncop.WithFailureSink(func(ctx context.Context, failure asyncop.Failure[Order]) error {
//		return dead.Take(message.ContextWithMeta(ctx, message.Meta{ID: failure.Element.Number}), failure)
//	})
func (f *File[T]) Take(ctx context.Context, failure asyncop.Failure[T]) error {
	var router failed.Router[T] // without layers
	to, err := router.Route(ctx, failure, f.clock.Now())
	if err != nil {
		return fmt.Errorf("deadfile: %w", err)
	}
	return f.Append(ctx, Entry[T]{Value: failure.Element, Meta: to.Meta, Cause: to.Cause})
}
