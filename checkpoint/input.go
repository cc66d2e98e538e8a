package checkpoint

import (
	"context"
)

// Input is what a [Source] reads: elements with positions to go back to. It is used by one goroutine.
//
// While Next blocks, no barrier can be sent. So an input that may be idle for a while should be a [Waiter], too.
//
// Package checkpointtest checks an input of your own against these rules.
type Input[T any] interface {
	// Next returns the next element, and after the last one the zero value and io.EOF itself. Any other error fails the
	// pipeline, also one that wraps io.EOF: a connection that was cut is not the end of the input.
	Next() (T, error)
	// Position returns where the element after the last one that Next returned begins, in bytes that only the input
	// understands. It is stored in checkpoints. The source copies it: the next call may reuse its memory.
	Position() []byte
	// Seek makes Next go on at a position that Position has returned, in this process or in an earlier one. It is called
	// before the first Next, if at all.
	Seek(position []byte) error
	// Close is called once, last.
	Close() error
}

// Waiter is implemented by an [Input] that may be idle: a channel, a socket, a topic of Kafka. The source waits in Wait
// instead of in Next, so that it can send barriers meanwhile, and end at once when the run is over. An input around
// another one hands Wait on to it.
//
// An input over a client that polls keeps what it polled, and moves its position as Next hands it out:
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
	// Wait returns nil as soon as Next has something to return at once: an element, the end, or an error. It returns an
	// error that matches ctx.Err() soon after ctx has ended; any other error fails the pipeline. It is called before every
	// Next, and again after it was interrupted. It does not change Position.
	Wait(ctx context.Context) error
}

// Committer is implemented by an [Input] that wants to know what is safe: Kafka offsets, for instance.
type Committer interface {
	// Commit reports that the elements before position are covered by a complete checkpoint. It is called from the
	// coordinator's goroutine, concurrently with Next. ctx ends when the coordinator is being closed and has waited for some
	// seconds. An error is logged, and the run goes on: a later position covers earlier ones, and a restart goes on from the
	// position in the checkpoint.
	Commit(ctx context.Context, position []byte) error
}

// Lagger is implemented by an [Input] that knows how much it has not read yet, such as a partition of a topic.
type Lagger interface {
	// Lag returns how many elements are in the input behind those that Next has returned, as far as the input knows; negative: it does not
	// know. It is called at any time and by any goroutine, also after Close, and returns at once.
	Lag() int64
}
