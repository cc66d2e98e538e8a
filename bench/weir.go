package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/timers"
)

// weirTimeout and retryDelay are armed in every weir row by default.
const (
	weirTimeout = 5 * time.Second
	retryDelay  = 100 * time.Millisecond
)

func newOperator[T any](
	c Config, ordered bool, fn asyncop.AsyncFunction[T, T], timeout time.Duration, capacity int,
	strategy strategies.Retry[T], opts ...asyncop.Option,
) *asyncop.AsyncWaitOperator[T, T] {
	opts = append([]asyncop.Option{asyncop.WithBuffer(c.buffer())}, opts...)
	if ordered {
		return asyncop.OrderedWaitWithRetry(fn, timeout, capacity, strategy, opts...)
	}
	return asyncop.UnorderedWaitWithRetry(fn, timeout, capacity, strategy, opts...)
}

func opStages[T any](op *asyncop.AsyncWaitOperator[T, T]) stages {
	return oneStage(op).andThenErr(op.Wait)
}

// built returns an operator, and a function to call after its end, or nil.
type built[T any] func() (*asyncop.AsyncWaitOperator[T, T], func())

// weirRows returns an operator in a go-streams pipeline and, as impl-results, with
// Results.
func weirRows[T element](impl string, p pipeline, build built[T]) []Row {
	return []Row{
		flowRow(impl, Weir, p, func() stages {
			op, end := build()
			st := opStages(op)
			if end != nil {
				st = st.andThen(end)
			}
			return st
		}),
		resultsRow(impl+"-results", p, build),
	}
}

// resultsRow runs an operator with Results, without go-streams.
func resultsRow[T element](impl string, p pipeline, build built[T]) Row {
	return Row{Impl: impl, Kind: Weir, Run: func(m *Meter, n int) error {
		q := p
		q.elems = n
		q.prepare()
		m.Start()
		err := rangeOver(&q, build)
		m.Stop()
		return cmp.Or(err, q.checkCalls())
	}}
}

// chainedRow runs an operator on the goroutine of the loop over its results.
func chainedRow[T element](impl string, p pipeline, build built[T]) Row {
	return Row{Impl: impl, Kind: Weir, Run: func(m *Meter, n int) error {
		q := p
		q.elems = n
		q.prepare()
		m.Start()
		op, end := build()
		i := 0
		err := check(&q, end, op.ResultsOf(func() (e T, ok bool) {
			if i == q.elems {
				return e, false
			}
			i++
			return elementAt[T](&q, i-1), true
		}))
		m.Stop()
		return cmp.Or(err, q.checkCalls())
	}}
}

// messagesRow runs an operator with Messages, which are acknowledged.
func messagesRow(impl string, p pipeline, build built[*Item]) Row {
	return Row{Impl: impl, Kind: Weir, Run: func(m *Meter, n int) error {
		q := p
		q.elems = n
		q.prepare()
		acked := 0
		settle := func(v message.Settlement) {
			if v.Kind == message.Done {
				acked++ // on the goroutine of the loop below
			}
		}
		c := q.checker()
		m.Start()
		op, _ := build()
		for e, err := range op.Messages(func(yield func(message.Message[*Item], error) bool) {
			for i := range q.elems {
				if !yield(message.New(elementAt[*Item](&q, i), nil, settle), nil) {
					return
				}
			}
		}) {
			if err != nil {
				return err
			}
			c.Saw(e.Value.Seq)
			e.Ack()
		}
		m.Stop()
		if acked != n {
			return fmt.Errorf("%d of %d messages were acknowledged", acked, n)
		}
		return cmp.Or(c.Err(), q.checkCalls())
	}}
}

type idle struct{}

func (idle) Accepted(context.Context, any, bool) context.Context { return nil }
func (idle) AttemptStarted(context.Context, int) context.Context { return nil }
func (idle) AttemptEnded(context.Context, observe.Outcome)       {}
func (idle) Ended(context.Context, observe.Ending)               {}

type element interface{ *Item | Value }

func rangeOver[T element](p *pipeline, build built[T]) error {
	op, end := build()
	input := func(yield func(T) bool) {
		for i := range p.elems {
			if !yield(elementAt[T](p, i)) {
				return
			}
		}
	}
	return check(p, end, op.Results(input))
}

