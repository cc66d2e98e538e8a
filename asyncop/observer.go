package asyncop

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/predicates"
)

// Observer is called with what happens to the elements of an operator: for metrics, traces, request ids. See [WithObserver].
//
//	Accepted ─▶ AttemptStarted ─▶ AttemptEnded ─▶ AttemptStarted ─▶ AttemptEnded ─▶ Ended
//
// Ended is called once for each element that the operator has received, however it ends (law O1). For an element that came too
// late to be accepted it is the only call.
//
// Calls come one at a time, in order, on the operator's loop, so they must not block. Those of AttemptEnded and Ended come at
// the end of a turn of the loop, some microseconds after the event. Where results go through a buffer ([WithBuffer]), they come
// when at least half of it is free. Completions of attempts that have ended are not reported, only counted ([Stats]).
//
// A panic in Accepted or AttemptStarted fails the attempt with a [*PanicError], as one in the function does; one in the other
// two is logged. A call that takes more than 100 ms is logged. Done waits until the next step (Via, To) has taken the results.
type Observer interface {
	// Accepted is called when element has taken its slot, before its first attempt. restored says that it comes from a
	// checkpoint: then it was accepted before the restart, too.
	//
	// The contexts of all attempts and of handlers of failures have the values of the context that it returns. The end of that
	// context has no effect. ctx has the values of the operator's context ([WithContext]); return it, or nil, to add none.
	Accepted(ctx context.Context, element any, restored bool) context.Context

	// AttemptStarted is called before the call for an attempt, with the context that Accepted has returned. The contexts of the
	// attempt and of those who judge it (classifiers, strategies) have the values of the context that it returns. attempt counts
	// from 1, and goes on after a restart.
	AttemptStarted(ctx context.Context, attempt int) context.Context

	// AttemptEnded is called when it is known what follows, with the context that AttemptStarted has returned.
	AttemptEnded(ctx context.Context, outcome Outcome)

	// Ended is called when the element has ended, with the context that Accepted has returned. For one that was not accepted
	// it has the values of the operator's context.
	Ended(ctx context.Context, ending Ending)
}

// Gate is an [Observer] that may hold the input back: a window of requests, a limit on memory. The operator asks it before it
// takes an element, so back-pressure goes on to the source. It is not asked for elements that are restored from a checkpoint,
// unless a [CheckpointedObserver] has no number for them. Its methods are called on the operator's loop and must not block; a
// panic in one of them ends the operator.
type Gate interface {
	// TryAdmit reports whether another element may come in. It may be asked more often than elements come.
	TryAdmit() bool

	// Notify has f called once, from any goroutine, when TryAdmit may return true again; at once, if it does now.
	Notify(f func())
}

// CheckpointedObserver is an [Observer] with a state that goes into the checkpoints of its operator ([WithCheckpoints]), such
// as exactlyonce.Tracker, which gives requests ids. It gives elements numbers, and a restored element gets its own back. An
// operator has at most one. Without checkpoints these methods are not called.
//
//	Restore ─▶ Restored … ─▶ Accepted … ─▶ Number …, Snapshot 7 ─▶ Accepted … ─▶ Completed 7
//
// After a restart the input behind a checkpoint has to come in the same order. If an operator upstream emits in the order of
// completion, the first barrier ends the run with an error.
//
// A panic in Restore makes the start of the coordinator fail, one in Number or Snapshot aborts the checkpoint, and one in
// Completed ends the run.
type CheckpointedObserver interface {
	Observer

	// Restore is called once, before all others, when the operator is made. state is what Snapshot has returned for the
	// checkpoint that the operator resumes from, and numbers are those of its elements, in the order of the input, without 0
	// and negative ones. At a fresh start both are nil. An error makes the start of the coordinator fail.
	//
	// request asks for a checkpoint soon, and does not wait for it. If that checkpoint fails it is taken again. It may be
	// called from any goroutine: by a [Gate], for instance, that lets nothing in before a checkpoint is complete.
	Restore(state []byte, numbers []int64, request func()) error

	// Restored is called in place of Accepted for an element of a checkpoint, with what Number has returned for it. Restored
	// elements come before others, in the order of the input.
	Restored(ctx context.Context, element any, number int64) context.Context

	// Number returns the number of an element, for the checkpoint that is being taken. ctx is what Accepted or Restored has
	// returned. 0 says that the element is to be taken for a new one after a restart: it waits for the gates again.
	Number(ctx context.Context) int64

	// Snapshot returns the state, which must not be changed afterwards. It is called when the barrier of a checkpoint comes,
	// after Number was called for each element in flight that has a slot. Checkpoints have ascending numbers, and not all
	// complete.
	Snapshot(checkpoint uint64) []byte

	// Completed is called when a checkpoint is stored. It covers those before it that did not complete. It is not called on the
	// operator's loop: it may be called at the same time as other methods, and after the last call of Ended.
	Completed(checkpoint uint64)
}

