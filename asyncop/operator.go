package asyncop

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// Stats are the counts of an operator: see [observe.Stats].
type Stats = observe.Stats

// Watermark is the control element of event time: see [queue.Watermark].
type Watermark = queue.Watermark

// AsyncWaitOperator is an operator as a flow of go-streams. The constructors start it. It
// belongs to one pipeline.
//
//	in  -- 1 -- 2 ---- 3 -- 4 ------ 5 --------
//
//	[ ---------- AsyncFunction, OrderedWait ---- ]
//
//	out ------- 1' - 2' ---- 3' - 4' ---- 5' ---
//
// Elements of the stream are of type IN, a message.Message of an IN, or a [Watermark]. A
// nil is accepted if IN is an interface type. A wrong type fails the pipeline with a
// [*TypeError]. Elements must not be changed after they were sent.
//
// Its methods are safe for concurrent use.
type AsyncWaitOperator[IN, OUT any] struct {
	linked
	driver   *drive.Driver[IN, OUT]
	front    *frontend[IN, OUT]
	in       chan<- any // of the driver
	capacity int
	used     atomic.Uint32 // bits: how it is driven
}

type linked = wiring.Linked // other steps find the operator's node

// The bits of AsyncWaitOperator.used.
const (
	byIn uint32 = 1 << iota
	byOut
	byVia // or To, once; shares the results with earlier receivers from Out
	byLoop
)

// use records a use, and returns the earlier uses. It panics if two uses would each get a
// part of the results.
func (op *AsyncWaitOperator[IN, OUT]) use(method string, by uint32) (before uint32) {
	for {
		before = op.used.Load()
		switch {
		case by == byLoop && before&byLoop != 0:
			panic(fmt.Sprintf("asyncop: %s: the operator has run already, or still runs: make a new operator for each run", method))
		case by == byLoop && before != 0:
			panic(fmt.Sprintf("asyncop: %s: the operator is driven by In, Out, Via or To already", method))
		case before&byLoop != 0:
			panic(fmt.Sprintf("asyncop: %s: the operator is driven by Results", method))
		case before&byVia != 0 && (by == byVia || by == byOut && before&byOut == 0):
			panic(fmt.Sprintf("asyncop: %s: Via or To takes the results already: for several sinks use flow.FanOut", method))
		case before&by != 0 || op.used.CompareAndSwap(before, before|by):
			return before
		}
	}
}

var _ streams.Flow = (*AsyncWaitOperator[any, any])(nil)

// OrderedWait starts an operator that calls fn for every element and emits the results in
// input order.
//
// timeout limits the time of each element from its slot, or from its first attempt
// ([WithTimeoutFromFirstAttempt]). 0 means no limit. A timeout below a millisecond is
// logged as a warning. [WithTimeoutFor] gives elements their own timeouts. capacity
// limits the slots: elements in flight, complete elements that have not left, and
// watermarks.
//
// It panics if
//
//   - fn is nil, timeout is negative, or capacity < 1
//   - fn wraps a function of [HandleFailure] with other types
//   - an option has a function that takes elements or failures of another type
//   - with [WithCheckpoints]: the name or the codec for IN is missing, a codec is for
//     another type, or two observers are a [observe.CheckpointedObserver]
func OrderedWait[IN, OUT any](
	fn AsyncFunction[IN, OUT], timeout time.Duration, capacity int, opts ...Option,
) *AsyncWaitOperator[IN, OUT] {
	return newOperator("OrderedWait", false, fn, timeout, capacity, strategies.NoRetry[OUT](), opts)
}

// UnorderedWait is [OrderedWait] with results in the order of completion. Elements and
// watermarks do not overtake each other.
func UnorderedWait[IN, OUT any](
	fn AsyncFunction[IN, OUT], timeout time.Duration, capacity int, opts ...Option,
) *AsyncWaitOperator[IN, OUT] {
	return newOperator("UnorderedWait", true, fn, timeout, capacity, strategies.NoRetry[OUT](), opts)
}

// OrderedWaitWithRetry is [OrderedWait] with retries: if the outcome of an element
// matches the strategy's predicate, it is called again, after the back-off and as often
// as the strategy allows.
//
// A result that is not retried is emitted, unless [WithExhaustedAsFailure].
//
// A strategy without a predicate never retries, and is logged as a warning, unless it is
// strategies.NoRetry.
//
// strategy is a strategies.AsyncRetryStrategy, or a reason-aware *strategies.Policy.
//
// It panics like [OrderedWait], if strategy is nil or of another type, if timeout is 0
// with a strategy other than strategies.NoRetry, and with [LatencyFirst] if the strategy
// lacks MaxRetries.
func OrderedWaitWithRetry[IN, OUT any](
	fn AsyncFunction[IN, OUT], timeout time.Duration, capacity int,
	strategy strategies.Retry[OUT], opts ...Option,
) *AsyncWaitOperator[IN, OUT] {
	return newOperator("OrderedWaitWithRetry", false, fn, timeout, capacity, strategy, opts)
}

