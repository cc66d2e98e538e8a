package delivery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/wait"
	"github.com/weirflow/weir/message"
)

// closeWait is how long a source may take to close, and interrupted calls to end. With
// the default of [WithDrain] a worker ends within the 30 s that Kubernetes grants, and 3
// s are left to close its engine.
const closeWait = 3 * time.Second

// Operator is the operator that [Run] drives: an *asyncop.AsyncWaitOperator, or several
// in a row behind the same two methods.
//
// If op has a method CheckRun(ctx context.Context) error, Run calls that first, with its
// own context, and returns the error. If op is an *asyncop.AsyncWaitOperator itself, Run
// receives only as many messages as it has free slots, or expects to become free
// meanwhile, and does not receive in an outage. If only some tenants of its backend are
// down (backend.TenantBreaker), Run does not receive messages with their keys from a
// queue with [WithFairByKey].
type Operator[IN, OUT any] interface {
	// Messages takes messages and yields a message for each result. It ends when input
	// has ended and all messages taken are done. It settles the messages whose results do
	// not reach the body of the loop.
	Messages(input iter.Seq2[message.Message[IN], error]) iter.Seq2[message.Message[OUT], error]

	// Stop with a context that has ended aborts Messages: messages in flight are
	// released.
	Stop(ctx context.Context) error
}

