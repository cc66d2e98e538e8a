package checkpoint

import (
	"context"
)

// Input provides a [Source] with elements, and with positions to resume from. It is used
// by a single goroutine.
//
// While Next blocks, the source cannot send barriers. So an input that may be idle for a
// while should be a [Waiter], too.
//
// Package checkpointtest checks an input of your own against these rules.
type Input[T any] interface {
	// Next returns the next element, and after the last the zero value and io.EOF itself.
	// Any other error fails the pipeline, even if it wraps io.EOF: a connection that was
	// cut is not the end of the input.
	Next() (T, error)
	// Position returns the position after the last element that Next returned, in bytes
	// that only the input understands. It is stored in checkpoints. The source copies it:
	// the next call may reuse its memory.
	Position() []byte
	// Seek makes Next continue at a position that Position has returned, in this process
	// or in an earlier one. It is called before the first Next, if at all.
	Seek(position []byte) error
	// Close is called once, last.
	Close() error
}

// Waiter is implemented by an [Input] that may be idle: a channel, a socket, a topic of
// Kafka. The source waits in Wait instead of in Next, so that it can send barriers
// meanwhile, and stops at once when the run ends. An input that wraps another input
// passes Wait on to it.
//
// An input over a client that polls keeps the polled records, and moves its position as
// Next returns them:
//
//	func (in *topic) Wait(ctx context.Context) (err error) {
//		for len(in.polled) == 0 && err == nil {
//			in.polled, err = in.client.Poll(ctx)
//		}
//		return err
//	}
//
//	func (in *topic) Next() (r Record, err error) {
//		r, in.polled = in.polled[0], in.polled[1:]
//		in.offsets[r.Partition] = r.Offset + 1
//		return r, nil
//	}
type Waiter interface {
	// Wait returns nil as soon as Next can return at once: with an element, the end, or
	// an error. It returns an error that matches ctx.Err() soon after ctx has ended; any
	// other error fails the pipeline. It is called before every Next, and again after it
	// was interrupted. It does not change Position.
	Wait(ctx context.Context) error
}

// Committer is implemented by an [Input] that commits its position elsewhere, such as
// offsets in Kafka.
type Committer interface {
	// Commit reports that the elements before position are covered by a complete
	// checkpoint. It is called from the coordinator's goroutine, concurrently with Next.
	// ctx ends when the coordinator is being closed and has waited for some seconds. An
	// error is logged, and the run continues: a later position covers earlier positions,
	// and a restart resumes from the position in the checkpoint.
	Commit(ctx context.Context, position []byte) error
}

// Lagger is implemented by an [Input] that can count the elements waiting in it, such as
// a partition of a topic.
type Lagger interface {
	// Lag returns how many elements of the input Next has not returned yet, or a negative
	// number if that is unknown. It is called at any time by any goroutine, even after
	// Close, and returns at once.
	Lag() int64
}