// UnorderedWaitWithRetry is [OrderedWaitWithRetry] with the order of [UnorderedWait].
func UnorderedWaitWithRetry[IN, OUT any](
	fn AsyncFunction[IN, OUT], timeout time.Duration, capacity int,
	strategy strategies.Retry[OUT], opts ...Option,
) *AsyncWaitOperator[IN, OUT] {
	return newOperator("UnorderedWaitWithRetry", true, fn, timeout, capacity, strategy, opts)
}

// maxTimeout is 146 years, so that sums of instants and timeouts do not overflow.
const maxTimeout = time.Duration(1 << 62)

func newOperator[IN, OUT any](
	name string, reorders bool, fn AsyncFunction[IN, OUT], timeout time.Duration, capacity int,
	strategy strategies.Retry[OUT], opts []Option,
) *AsyncWaitOperator[IN, OUT] {
	cfg := newConfig(opts)
	plain := name
	if cfg.name != "" {
		name = fmt.Sprintf("%s %q", name, cfg.name) // panics name the operator
	}
	policy := refuseArguments(name, fn, timeout, capacity, strategy)
	newQueue := queue.NewOrdered[*core.Slot[IN, OUT]]
	if reorders {
		newQueue = queue.NewUnordered[*core.Slot[IN, OUT]]
	}
	s := &frontend[IN, OUT]{config: cfg, fn: fn, policy: policy, batch: batchingOf(fn)}
	s.reorders = reorders
	s.refuse(name, strategy)
	// All arguments are valid. Goroutines start here.
	s.newDriver(min(timeout, maxTimeout), newQueue(capacity))
	s.warnOfArguments(plain, timeout, capacity, strategy)
	op := &AsyncWaitOperator[IN, OUT]{linked: wiring.LinkedBy(s.driver.Node), driver: s.driver, front: s, in: s.driver.In(), capacity: capacity}
	for _, o := range s.observers {
		if a, ok := o.(StatsReader); ok {
			a.Attach(op.Stats, op.Done())
		}
		if a, ok := o.(GroupsReader); ok {
			a.AttachGroups(op.Groups)
		}
	}
	op.driver.Start()
	return op
}

// refuseArguments panics if an argument is invalid, and returns the steps of the
// strategy.
func refuseArguments[IN, OUT any](
	name string, fn AsyncFunction[IN, OUT], timeout time.Duration, capacity int, strategy strategies.Retry[OUT],
) *decision.Steps[OUT] {
	refuseIf(guard.IsNil(fn), "%s: nil function", name)
	refuseIf(guard.IsNil(strategy), "%s: nil strategy", name)
	refuseIf(timeout < 0, "%s: negative timeout: %v", name, timeout)
	refuseIf(isMessage(*new(IN)),
		"%s: the operator takes messages by itself: write its function for the value of a %v", name, reflect.TypeFor[IN]())
	refuseIf(isMessage(*new(OUT)),
		"%s: the operator makes messages by itself: its function returns the value of a %v", name, reflect.TypeFor[OUT]())
	policy := decision.StepsOf(strategies.PolicyOf(strategy)) // reads the predicate once
	refuseIf(timeout == 0 && !policy.NoRetry, "%s: a retry strategy needs a positive timeout, got %v", name, timeout)
	refuseIf(capacity < 1, "%s: capacity must be at least 1, got %d", name, capacity)
	return policy
}