func check[T element](p *pipeline, end func(), results iter.Seq2[T, error]) error {
	c := p.checker()
	for e, err := range results {
		if err != nil {
			return err
		}
		c.Saw(seqOf(e))
	}
	if end != nil {
		end()
	}
	return c.Err()
}

func elementAt[T element](p *pipeline, i int) (e T) {
	switch e := any(&e).(type) {
	case **Item:
		*e = &p.items[i]
	case *Value:
		*e = Value{firstValue + i}
	}
	return e
}

func seqOf[T element](e T) int {
	switch e := any(&e).(type) {
	case **Item:
		return (*e).Seq
	case *Value:
		return e.Seq - firstValue
	}
	panic("unreachable")
}

func (st stages) andThenErr(err func() error) stages {
	st.err = err
	return st
}

// fixedDelay retries empty results and errors.
func fixedDelay[T any](delay time.Duration) strategies.Retry[T] {
	return strategies.FixedDelay[T](maxRetries, delay).
		RetryIfResult(predicates.EmptyResult).
		RetryIfException(predicates.HasException)
}

var unavailable = predicates.NewReason("UNAVAILABLE", true, false)

// reasonAware retries like fixedDelay, but through a classifier and reasons.
func reasonAware(delay time.Duration) strategies.Retry[*Item] {
	return strategies.ReasonAware(
		predicates.Classifiers(
			predicates.ByException[*Item](predicates.HasException, unavailable),
			predicates.ByResult(predicates.EmptyResult[*Item], unavailable)),
		strategies.BestEffort[*Item]().WithBackoff(func(int) time.Duration { return delay }))
}

// ---- W1

const w1Capacity = 1_000

func atOnce(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
	it.Calls++
	result.Complete(it)
	return nil
}

func weirW1(c Config, p pipeline) []Row {
	p.calls = once
	armed := func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
		return newOperator(c, p.ordered, asyncop.Func(atOnce), weirTimeout, w1Capacity, fixedDelay[*Item](retryDelay)), nil
	}
	bare := func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) { // neither timeout nor retry
		return newOperator(c, p.ordered, asyncop.Func(atOnce), 0, w1Capacity, strategies.NoRetry[*Item]()), nil
	}
	rows := append(weirRows("weir", p, armed), chainedRow("weir-chained", p, armed))
	rows = append(rows, weirRows("weir-bare", p, bare)...)
	observed := func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
		return newOperator(c, p.ordered, asyncop.Func(atOnce), weirTimeout, w1Capacity, fixedDelay[*Item](retryDelay),
			asyncop.WithObserver(idle{})), nil
	}
	return append(rows, chainedRow("weir-bare-chained", p, bare), resultsRow("weir-observed-results", p, observed),
		messagesRow("weir-messages-results", p, armed),
		flowRow("weir-reasons", Weir, p, func() stages {
			return opStages(newOperator(c, p.ordered, asyncop.Func(atOnce), weirTimeout, w1Capacity, reasonAware(retryDelay)))
		}))
}

func weirW1Value(c Config, p pipeline) []Row {
	fn := asyncop.Func(func(_ context.Context, v Value, result asyncop.ResultFuture[Value]) error {
		result.Complete(v)
		return nil
	})
	return weirRows("weir", p, func() (*asyncop.AsyncWaitOperator[Value, Value], func()) {
		return newOperator(c, p.ordered, fn, weirTimeout, w1Capacity, fixedDelay[Value](retryDelay)), nil
	})
}

// ---- W1b

func countCtx(_ context.Context, it *Item) (*Item, error) { return count(it) }

func weirW1b(c Config, p pipeline, atOnce int) []Row {
	build := func(capacity int) built[*Item] {
		return func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
			return newOperator(c, p.ordered, asyncop.Blocking(countCtx), weirTimeout, capacity,
				fixedDelay[*Item](retryDelay), asyncop.WithMaxConcurrentCalls(atOnce)), nil
		}
	}
	// The peers have as many slots as calls. Weir can have more.
	return append(weirRows("weir", p, build(atOnce)), weirRows("weir-capacity-1000", p, build(1_000))...)
}

// ---- W2

