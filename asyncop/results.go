package asyncop

import (
	"context"
	"errors"
	"iter"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// Results drives the operator without channels and without boxing: it feeds the operator
// the elements of input, and yields the results in the operator's order. If the operator
// fails or is cancelled, the last pair is a zero value and Err; if Stop ended it before
// the end of the input, a zero value and [ErrStopped].
//
//	for out, err := range op.Results(slices.Values(elements)) {
//		if err != nil {
//			return err
//		}
//		…
//	}
//
// The input is iterated on a goroutine of its own, which may run ahead of the operator by
// the buffer ([WithBuffer]), by at least one element. A panic of the input fails the
// operator. Elements must not be changed after they were yielded. While the body runs,
// results hold their slots, and timers fire.
//
// A break out of the loop cancels the operator with [ErrStopped]. Done is closed at the
// end of the loop. Only an input that waits ends later, with its next element: see
// [WithUpstreamCancel]. Results in the buffer are dropped, although Stats counts them as
// emitted.
//
// When the input ends, retries continue, up to the timeout of each element. A flow is
// different: see [WithDrainRetries].
//
// An operator has a single loop over its results, in place of In, Out, Via and To.
// Results panics if one of them was used, if it was ranged over before, and with
// [WithCheckpoints]. A [Watermark] in the input is an element like any other.
//
// For an input with errors, such as the results of another operator, use
// [AsyncWaitOperator.ResultsFrom].
func (op *AsyncWaitOperator[IN, OUT]) Results(input iter.Seq[IN]) iter.Seq2[OUT, error] {
	guard.RefuseNil("asyncop: Results", "input", input)
	return op.results("Results", func(put func(IN) bool) error { input(put); return nil })
}

// ResultsFrom is [AsyncWaitOperator.Results] for an input with errors. So operators can
// be put in a row:
//
//	for row, err := range enrich.ResultsFrom(lookup.Results(slices.Values(keys))) {
//
// The first error ends the input, without its element. Elements accepted before are
// finished. Then the operator fails: Err wraps the error of the input.
func (op *AsyncWaitOperator[IN, OUT]) ResultsFrom(input iter.Seq2[IN, error]) iter.Seq2[OUT, error] {
	guard.RefuseNil("asyncop: ResultsFrom", "input", input)
	return op.results("ResultsFrom", func(put func(IN) bool) error { return putAll(input, put) })
}

func putAll[T any](input iter.Seq2[T, error], put func(T) bool) error {
	for v, err := range input {
		if err != nil {
			return err
		}
		if !put(v) {
			return nil
		}
	}
	return nil
}

// Messages is [AsyncWaitOperator.ResultsFrom] for messages: it takes messages and yields
// a message for each result. The function, strategies, predicates and handlers receive
// values. [message.MetaFromContext] returns the history of a call's message.
//
//	for m, err := range op.Messages(received) {
//		if err != nil {
//			return err
//		}
//		…
//		m.Ack() // when what was made of it is safe
//	}
//
// A single result takes the place of its message. Several results are parts of it
// ([message.Split]). The body settles them. The operator settles the other messages:
//
//   - done: a message that ended without a result
//   - handed over: a message that was dropped ([WithDropOnFailure]), or was taken by the
//     failure sink ([WithFailureSink])
//   - failed, to be redelivered: a message that failed the operator
//   - released, to be redelivered: a message that was in flight at the end of the
//     operator, came too late, or waited in vain for its backend; a message with a result
//     that had not reached the body when the loop ended, or for which the body panicked
//
// A message that the input has not yielded by the end of the loop is not settled: end the
// input, and close its source, as in docs/messages.md.
func (op *AsyncWaitOperator[IN, OUT]) Messages(input iter.Seq2[message.Message[IN], error]) iter.Seq2[message.Message[OUT], error] {
	guard.RefuseNil("asyncop: Messages", "input", input)
	op.mustHaveNoCheckpoints("Messages")
	return func(yield func(message.Message[OUT], error) bool) {
		op.use("Messages", byLoop)
		op.driver.Results(drive.Range[IN, OUT]{
			Iterate: func(put func(IN, call.Message) bool) error {
				return putAll(input, func(m message.Message[IN]) bool { return put(m.Value, message.With(m, struct{}{})) })
			},
			Yield:    func(v OUT, m call.Message, err error) bool { return yield(message.With(m, v), err) },
			Messages: true,
		})
	}
}

// AwaitSlots waits until a slot is free, and returns how many messages the input of
// [AsyncWaitOperator.Messages] may take, or 0 if ctx or the operator has ended. The
// result is the number of free slots plus twice the number that became free between the
// previous call and the first message after it, if enough messages came. The input, such
// as delivery.Run, calls it before it takes messages, so that it keeps no messages that
// cannot be called. It panics unless Messages drives the operator.
func (op *AsyncWaitOperator[IN, OUT]) AwaitSlots(ctx context.Context) int {
	return op.driver.AwaitSlots(ctx)
}

// EndPurged ends the elements whose messages are known to have been purged
// ([message.Delivery].IsPurged): no call starts for them, the contexts of their calls end
// with [message.ErrPurged] as the cause, and they are reported as abandoned. delivery.Run
// calls it. It does not wait.
func (op *AsyncWaitOperator[IN, OUT]) EndPurged() { op.driver.EndPurged() }

// Outliving returns the ids of the messages whose attempts have ended while their
// functions run on. An element that is not a message has the id "". Calls of batches,
// which Stats.Running counts as well, are left out. delivery.Run names them in its error.
func (op *AsyncWaitOperator[IN, OUT]) Outliving() []string { return op.driver.Outliving() }

// Backend returns the backend of [WithBackend], or nil.
func (op *AsyncWaitOperator[IN, OUT]) Backend() Backend { return op.front.backend }

// TenantsAreKeys reports whether the tenant of a message is its key: the backend has
// backend.TenantBreaker, and the operator has neither [Tenant] nor batches.
func (op *AsyncWaitOperator[IN, OUT]) TenantsAreKeys() bool { return op.front.keyIsTenant() }

// CheckRun returns an error if the operator does not fit delivery.Run, which calls it
// with its context: the operator lacks a failure policy, or ends with that context before
// it can be drained.
func (op *AsyncWaitOperator[IN, OUT]) CheckRun(ctx context.Context) error {
	switch done := op.driver.Context.Done(); {
	case op.front.failurePolicy == "":
		return errors.New("asyncop: the operator lacks a failure policy: the first message that cannot be processed would end the worker, be redelivered, " +
			"and end the next worker. Give it WithFailureSink(queue.TakeFailure) of the queue that it reads, or WithDropOnFailure")
	case done != nil && done == ctx.Done():
		return errors.New("asyncop: the operator has the context of the worker (WithContext), so it would end before it is drained: leave the option out, " +
			"or give it a context that does not end with the worker's, such as context.WithoutCancel(ctx)")
	}
	return nil
}

// FromChannel returns the values of a channel, until it is closed, for
// [AsyncWaitOperator.Results]:
//
//	for out, err := range op.Results(asyncop.FromChannel(values)) {
//
// If the loop ends early, later values are not received, and a received value may be
// discarded. The sender must be able to stop, for example by a select with a context that
// [WithUpstreamCancel] cancels. A nil channel never yields.
func FromChannel[T any](values <-chan T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for v := range values {
			if !yield(v) {
				return
			}
		}
	}
}