// refuse panics if an option is invalid, lacks another option, or has other types.
func (s *frontend[IN, OUT]) refuse(name string, strategy strategies.Retry[OUT]) {
	refuseIf(s.coordinator != nil && s.name == "", "%s: WithCheckpoints needs WithName: state is found by name", name)
	refuseIf(s.maxWaitingPerKey > 0 && s.keys == nil,
		"%s: WithMaxWaitingPerKey needs KeyOrderedWait: without key order no element waits for its key", name)
	refuseIf(s.backend == nil && (s.cost != nil || s.tenant != nil || s.budget > 0), "%s: Cost, Tenant and Budget need WithBackend", name)
	refuseIf(s.tenant != nil && s.batch != nil, "%s: Tenant with Batched: a batch may be for several", name)
	maxRetries, known := decision.MaxRetriesOf(s.policy.Given)
	refuseIf(s.retryState == LatencyFirst && !known, "%s: LatencyFirst needs a strategy with MaxRetries() int, %T has none", name, strategy)
	refuseIf(s.retryState == LatencyFirst && maxRetries < 0, "%s: LatencyFirst: MaxRetries() of %T is negative: %d", name, strategy, maxRetries)
	s.maxRetries = maxRetries
	if s.coordinator != nil {
		s.findStateful(name)
		s.chooseCodecs(name)
	}
	takes := fmt.Sprintf("does not take %v", reflect.TypeFor[IN]())
	s.sink = typed[func(context.Context, Failure[IN]) error](name, "WithFailureSink", s.failureSink, fmt.Sprintf("does not take %v", reflect.TypeFor[Failure[IN]]()))
	s.timeoutOf = typed[func(IN) time.Duration](name, "WithTimeoutFor", s.timeoutFor, takes)
	s.costOf = typed[func(IN) float64](name, "Cost", s.cost, takes)
	s.tenantOf = typed[func(IN) string](name, "Tenant", s.tenant, takes)
}

// typed returns the value of an option, or nil without one. It panics if the value has
// other types than the operator.
func typed[T any](name, option string, value any, fault string) T {
	t, ok := value.(T)
	refuseIf(value != nil && !ok, "%s: %s: %T %s", name, option, value, fault)
	return t
}

// warnOfArguments logs arguments that are probably a mistake.
func (s *frontend[IN, OUT]) warnOfArguments(name string, timeout time.Duration, capacity int, strategy strategies.Retry[OUT]) {
	if p := s.policy; !p.NoRetry && !p.ConsidersResults && !p.ConsidersErrors {
		s.Log(s.ctx, slog.LevelWarn, "asyncop: "+name+": the strategy has no predicate, so nothing is retried: "+
			"give it RetryIfResult or RetryIfException, or use NoRetry", slog.String("strategy", fmt.Sprintf("%T", strategy)))
	}
	for what, d := range map[string]time.Duration{name + ": the timeout": timeout, "WithAttemptTimeout: the limit": s.attemptTimeout} {
		if d > 0 && d < time.Millisecond {
			s.Log(s.ctx, slog.LevelWarn, "asyncop: "+what+" is below a millisecond: is its unit missing, as in 5*time.Second?",
				slog.Duration("timeout", d))
		}
	}
	if s.maxCalls > capacity {
		s.Log(s.ctx, slog.LevelWarn, "asyncop: "+name+": WithMaxConcurrentCalls is above the capacity, which limits the calls: raise the capacity",
			slog.Int("calls", s.maxCalls), slog.Int("capacity", capacity))
	}
	if batch := s.batch; batch != nil && timeout > 0 && batch.MaxWait >= timeout {
		s.Log(s.ctx, slog.LevelWarn, "asyncop: "+name+
			": the wait for a batch is not below the timeout: elements may time out while they wait",
			slog.Duration("wait", batch.MaxWait), slog.Duration("timeout", timeout))
	}
}

func isMessage(v any) bool {
	_, ok := message.FromElement(v)
	return ok
}

// In returns the channel that upstream sends to and must close.
func (op *AsyncWaitOperator[IN, OUT]) In() chan<- any {
	if op.used.Load()&byIn == 0 {
		op.use("In", byIn)
		op.driver.Wire()
	}
	return op.in
}

// Out returns the channel of the results, which the operator closes. With checkpoints,
// only flow.FanOut may branch it: the run fails if a function of go-streams branches or
// joins it.
func (op *AsyncWaitOperator[IN, OUT]) Out() <-chan any {
	op.use("Out", byOut)
	if op.driver.Coordinator != nil {
		if err := wiring.Reader(); err != nil {
			op.driver.Coordinator.Fail(op.driver.Name, err) // law C2
		}
	}
	return op.driver.Out()
}

// Via streams the results to next, on a goroutine of its own. It returns next or, with
// checkpoints, a flow in place of next.
//
// If this operator fails, and next is an operator or a flow of weir, next fails with the
// same error. If next fails or is cancelled, this operator ends with a [*DownstreamError]
// (see [WithUpstreamRunning]). To flows of go-streams, the end of a failed stream looks
// clean: Wait for each operator.
//
// After a cancel, results are delivered for at most half a second: see
// [AsyncWaitOperator.To].
//
// Via panics if next is an operator or a flow of weir that takes elements of another type
// or, with checkpoints, a flow of go-streams that would panic on a barrier.
func (op *AsyncWaitOperator[IN, OUT]) Via(next streams.Flow) streams.Flow {
	transfer := op.connect("Via", next)
	go func() {
		defer transfer.End()
		transfer.Run()
	}()
	return op.driver.Node.Next(next)
}