func weirW2Sleep(c Config, p pipeline, inFlight int, d time.Duration) []Row {
	fn := asyncop.Blocking(func(_ context.Context, it *Item) (*Item, error) {
		it.Calls++
		time.Sleep(d)
		return it, nil
	})
	build := func(opts ...asyncop.Option) *asyncop.AsyncWaitOperator[*Item, *Item] {
		return newOperator(c, p.ordered, fn, weirTimeout, inFlight, fixedDelay[*Item](retryDelay), opts...)
	}
	rows := weirRows("weir", p, func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) { return build(), nil })
	if inFlight < 10_000 {
		return rows
	}
	// A larger buffer does not help the peers, see the README.
	return append(rows, flowRow("weir-buffer-1024", Weir, p, func() stages {
		return opStages(build(asyncop.WithBuffer(1024)))
	}))
}

func weirW2Callback(c Config, p pipeline, inFlight int, d time.Duration) []Row {
	return weirRows("weir", p, func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
		b := newBackend(d, func(it *Item, result asyncop.ResultFuture[*Item]) { result.Complete(it) })
		fn := asyncop.Func(func(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
			it.Calls++
			b.call(it, result)
			return nil
		})
		return newOperator(c, p.ordered, fn, weirTimeout, inFlight, fixedDelay[*Item](retryDelay)), b.close
	})
}

// ---- W17

func weirW17(c Config, p pipeline, capacity int, d time.Duration) []Row {
	build := func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
		b := newBackend(d, func(it *Item, result asyncop.ResultFuture[*Item]) { result.Complete(it) })
		fn := asyncop.Func(func(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
			it.Calls++
			if it.Seq%missEvery == 0 {
				b.call(it, result)
			} else {
				result.Complete(it)
			}
			return nil
		})
		return newOperator(c, p.ordered, fn, weirTimeout, capacity, fixedDelay[*Item](retryDelay)), b.close
	}
	return append(weirRows("weir", p, build), chainedRow("weir-chained", p, build))
}

// ---- W3, W3b
//
// WithDrainRetries is set here and in W7, because the peers also wait for retries at the
// end of the input. By default weir then tries elements in back-off once more at once.

func weirW3(c Config, p pipeline, atOnce int, delay time.Duration, faulty call) []Row {
	op := func(s strategies.Retry[*Item]) *asyncop.AsyncWaitOperator[*Item, *Item] {
		return newOperator(c, p.ordered, blocking(faulty), weirTimeout, manySlots, s,
			asyncop.WithMaxConcurrentCalls(atOnce), asyncop.WithDrainRetries())
	}
	rows := weirRows("weir", p, func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
		return op(fixedDelay[*Item](delay)), nil
	})
	return append(rows, flowRow("weir-reasons", Weir, p, func() stages { return opStages(op(reasonAware(delay))) }))
}

// weirEqualCapacity has as many slots as calls, like peers whose waiting elements hold a
// worker.
func weirEqualCapacity(c Config, p pipeline, atOnce int, delay time.Duration, faulty call) Row {
	return flowRow(fmt.Sprintf("weir-capacity-%d", atOnce), Weir, p, func() stages {
		return opStages(newOperator(c, p.ordered, blocking(faulty), weirTimeout, atOnce, fixedDelay[*Item](delay),
			asyncop.WithDrainRetries()))
	})
}

func blocking(fn call) asyncop.AsyncFunction[*Item, *Item] {
	return asyncop.Blocking(func(_ context.Context, it *Item) (*Item, error) { return fn(it) })
}

// ---- W4

// spreadStrategy gives every element its own back-off, to spread due times as in the
// peers. The operator's loop calls predicate and strategy in sequence, so the strategy
// knows its element from the predicate.
type spreadStrategy struct {
	p     *parking
	start int64
	last  *Item // owned by the operator's loop
}

func (s *spreadStrategy) CanRetry(attempts int) bool { return attempts <= maxRetries }

func (s *spreadStrategy) BackoffTime(int) time.Duration {
	return max(0, s.p.delay(s.last.Seq, s.start, now()))
}

func (s *spreadStrategy) RetryPredicate() predicates.AsyncRetryPredicate[*Item] {
	return predicates.RetryIf[*Item](nil, func(err error) bool {
		e, ok := errors.AsType[unavailableError](err)
		s.last = e.it
		return ok
	})
}

