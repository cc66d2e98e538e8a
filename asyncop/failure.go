package asyncop

import (
	"time"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/internal/lazyerr"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Failure is what the side output ([WithSideOutput], [WithFailureHandler]) receives for an element that was given up.
type Failure[IN any] struct {
	Element      IN
	Err          error         // of the last attempt, a *TimeoutError, ErrRetriesExhausted, or why the operator ended
	Abandoned    bool          // it had not failed: the operator ended, and cut it off; Err is why
	Attempts     int           // begun
	Elapsed      time.Duration // since the element took its slot
	FirstAttempt time.Time     // when its first attempt began; zero if none did
	LastAttempt  time.Time     // when its last attempt began; zero if none did

	// Verdict is why its last outcome was not followed by another attempt: Refused (no retry is left, or the strategy says
	// no), Finishing (the input has ended: see WithDrainRetries), OverBudget, TooManyWaiting, or Failed. It is Final if
	// nobody asked for another attempt, or if the element ended otherwise, such as by its timeout.
	Verdict strategies.Verdict

	// Reason is that of its last outcome, and Reasons are those of the retries that were begun, as far as a reason-aware
	// strategy has a classifier that names them. A rejection ([predicates.NewRejection]) means that the call was refused for
	// good.
	Reason  predicates.Reason
	Reasons predicates.ReasonSet

	// InDoubt tells that an attempt may have taken effect; see [TimeoutError.InDoubt]. Who sends the element again must ask
	// Ambiguous.
	InDoubt bool

	policy idempotence
}

// Ambiguous tells whether the element must not be sent again without a look at what happened: its call must not happen twice,
// and may have taken effect. See [TimeoutError.Ambiguous].
func (f Failure[IN]) Ambiguous() bool { return ambiguous(f.InDoubt, f.policy, f.Element) }

// failureSink is the side output of [WithFailureHandler].
type failureSink[IN any] struct {
	in     chan any
	failed error         // the first, how handle broke; set before done is closed
	done   chan struct{} // closed after the last call
}

var _ streams.Sink = (*failureSink[any])(nil)

// newFailureSink returns a sink that calls handle; broken is told of what breaks in it (law A6).
func newFailureSink[IN any](handle func(Failure[IN]), broken func(error)) *failureSink[IN] {
	s := &failureSink[IN]{in: make(chan any), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		for v := range s.in {
			if err := offLoop(func() error { handle(v.(Failure[IN])); return nil }); err != nil {
				err = lazyerr.Named("asyncop: failure handler", err)
				if s.failed == nil {
					s.failed = err
				}
				broken(err)
			}
		}
	}()
	return s
}

func (s *failureSink[IN]) In() chan<- any   { return s.in }
func (s *failureSink[IN]) AwaitCompletion() { <-s.done }
