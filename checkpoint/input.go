package checkpoint

import (
	"context"
)

// Input provides a [Source] with elements, and with positions to resume from. A single
// goroutine uses it.
//
// While Next blocks, the source cannot send barriers. So an input that may be idle should
// be a [Waiter], too.
type Input[T any] interface {
	// Next returns the next element, and after the last the zero value and io.EOF itself.
	// Any other error fails the pipeline, even if it wraps io.EOF: a lost connection is
	// not the end of the input.
	Next() (T, error)
	// Position returns the position after the last element that Next returned, in the
	// input's own encoding. It is stored in checkpoints. The source copies it: the next
	// call may reuse its memory.
	Position() []byte
	// Seek makes Next continue at a position that Position has returned, perhaps in an
	// earlier process. It is called before the first Next, if at all.
	Seek(position []byte) error
	// Close is called once, last.
	Close() error
}

// Waiter is implemented by an [Input] that may be idle: a channel, a socket, a topic of
// Kafka. The source waits in Wait, so that it can send barriers meanwhile and stops at
// once when the run ends. An input that wraps another passes Wait on to it.
//
// An input over a polling client keeps the polled records, and moves its position as Next
// returns them:
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
	// other error fails the pipeline. It is called before every Next, and again after an
	// interruption. It does not change Position.
	Wait(ctx context.Context) error
}

// Committer is implemented by an [Input] that commits its position elsewhere, such as
// offsets in Kafka.
type Committer interface {
	// Commit reports that a complete checkpoint covers the elements before position. It
	// is called from the coordinator's goroutine, concurrently with Next. ctx ends some
	// seconds after Close of the coordinator was called. An error is only logged: a later
	// position covers earlier positions, and a restart resumes from the position in the
	// checkpoint.
	Commit(ctx context.Context, position []byte) error
}

// Lagger is implemented by an [Input] that can count its waiting elements, such as a
// partition of a topic.
type Lagger interface {
	// Lag returns how many elements Next has not returned yet, or a negative number if
	// unknown. It is called at any time by any goroutine, even after Close, and returns
	// at once.
	Lag() int64
}
