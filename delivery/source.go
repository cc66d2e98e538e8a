package delivery

import (
	"context"

	"github.com/weirflow/weir/message"
)

// Source delivers messages: from a queue, a topic, a table. Package deliverytest has a
// suite for sources of your own. A source around another source is a [SourceWrapper].
//
// A message that Receive has returned belongs to the receiver until it is settled. Its
// source
//
//   - extends the lease of the message meanwhile, if it has one, and does not return it a
//     second time (law D2)
//   - forgets it when it is done or was handed over, and forgets it or keeps it apart
//     when it was rejected
//   - returns it again when it was released or has failed, with the same id, and not
//     before the delay is over (law D3)
//   - takes the settlement at once, from any goroutine, and records it on a goroutine of
//     its own. If that fails, the message is delivered again (law D1), and the next
//     Receive or Close returns the error
type Source[T any] interface {
	// Receive returns between 1 and n messages; n ≥ 1. It waits for the first message
	// only. A single goroutine at a time calls it.
	//
	// With an error it does not return messages. The error is io.EOF itself if the source
	// has ended and all messages are settled. If ctx ends, the error is its cause, and
	// messages are not lost. Any other error is a failure, after which Receive may be
	// called again, or reports that the source is closed.
	Receive(ctx context.Context, n int) ([]message.Message[T], error)

	// Close ends the source. It returns when all settlements are recorded, or when ctx
	// ends. Messages that are not settled are released: another source delivers them
	// again. Settling them after Close has no effect. A Receive that waits returns with
	// an error. Close may be called from any goroutine, and again.
	Close(ctx context.Context) error
}

// Sink takes the values of messages.
type Sink[T any] interface {
	// PutAll returns nil when all the values are safe; the caller then acknowledges the
	// messages (law D1). After an error the caller puts them again, or releases them. A
	// sink that has made some of them safe acknowledges those before it returns the
	// error: the first settlement counts. It rejects a message that it can never take, or
	// returns an error that matches [message.ErrRefused] when that message is put alone.
	// If such a message lacks an acknowledgement, PutAll fails instead.
	PutAll(ctx context.Context, messages []message.Message[T]) error
}