func weirW4(c Config, ordered bool) func(m *Meter, p *parking) error {
	return func(m *Meter, p *parking) error {
		n := len(p.items)
		strategy := &spreadStrategy{p: p}
		fn := asyncop.Func(func(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
			it.Calls++
			if it.Calls == 1 {
				return unavailableError{it}
			}
			p.woken(it)
			result.Complete(it)
			return nil
		})
		pipe := pipeline{elems: n, items: p.items, ordered: ordered, calls: func(int) int32 { return 2 }, ends: c.Ends}
		pipe.prepare()
		fed := make(chan struct{})
		pipe.fed = func() { // the input ends only after all were called again
			close(fed)
			<-p.all
		}
		done := make(chan error, 1)
		weighed := p.weigh(m, func(start int64) error {
			strategy.start = start
			op := newOperator(c, ordered, fn, time.Hour, n, strategies.Retry[*Item](strategy))
			go func() { done <- pipe.run(opStages(op)) }()
			<-fed
			return await("all elements wait", func() bool {
				return op.Stats().WaitingForRetry == int64(n) || now() > start+int64(p.base) // weigh reports the second case
			})
		})
		ended := <-done
		p.report(m)
		return cmp.Or(weighed, ended, pipe.checkCalls())
	}
}

func await(what string, ok func() bool) error {
	for end := now() + int64(time.Minute); !ok(); {
		if now() > end {
			return fmt.Errorf("waited for a minute until %s", what)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// ---- W5

// weirW5Capacity keeps half the capacity in flight: each call completes the element
// capacity/2 before it, the last call all.
func weirW5Capacity(c Config, p pipeline, capacity int) []Row {
	return []Row{{Impl: fmt.Sprintf("weir-capacity-%d", capacity), Kind: Weir, Run: func(m *Meter, n int) error {
		type pending struct {
			it     *Item
			result asyncop.ResultFuture[*Item]
		}
		q := p
		q.elems = n
		return q.measure(m, func() stages {
			ring := make([]pending, max(1, capacity/2))
			fn := asyncop.Func(func(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
				it.Calls++
				entry := &ring[it.Seq%len(ring)]
				oldest := *entry
				*entry = pending{it, result}
				if oldest.it != nil {
					oldest.result.Complete(oldest.it)
				}
				if it.Seq == n-1 {
					for i := range ring {
						if r := ring[(it.Seq+1+i)%len(ring)]; r.it != nil {
							r.result.Complete(r.it)
						}
					}
				}
				return nil
			})
			return opStages(newOperator(c, p.ordered, fn, time.Minute, capacity, fixedDelay[*Item](retryDelay)))
		})
	}}}
}

// weirW5Waiting measures elements that complete at once while others wait for a retry.
func weirW5Waiting(c Config, waiting int) []Row {
	return []Row{{Impl: fmt.Sprintf("weir-waiting-%d", waiting), Kind: Weir, Run: func(m *Meter, n int) error {
		fn := asyncop.Func(func(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
			it.Calls++
			if it.Seq < waiting && it.Calls == 1 {
				return errUnavailable
			}
			result.Complete(it)
			return nil
		})
		op := newOperator(c, false, fn, time.Hour, waiting+w1Capacity, fixedDelay[*Item](longDelay))
		var parked error
		quick := 0
		pipe := pipeline{elems: waiting + n, ends: c.Ends}
		pipe.calls = func(seq int) int32 {
			if seq < waiting {
				return 2
			}
			return 1
		}
		pipe.each = func(seq int) {
			if seq == waiting { // the interval starts once the others wait
				parked = await("all elements wait", func() bool { return op.Stats().WaitingForRetry == int64(waiting) })
				m.Start()
			}
		}
		measured := make(chan struct{})
		pipe.fed = func() { <-measured } // and ends when all others have arrived
		pipe.received = func(int) {
			if quick++; quick == n {
				m.Stop()
				close(measured)
			}
		}
		pipe.prepare()
		if err := pipe.run(opStages(op)); err != nil {
			return err
		}
		if parked != nil {
			return parked
		}
		return pipe.checkCalls()
	}}}
}

// ---- W6

func weirW6ArmCancel(pending int) Row {
	return Row{Impl: "weir", Kind: Weir, Run: func(m *Meter, n int) error {
		service := timers.NewService[int](clock.New(), func() {})
		defer service.Stop()
		random := newRandom()
		waiting := make([]timers.Timer[int], pending)
		for i := range waiting {
			service.Arm(&waiting[i], service.Now()+pendingDelay(random))
		}
		var t timers.Timer[int]
		m.Start()
		for range n {
			service.Arm(&t, service.Now()+pendingDelay(random))
			service.Schedule()
			if !service.Cancel(&t) {
				return errFiredEarly
			}
		}
		m.Stop()
		return nil
	}}
}

func weirW6Fire(m *Meter, n int, base, spread time.Duration) error {
	wake := make(chan struct{}, 1)
	service := timers.NewService[int64](clock.New(), func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer service.Stop()
	late := make([]int64, 0, n)
	waiting := make([]timers.Timer[int64], n) // the value is the due time
	random := rand.New(rand.NewPCG(1, 2))
	m.Start()
	start := now()
	for i := range waiting {
		t := &waiting[i]
		t.Value = start + int64(base) + random.Int64N(int64(spread))
		d := time.Duration(t.Value - now()) // before the service reads the clock, else the timer might seem early
		service.Arm(t, service.Now()+d)
	}
	if now() > start+int64(base) {
		return fmt.Errorf("arming %d timers took more than %v", n, base)
	}
	for len(late) < n {
		for t := service.PopDue(service.Now()); t != nil; t = service.PopDue(service.Now()) {
			late = append(late, now()-t.Value)
		}
		if service.Schedule() && len(late) < n {
			<-wake
		}
	}
	m.Stop()
	reportLateness(m, late)
	return nil
}

// ---- W7

func weirW7Slow(c Config, s slowConsumer) []Row {
	return []Row{
		s.row("weir", Weir, func(fn call) stages {
			f := asyncop.Func(func(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
				it, err := fn(it)
				if err == nil {
					result.Complete(it)
				}
				return err
			})
			return opStages(newOperator(c, s.ordered, f, time.Minute, s.capacity, fixedDelay[*Item](s.delay),
				asyncop.WithDrainRetries()))
		}),
		s.row("weir-blocking", Weir, func(fn call) stages {
			return opStages(newOperator(c, s.ordered, blocking(fn), time.Minute, s.capacity, fixedDelay[*Item](s.delay),
				asyncop.WithDrainRetries()))
		}),
	}
}

func weirW7Drain(c Config, ordered bool) []Row {
	return []Row{{Impl: "weir", Kind: Weir, Run: func(m *Meter, n int) error {
		var calls atomic.Int64
		fn := asyncop.Func(func(_ context.Context, it *Item, result asyncop.ResultFuture[*Item]) error {
			it.Calls++
			calls.Add(1)
			if it.Calls == 1 {
				return errUnavailable
			}
			result.Complete(it)
			return nil
		})
		// One slot more than elements, because the operator notices the end of the input
		// only with a free slot.
		op := newOperator(c, ordered, fn, time.Hour, n+1, fixedDelay[*Item](longDelay))
		pipe := pipeline{elems: n, ends: c.Ends, ordered: ordered, calls: func(int) int32 { return 2 }}
		var parked error
		pipe.fed = func() {
			parked = await("all elements wait", func() bool { return op.Stats().WaitingForRetry == int64(n) })
			m.Start()
		}
		pipe.prepare()
		err := pipe.run(opStages(op))
		m.Stop()
		switch {
		case err != nil:
			return err
		case parked != nil:
			return parked
		}
		return pipe.checkCalls()
	}}}
}

// ---- W8

func weirW8(c Config) []weirStage {
	return []weirStage{
		{"weir", func() stages {
			return opStages(newOperator(c, true, asyncop.Func(atOnce), weirTimeout, w1Capacity,
				fixedDelay[*Item](retryDelay)))
		}},
		{"weir-blocking", func() stages {
			return opStages(newOperator(c, true, asyncop.Blocking(countCtx), weirTimeout, 64, fixedDelay[*Item](retryDelay)))
		}},
	}
}

// ---- W9

func weirW9(c Config, p pipeline, atOnce int, fn call) []Row {
	build := func() (*asyncop.AsyncWaitOperator[*Item, *Item], func()) {
		return newOperator(c, p.ordered, blocking(fn), weirTimeout, atOnce, fixedDelay[*Item](retryDelay)), nil
	}
	return []Row{resultsRow("weir-results", p, build), chainedRow("weir-chained", p, build)}
}