// To streams the results to sink and returns when the sink has processed all of them. It
// does not wait for calls of the failure sink: call Wait after it.
//
// A sink that has stopped reading does not block To forever. When the operator is
// cancelled, or the context of Stop ends, To delivers results for half a second, then
// logs and counts the rest (Stats.Undelivered), and returns. An operator that fails, or
// ends cleanly, delivers as long as the sink takes results. If its context ends, or the
// deadline of a Stop passes, after the end of the operator, To gives up: after a failure
// in the same way, and after a clean end when the sink does not take a result for half a
// second. If the sink has taken all results after a clean end, To waits for its
// completion.
//
// It panics if sink is a sink of package checkpoint that takes elements of another type
// or, with checkpoints, a sink of go-streams that would take a barrier for an element.
func (op *AsyncWaitOperator[IN, OUT]) To(sink streams.Sink) {
	transfer := op.connect("To", sink)
	transfer.Run()
	transfer.Await(sink.AwaitCompletion)
}

// connect returns a transfer to next. It panics if next cannot take the results.
func (op *AsyncWaitOperator[IN, OUT]) connect(method string, next streams.Inlet) *drive.Transfer[IN, OUT] {
	node := op.driver.Node
	node.MustTake("asyncop: "+method, next)
	shares := op.use(method, byVia)&byOut != 0
	node.Link("asyncop: "+method, next)
	return op.driver.NewTransfer(next.In(), shares, wiring.TakesFailures(next))
}

// Err returns nil before the end and after a clean end. Otherwise it returns the reason
// of the end:
//
//   - an [*ElementError] or a [*TypeError]
//   - context.Cause of its context, or [ErrStopped] and the cause of the context of Stop;
//     in an [*AbandonedError] if elements were in flight
//   - a [*DownstreamError], if a later step of weir failed or was cancelled
//   - the error of an earlier step of weir that failed, or was cancelled and could not
//     deliver
//   - an error that matches [ErrBudgetSpent]; in an [*AbandonedError], because elements
//     were in flight
//   - an error, a panic or a runtime.Goexit of the input of Results
//   - an error of the function's Open or Close
//   - an error of encoding the state of a final checkpoint
//
// It is set before Out closes.
func (op *AsyncWaitOperator[IN, OUT]) Err() error { return op.driver.Err() }

// Done returns a channel that is closed when Out is closed, the calls of the failure sink
// have returned ([WithFailureSink]), and the function is closed. A blocking call that
// ignores the end of its context may outlive the operator.
func (op *AsyncWaitOperator[IN, OUT]) Done() <-chan struct{} { return op.driver.Done() }

// InputClosed returns a channel that is closed when upstream has closed In and
// Stats.Discarded is final. After a clean end that is before Done.
func (op *AsyncWaitOperator[IN, OUT]) InputClosed() <-chan struct{} { return op.driver.InputClosed() }

// Wait waits for Done and returns Err. In the body of a loop over ResultsOf, Wait and
// Stop would wait forever.
func (op *AsyncWaitOperator[IN, OUT]) Wait() error {
	<-op.driver.Done()
	return op.driver.Err()
}

// Stop ends the operator in an orderly way: it drains the accepted elements as at the end
// of the input, waits for Done, and returns Err. Elements in In are discarded and
// counted.
//
// If ctx ends first, Stop cancels the remaining elements and returns when Err is set,
// with an error that matches [ErrStopped] and the cause of ctx. The failure sink and the
// function's Close may still run, so wait for Done before the program ends. Stop always
// waits for a running Open, and for the Close of a clean end.
//
// If the checkpoint.Coordinator drains the stream, and the marker of the end of the input
// has come, Stop only waits for the coordinator to end the operator.
//
// Code that the operator waits for must not call Stop: its function, loggers, labels and
// the failure sink.
//
// [StopAll] stops a row of operators.
func (op *AsyncWaitOperator[IN, OUT]) Stop(ctx context.Context) error {
	return op.driver.Stop(ctx)
}

// Stats returns the current counts.
func (op *AsyncWaitOperator[IN, OUT]) Stats() Stats {
	s := op.driver.Counts()
	s.Capacity, s.MaxCalls = int64(op.capacity), int64(min(cmp.Or(op.front.maxCalls, op.capacity), op.capacity))
	return s
}