// Run is a worker: it receives messages from source, lets op process them, puts the
// results into sink, and acknowledges each message when sink has returned (law D1). It
// returns when ctx ends, when the source ends, or when source, op or sink fails for good.
//
//	op := asyncop.OrderedWaitWithRetry(charge, 10*time.Second, 100, strategy, asyncop.WithFailureSink(orders.TakeFailure))
//	summary, err := delivery.Run(ctx, orders, op, receipts)
//
// source and sink are a [Queue], or any other [Source] and [Sink]. For a queue Run makes
// a source of its own. Run panics if an argument is nil. It closes source and op when it
// returns. A queue can be used after that.
//
// op must have a failure policy, such as a failure sink. Without one, a message that
// cannot be processed ends each worker that gets it. op must not end with ctx
// (asyncop.WithContext), since it could not drain then. sink must not be the queue of
// source: a result has the id of its message, which is in the queue until the result is
// safe. Run returns an error for these before it begins. docs/choosing.md has a whole
// worker.
//
// # The end
//
// When ctx ends, Run stops receiving, and finishes the messages it has, for up to 20 s
// ([WithDrain]). Messages that are not done then are released, and Run returns nil. In
// any case Run closes the source, which records the settlements. If a call does not end
// even then, such as a Receive from a server that hangs, Run closes the source after
// three more seconds, which may take three seconds as well. If a source cannot record the
// last settlements, for example because a cluster lacks a leader, Run logs that and does
// not return an error: those messages are redelivered.
//
// Calls that run when the time is over get a context that has ended. Its cause
// (context.Cause) matches [asyncop.ErrStopped], and so differs from the cause of a
// timeout. Run returns after they have ended, so that a program can close its engine, and
// the clients that calls use. Run waits for three seconds after it has closed the source,
// but no longer than six seconds after the contexts have ended. If calls that ignore
// their contexts run even then, the error of Run matches [ErrCallsRun], and names the
// messages. This holds for the functions of asyncop.Blocking and asyncop.Batched, and for
// operators of package asyncop. weir does not know the goroutines that an asyncop.Func
// starts.
//
// # Failures
//
// If the source or the sink fails, Run tries again, unless the error is permanent. The
// first wait is 100 ms, each further wait is twice as long, and the longest is 10 s.
//
//   - If Receive fails for five minutes, Run drains, and returns the error. A Receive that
//     fails after more than two and a half minutes was waiting for messages until then,
//     so the five minutes begin again.
//   - If the sink is full ([store.ErrFull]), or refuses every result, all results wait
//     until it takes them. The operator blocks on its results meanwhile, so Run stops
//     receiving. PutAll must return soon after its context has ended.
//   - If the sink refuses some results, only these wait: see below.
//   - If op fails, Run releases its messages in flight, puts its results so far into the
//     sink, and returns the error.
//   - A permanent error ends Run at once, and Run returns it: a missing table, a closed
//     store, a missing PostgreSQL permission. If the source returned it, Run drains. If
//     the sink returned it, Run releases all messages.
//   - When more than half of the last 100 new messages have failed, and so have most of
//     their keys, Run stops receiving: see [WithFloodGuard].
//   - A message that the queue's codec cannot decode is a dead letter at once. It counts
//     as rejected, and as failed for the flood guard.
//
// # Refused results
//
// A PutAll that fails is repeated in portions of 100. If a portion fails, its results are
// put one by one, so that a refused result does not block others (law D4).
//
// A refused result is put again, after the waits above. After ten tries that count, its
// message is rejected. If PutAll returns [message.ErrRefused], the message is rejected at
// once. It ends among the dead letters of its source. There it is unsafe to repeat if its
// call is not idempotent, since the call has succeeded.
//
// A try counts in three cases:
//
//   - The sink has taken other results since the last try.
//   - The sink returns an error like an error that it has returned while it took others.
//   - For an hour the sink has refused results, and there were no others. Then a refusal
//     and an outage look the same.
//
// So an outage of less than an hour rejects results only if its errors are as in the
// second case.
//
// # Purges
//
// A purge also ends the messages that a worker has in flight, if the engine of source
// looks into its queues (store.Inspector): their failures and results are not stored on
// that engine. Run finds a purged message when its call has ended, when its lease is
// renewed, three times a lease, and soon after jobs.Jobs.CancelKey. Then it puts no
// results of the message into any sink, and an operator of package asyncop ends the call:
// the cause of its context is [message.ErrPurged]. Run logs the message and counts it in
// [Summary].Purged: it is not a failure. Results that a sink on another engine has taken
// before stay there. Summary counts a message as HandedOver or Done if the purge was not
// found before its call ended, and the call failed on a queue with [WithOrdered] or
// returned no results.
//
// # Pauses
//
// If the engine of the queue keeps jobs, people can pause it (jobs.Jobs.PauseQueue),
// and hold a key if the queue has [WithFairByKey] (jobs.Jobs.HoldKey): Run stops
// receiving these messages within two seconds, and releases the messages that op has not
// taken. Run reads the orders before it receives its first message; if it cannot read
// them, it receives, and reads them again.
//
// Orders for a queue that is a first source ([Queue.Source]) apply to all messages of the
// worker: its failed messages wait in the layers of the queue around it. A key can be
// held if both queues have WithFairByKey.
//
// # Recovery
//
// When the backend of op recovers from an outage, Run makes messages due that wait in the
// layers of the queue because of this outage, at the rate at which calls may start. This
// needs an engine that keeps records (store.Keeper). docs/ladder.md lists the messages
// that keep their time.
//
// # Jobs
//
// Where the queue of source or sink is on an engine that keeps jobs, Run runs the jobs of
// all queues beside its messages, and reports its state every 20 s: see package jobs. A
// source of your own around the source of a queue must be a [SourceWrapper].
func Run[IN, OUT any](ctx context.Context, source Source[IN], op Operator[IN, OUT], sink Sink[OUT], opts ...RunOption) (summary Summary, err error) {
	guard.RefuseNil("delivery: Run", "context", ctx)
	guard.RefuseNil("delivery: Run", "source", source)
	guard.RefuseNil("delivery: Run", "operator", op)
	guard.RefuseNil("delivery: Run", "sink", sink)
	engines := enginesOf(source, sink)
	w := &worker[IN, OUT]{
		source: source, op: op, sink: sink, runSettings: newRunSettings(opts),
		feed: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	w.close = sync.OnceValue(func() error { return w.closeSource(ctx) })
	w.flood = newFlood(w.floodShare, w.floodWindow)
	w.begun = w.clock.Now()
	w.receiving, w.takeNoMore = context.WithCancelCause(ctx)
	w.working, w.releaseAll = context.WithCancelCause(context.WithoutCancel(ctx))
	w.pausing = newPausing(w.receiving, engines)
	w.monitor.begin(w.status, engines, w.clock)
	w.open()
	defer func() { summary, err = w.end(ctx, err) }() // also if Messages panics, for example because the operator is in use
	if c, ok := op.(checksRun); ok {
		if err := c.CheckRun(ctx); err != nil {
			w.breakOff()
			return summary, fmt.Errorf("delivery: Run: %w", err)
		}
	}
	if err := unsupportedOf(source, sink); err != nil {
		w.breakOff()
		return summary, fmt.Errorf("delivery: Run: %w", err)
	}
	if sameQueue(source, sink) {
		w.breakOff()
		return summary, errors.New("delivery: Run: the sink is the queue of the source: " +
			"a result has the id of its message, which is still in the queue, so it would be lost")
	}
	w.setBatches()
	endJobs := w.startJobs(ctx, engines)
	defer endJobs()
	return summary, w.run(ctx)
}

var (
	errDrained = errors.New("delivery: the worker is draining")
	errAborted = errors.New("delivery: the worker releases its messages")
	errClosing = fmt.Errorf("delivery: the source was not closed within %v", closeWait)
)

// worker is a call of Run.
type worker[IN, OUT any] struct {
	source Source[IN]
	op     Operator[IN, OUT]
	sink   Sink[OUT]
	runSettings
	puts int // limit of results per put; batch is the limit of messages per Receive

	begun      time.Time
	receiving  context.Context // ends when Run stops receiving
	takeNoMore context.CancelCauseFunc
	working    context.Context // of the sink; ends when all is to be released
	releaseAll context.CancelCauseFunc

	awaitSlots func(ctx context.Context) int // nil if the operator does not report its free slots

	// feed is a lock: a channel of capacity 1. input holds it while the operator reads.
	// run takes it at its end, and keeps it, so run ends after input has returned. A
	// later call of input returns at once, because ended is closed.
	feed  chan struct{}
	ended chan struct{} // closed by run when the operator, its input and the sink have ended

	close   func() error              // closes the source, once
	purges  settle.PurgeFinder        // the source; nil if it does not find purged messages
	keys    settle.KeyLimiter         // the source; nil if it is not a KeyLimiter
	held    heldKeys                  // keys that people hold
	buffer  settle.Buffer             // the source; nil if it returns what it takes
	pausing *pausing                  // nil if the source is not a queue of an engine that keeps jobs
	cutAt   atomic.Pointer[time.Time] // when calls were first cut off, or nil

	sourceErr error // written by the input; read after run has returned
	sinkErr   error // written by fill; read after run has returned
	tally
}

// setBatches sets the most messages per Receive and results per put. Without [WithBatch]
// they depend on the slots of the operator, if it is an AsyncWaitOperator itself: an
// operator that embeds one may pass it other messages than Run receives.
func (w *worker[IN, OUT]) setBatches() {
	o, reportsSlots := w.op.(*asyncop.AsyncWaitOperator[IN, OUT])
	if reportsSlots {
		w.awaitSlots = o.AwaitSlots
	}
	switch {
	case w.batch > 0: // WithBatch
		w.puts = w.batch
	case reportsSlots:
		w.batch = maxReceived
		w.puts = int(max(defaultBatch, min(o.Stats().Capacity, maxPuts)))
	default:
		w.batch = defaultBatch
		w.puts = defaultBatch
	}
}

// open prepares the source. A queue becomes a new source of the queue. If that panics,
// the operator is stopped, and the monitor is free again.
func (w *worker[IN, OUT]) open() {
	panics := true
	defer func() {
		if panics {
			w.breakOff()
			w.monitor.release()
		}
	}()
	q, isQueue := w.source.(*Queue[IN])
	if isQueue {
		w.source = q.Source(nil)
	}
	leases, _ := ofSource[settle.LeaseCounter](w.source)
	refusals, _ := ofSource[settle.RefusalCounter](w.source)
	finder, findsPurged := ofSource[settle.PurgeFinder](w.source)
	w.mu.Lock()
	w.leases, w.refusals = leases, refusals
	w.mu.Unlock()
	ender, canEnd := w.op.(endsPurged)
	if findsPurged && canEnd {
		finder.OnPurge(ender.EndPurged)
		w.purges = finder
	}
	buffer, hasBuffer := ofSource[settle.Buffer](w.source)
	if hasBuffer {
		w.buffer = buffer
	}
	rejecter, canReject := ofSource[settle.Rejecter](w.source)
	if canReject {
		rejecter.OnReject(w.noteRejected)
	}
	limiter, canLimit := ofSource[settle.KeyLimiter](w.source)
	if canLimit {
		w.keys = limiter
		w.restrictKeys()
		w.held.canHold = limiter.HoldKeys(nil) // false if the source cannot leave out keys
	}
	panics = false
}

func (w *worker[IN, OUT]) run(ctx context.Context) error {
	results := make(chan message.Message[OUT], w.puts) // from the body of the loop to the sink; closed here
	filled := make(chan struct{})                      // closed when the sink has all results
	watched := make(chan struct{})
	go func() { // ends with w.ended
		defer close(watched)
		w.watch(ctx)
	}()
	go func() { // ends with results
		defer close(filled)
		w.fill(results)
	}()
	defer func() {
		w.takeNoMore(errDrained) // results that wait for the sink have the time of a drain
		close(results)
		<-filled
		w.feed <- struct{}{}
		close(w.ended)
		<-watched
	}()
	for m, err := range w.op.Messages(w.input) {
		if err != nil {
			if w.working.Err() != nil || ctx.Err() != nil && guard.Is(err, context.Cause(ctx)) {
				return nil // the run was interrupted
			}
			return err
		}
		results <- m
	}
	return nil
}

// watch ends the run in steps, each after a time limit: it drains, releases all messages,
// and closes the source.
func (w *worker[IN, OUT]) watch(ctx context.Context) {
	select {
	case <-w.receiving.Done(): // ended with ctx, or after a failure
	case <-w.ended:
		return
	}
	if ctx.Err() != nil {
		w.logger.Info("delivery: the worker stops receiving, and finishes its messages",
			slog.Int("messages", w.unsettled()), slog.Duration("limit", w.drain))
	}
	limit := w.clock.Timer(w.drain)
	defer limit.Stop()
	select {
	case <-limit.C:
		w.breakOff()
	case <-w.working.Done(): // the sink has failed for good
		w.breakOff()
	case <-w.ended:
		return
	}
	// A call that ignores its context, such as a Receive from a server that hangs, ends
	// with the source.
	limit.Stop()
	limit.Reset(closeWait)
	select {
	case <-limit.C:
		_ = w.close() // w.end returns this error
	case <-w.ended:
	}
}

func (w *worker[IN, OUT]) breakOff() {
	now := w.clock.Now()
	w.cutAt.CompareAndSwap(nil, &now)
	w.releaseAll(errAborted)
	_ = w.op.Stop(w.working) // the loop over its results yields this error
}

func (w *worker[IN, OUT]) sinkFailed(err error) {
	if w.working.Err() == nil && guard.IsPermanent(err) {
		w.sinkErr = fmt.Errorf("delivery: the sink has failed for good: %w", err)
		w.takeNoMore(w.sinkErr)
		w.releaseAll(w.sinkErr)
	}
}

// end closes the source. If a worker was asked to end and cannot reach its queue, that is
// not an error: its messages are redelivered when their leases end.
func (w *worker[IN, OUT]) end(ctx context.Context, err error) (Summary, error) {
	w.takeNoMore(errDrained)
	w.releaseAll(errAborted)
	closeErr := w.close()
	if closeErr != nil && ctx.Err() != nil && !guard.IsPermanent(closeErr) {
		w.logger.Warn("delivery: the source could not record the last settlements; those messages are redelivered", slog.Any("error", closeErr))
		closeErr = nil
	}
	elapsed := w.clock.Since(w.begun)
	callsErr := w.awaitCalls()
	s, err := w.sum(elapsed), errors.Join(err, w.sourceErr, w.sinkErr, closeErr, callsErr)
	w.monitor.end(s, err)
	w.logger.Info("delivery: the worker has ended", slog.Any("messages", s))
	return s, err
}

func (w *worker[IN, OUT]) closeSource(ctx context.Context) error {
	closing, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	limit := w.clock.AfterFunc(closeWait, func() { cancel(errClosing) })
	defer limit.Stop()
	return w.source.Close(closing)
}

// sleep returns false if ctx has ended.
func (w *worker[IN, OUT]) sleep(ctx context.Context, d time.Duration) bool {
	return wait.For(ctx, w.clock, d) == nil
}