// FromSlice returns a next function over a slice, for [AsyncWaitOperator.ResultsOf].
func FromSlice[IN any](elements []IN) (next func() (v IN, ok bool)) {
	return func() (v IN, ok bool) {
		ok = len(elements) > 0
		if ok {
			v, elements = elements[0], elements[1:]
		}
		return v, ok
	}
}

// ResultsOf is [AsyncWaitOperator.Results] without another goroutine: the operator runs
// on the goroutine of the loop over its results. It calls next until ok is false. next
// must not wait, because the whole operator would: an input that waits, such as a
// channel, goes through Results.
//
// With short calls it takes about two thirds of the time of Results. But the body of the
// loop should be short: meanwhile calls and retries do not start, timers do not fire, and
// failures are not handed over.
//
//	for out, err := range op.ResultsOf(asyncop.FromSlice(keys)) {
//		if err != nil {
//			return err
//		}
//		…
//	}
//
// Up to 128 elements are taken before the next result is yielded, if there are slots.
//
// When the operator is cancelled, or the context of Stop ends, the operator and the
// contexts of its calls end when the body returns. Then the loop gets Err. Do not call
// Wait or Stop in the body, because they would wait for it: break out of the loop.
//
// A panic or runtime.Goexit of the body or of the input ends the operator with
// [ErrStopped], and then propagates. For other code see [AsyncFunction].
//
// Order, the last pair, retries at the end of the input, and the single loop are as in
// Results. It panics if next is nil.
func (op *AsyncWaitOperator[IN, OUT]) ResultsOf(next func() (v IN, ok bool)) iter.Seq2[OUT, error] {
	guard.RefuseNil("asyncop: ResultsOf", "function", next)
	op.mustHaveNoCheckpoints("ResultsOf")
	return func(yield func(OUT, error) bool) {
		op.use("ResultsOf", byLoop)
		op.driver.Chained(drive.ChainedRange[IN, OUT]{Next: next, Yield: yield})
	}
}

// mustHaveNoCheckpoints panics with checkpoints, whose barriers come through In.
func (op *AsyncWaitOperator[IN, OUT]) mustHaveNoCheckpoints(method string) {
	refuseIf(op.driver.Coordinator != nil, "%s: an operator WithCheckpoints needs a source of barriers: use it as a flow", method)
}

// results drives the operator with the elements that iterate puts.
func (op *AsyncWaitOperator[IN, OUT]) results(
	method string, iterate func(put func(IN) bool) error,
) iter.Seq2[OUT, error] {
	op.mustHaveNoCheckpoints(method)
	return func(yield func(OUT, error) bool) {
		op.use(method, byLoop)
		op.driver.Results(drive.Range[IN, OUT]{
			Iterate: func(put func(IN, call.Message) bool) error {
				return iterate(func(v IN) bool { return put(v, call.Message{}) })
			},
			Yield: func(v OUT, _ call.Message, err error) bool { return yield(v, err) },
		})
	}
}