// checkpointedOf returns the one observer that has a state, or nil.
func checkpointedOf(constructor string, observers []Observer) (found CheckpointedObserver) {
	for _, o := range observers {
		c, ok := o.(CheckpointedObserver)
		switch {
		case !ok:
		case found != nil:
			panic(fmt.Sprintf("asyncop: %s: two observers with a state in checkpoints, a %T and a %T", constructor, found, c))
		default:
			found = c
		}
	}
	return found
}

// Outcome is how an attempt has ended.
type Outcome struct {
	Attempt  int               // its number, from 1
	Results  int               // how many it has completed with
	Err      error             // or its error; context.DeadlineExceeded or Canceled if its element ended without it
	Reason   predicates.Reason // of the outcome, where a reason-aware strategy has a classifier that names it
	Duration time.Duration     // from its begin until the loop knew of its end
	Retry    bool              // another attempt follows
	Delay    time.Duration     // the back-off before that
}

// Ending is how an element has ended.
type Ending struct {
	How      EndKind
	Results  int               // how many were emitted
	Err      error             // why it failed or was cut off
	Reason   predicates.Reason // of its last outcome
	Attempts int               // begun; those before a restart count
	InDoubt  bool              // an attempt may have taken effect although the element was not emitted: see TimeoutError.InDoubt
	Queued   time.Duration     // from its slot to its first attempt, or to its end if there was none
	Total    time.Duration     // from its slot to its end; after a restart, in this run
}

// EndKind is what became of an element.
type EndKind uint8

// How elements end.
const (
	// Emitted: all its results have left. The body of the loop over [AsyncWaitOperator.Results] has come back from them, Via or
	// To have sent them into the next flow, or they were placed in Out.
	Emitted    EndKind = iota
	Empty              // it had no result
	HandedOver         // it has failed, and the failure sink has taken it
	Dropped            // it has failed, and was dropped: WithDropOnFailure
	Failed             // it has failed, and the operator with it
	Abandoned          // the operator has ended before it did
	Kept               // it is in the final checkpoint, and will be called again
	Discarded          // it came after the operator took no more, or results of it were not taken by the end
)

var endKinds = [...]string{"emitted", "empty", "handed over", "dropped", "failed", "abandoned", "kept", "discarded"}

func (k EndKind) String() string {
	if int(k) < len(endKinds) {
		return endKinds[k]
	}
	return fmt.Sprintf("EndKind(%d)", uint8(k))
}

// observer is an Observer as the core calls it.
type observer struct{ Observer }

func (o observer) Accepted(ctx context.Context, element any, restored bool, number int64) context.Context {
	if restored {
		if c, ok := o.Observer.(CheckpointedObserver); ok {
			return c.Restored(ctx, element, number)
		}
	}
	return o.Observer.Accepted(ctx, element, restored)
}

func (o observer) AttemptEnded(ctx context.Context, end core.AttemptEnd) {
	o.Observer.AttemptEnded(ctx, Outcome(end))
}

func (o observer) Ended(ctx context.Context, e core.ElementEnd) {
	o.Observer.Ended(ctx, Ending{
		How: EndKind(e.How), Results: e.Results, Err: e.Err, Reason: e.Reason, Attempts: e.Attempts,
		InDoubt: e.InDoubt, Queued: e.Queued, Total: e.Total,
	})
}
