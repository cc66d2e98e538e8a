package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path"
	"reflect"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/engine"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/timers"
)

// core is what the loop of an operator works with: the engine and what that needs. Everything is owned by the loop, except for what
// says otherwise.
type core[IN, OUT any] struct {
	config // read-only
	fn     AsyncFunction[IN, OUT]
	policy *decision.Steps[OUT]
	hook   hooks[IN, OUT]

	direct *blocking[IN, OUT] // the function itself, if it blocks: the engine then starts calls without AsyncInvoke

	engine  *engine.Engine[IN, OUT]
	timers  *timers.Service[*queue.Entry[engine.Slot[IN, OUT]]]
	host    *call.Host[*queue.Entry[engine.Slot[IN, OUT]]]                       // used by other goroutines, too
	workers *call.Workers[call.Job[*queue.Entry[engine.Slot[IN, OUT]], IN, OUT]] // used by other goroutines, too
	offered int                                                                  // direct calls that were offered to the workers in the last step
	witness *witness                                                             // nil with a mock clock

	drains  bool                  // the end of the input lets retries go on
	emitted int64                 // results
	broken  atomic.Pointer[error] // what has broken beside the loop, and ended life

	retryLines levelGate
	retryLog   lineLimit
	refuseLog  lineLimit
	giveUpLog  lineLimit
	slowLog    lineLimit
	suppressed bool // lines were, and no line has said how many

	published published // read by other goroutines
}

// hooks are the optional interfaces of the function; nil where there is none.
type hooks[IN, OUT any] struct {
	open  Opener
	close Closer
	clone Cloner[IN]
}

func newCore[IN, OUT any](
	cfg config, fn AsyncFunction[IN, OUT], policy *decision.Steps[OUT], timeout time.Duration,
	q queue.Queue[engine.Slot[IN, OUT]],
) *core[IN, OUT] {
	c := &core[IN, OUT]{config: cfg, fn: fn, policy: policy, drains: cfg.atEnd == drainRetries}
	c.hook.open, _ = find[Opener](fn)
	c.hook.close, _ = find[Closer](fn)
	c.hook.clone, _ = find[Cloner[IN]](fn)
	c.direct = directCall(fn)
	c.workers = call.NewWorkers(func(j call.Job[*queue.Entry[engine.Slot[IN, OUT]], IN, OUT]) { j.Do(c.callDirectly) })
	c.host = &call.Host[*queue.Entry[engine.Slot[IN, OUT]]]{
		User:     cfg.ctx,
		Values:   context.WithoutCancel(cfg.ctx),
		RealTime: reflect.TypeOf(cfg.clock) == reflect.TypeOf(clock.New()),
		Run: func(task func()) {
			c.workers.Run(call.Job[*queue.Entry[engine.Slot[IN, OUT]], IN, OUT]{Task: task})
		},
		Panicked: func(recovered any) error { return newPanicError(recovered) },
		NilError: ErrNilError,
		Sleeper:  call.NewSleeper(),
	}
	c.host.Life, c.host.Cancel = context.WithCancelCause(cfg.ctx)
	c.timers = timers.NewService[*queue.Entry[engine.Slot[IN, OUT]]](cfg.clock, c.host.WakeUp)
	c.host.Clock = c.timers
	if _, mock := cfg.clock.(*clock.Mock); !mock { // time does not pass by itself
		c.witness = &witness{clock: cfg.clock, now: c.timers.Now, asleep: c.host.Parked.Load}
	}
	c.engine = engine.New(c.engineConfig(timeout, q))
	c.published.set(engine.Counters{}, engine.Never)
	return c
}

// callDirectly makes a call that the engine has started without AsyncInvoke, on a worker.
func (c *core[IN, OUT]) callDirectly(a *call.Attempt[*queue.Entry[engine.Slot[IN, OUT]], OUT], in IN) {
	ctx := (*call.AttemptContext[*queue.Entry[engine.Slot[IN, OUT]], OUT])(a)
	c.direct.run(ctx, in, (*call.Returning[*queue.Entry[engine.Slot[IN, OUT]], OUT])(a), nil)
}

// engineConfig says in plain values what the options say.
func (c *core[IN, OUT]) engineConfig(
	timeout time.Duration, q queue.Queue[engine.Slot[IN, OUT]],
) engine.Config[IN, OUT] {
	fn := c.fn
	source := c.random
	if source == nil {
		source = rand.NewPCG(rand.Uint64(), rand.Uint64())
	}
	cfg := engine.Config[IN, OUT]{
		Queue: q, Timers: c.timers, Host: c.host, Direct: c.direct != nil,
		Invoke: func(ctx context.Context, in IN, a *call.Attempt[*queue.Entry[engine.Slot[IN, OUT]], OUT]) error {
			return fn.AsyncInvoke(ctx, in, a)
		},
		Policy: c.policy, Random: rand.New(source),
		Timeout: timeout, AttemptTimeout: c.attemptTimeout, HandlerLimit: c.handlerLimit,
		EarlyTimeout: c.earlyTimeout, MaxCalls: c.maxCalls,
		OnFailure: c.onFailure, ExhaustedAsFailure: c.exhaustedAsFailure,
		Restored: engine.Keep(c.retryState), LeastTime: timeout / 10,
		IsEndOfInput:     isEndOfInput,
		ErrControlResult: ErrControlResult, ErrHandlerLimit: ErrHandlerLimit,
		Lost: c.witness.lostTime(), Stalled: c.witness.stalled,
		Hooks: c.engineHooks(timeout),
	}
	if h, ok := find[TimeoutHandler[IN, OUT]](fn); ok {
		cfg.Handle = h.Timeout
	}
	if c.retryState == LatencyFirst && c.maxRetries != strategies.Unlimited {
		cfg.LeastTime = max(cfg.LeastTime, timeout/time.Duration(c.maxRetries+1))
	}
	if canHoldControl[OUT]() {
		cfg.IsControl = participant.IsControl
	}
	return cfg
}

// engineHooks build what users see: errors and logs.
func (c *core[IN, OUT]) engineHooks(timeout time.Duration) engine.Hooks[IN] {
	return engine.Hooks[IN]{
		TimedOut: func(r engine.Report[IN], early bool, handler error) error {
			return &TimeoutError{
				Limit: timeout, Attempts: r.Attempts, Last: r.Err, Handler: handler, Early: early,
				InDoubt: r.InDoubt, element: r.Element, policy: c.policy,
			}
		},
		AttemptTimedOut: func(attempt int) error {
			return &AttemptTimeoutError{Limit: c.attemptTimeout, Attempt: attempt}
		},
		Exhausted:      exhausted,
		DecisionFailed: ownPanic,
		RunFailed: func(r engine.Report[IN]) error {
			return &ElementError{
				Element: r.Element, Attempts: r.Attempts, Elapsed: r.Elapsed, Err: r.Err, label: c.labelOf(r.Element),
				Verdict: strategies.Verdict(r.Verdict), Reason: r.Reason, InDoubt: r.InDoubt, policy: c.policy,
				Operator: c.name, retries: c.allowed,
			}
		},
		GivenUp:     c.logGivenUp,
		LogsRetries: c.logsRetries,
		Retrying:    c.logRetry,
		NotRetried:  c.logNoRetry,
	}
}

// failureOf describes an element for the side output.
func (c *core[IN, OUT]) failureOf(r engine.Report[IN]) Failure[IN] {
	return Failure[IN]{
		Element: r.Element, Err: r.Err, Attempts: r.Attempts, Elapsed: r.Elapsed, Reasons: r.Reasons,
		Verdict: strategies.Verdict(r.Verdict), Reason: r.Reason, InDoubt: r.InDoubt, policy: c.policy,
		FirstAttempt: r.First, LastAttempt: r.Last,
	}
}

// warn writes what the log is owed: calls that blocked the loop, the number of suppressed lines. It runs user code, so it is apart
// from the engine's looks at the clock.
func (c *core[IN, OUT]) warn() {
	for _, call := range c.engine.Blocked() {
		what, advice := c.describe(call)
		c.log(&c.slowLog, slog.LevelWarn, "asyncop: a call blocked the loop", call.In,
			slog.String("call", what), slog.Duration("took", call.Took), slog.String("advice", advice))
	}
	c.logSuppressed(false)
}

// describe names a call that blocked the loop, and says what to do. A predicate that is asked as soon as AsyncInvoke has
// completed its element is watched with that.
func (c *core[IN, OUT]) describe(call engine.SlowCall[IN]) (what, advice string) {
	invoke, judge := "AsyncInvoke of "+c.functionName(), fmt.Sprintf("strategy %T or its predicates", c.policy.Asked)
	switch {
	case !call.Judged:
		what, advice = invoke, "wrap what blocks in asyncop.Blocking"
	case call.Invoked:
		what, advice = invoke+", or "+judge, "wrap what blocks in asyncop.Blocking; predicates must not wait"
	default:
		what, advice = judge, "predicates must not wait; a strategy of strategies.ReasonAware may, off the loop"
	}
	return what, advice
}

// functionName names the function: by its type, or by its name if it is a plain one.
func (c *core[IN, OUT]) functionName() string {
	fn := c.fn
	if h, ok := fn.(*withTimeoutHandler[IN, OUT]); ok {
		fn = h.AsyncFunction
	}
	if v := reflect.ValueOf(fn); v.Kind() == reflect.Func {
		if f := runtime.FuncForPC(v.Pointer()); f != nil {
			return path.Base(f.Name())
		}
	}
	return fmt.Sprintf("%T", fn)
}

// mayPark tells whether the loop may sleep as far as the engine and the log are concerned, and sees to it that it is woken for the
// next timer. Called with parked set, so that nothing posted from now on is missed.
func (c *core[IN, OUT]) mayPark() bool {
	due := c.engine.Next()
	if due == engine.Now {
		return false
	}
	if d, some := c.suppressedDue(); some {
		due = min(due, d)
	}
	return due == engine.Never || c.timers.ScheduleAt(due)
}

// handlerBroke ends the operator because of its failure handler, and tells so, for it may be ending already. Called from the
// handler's goroutine.
func (c *core[IN, OUT]) handlerBroke(err error) {
	c.breakOff(err)
	_ = offLoop(func() error {
		c.logger.LogAttrs(context.WithoutCancel(c.ctx), slog.LevelWarn, "asyncop: the failure handler broke",
			withStack([]slog.Attr{slog.Any("error", err)})...)
		return nil
	})
}

// breakOff ends the operator for something that has broken beside the loop. Called from any goroutine.
func (c *core[IN, OUT]) breakOff(err error) {
	c.broken.CompareAndSwap(nil, &err)
	c.host.Cancel(err)
}

// isBroken reports whether cause is what has broken beside the loop, and no cancel.
func (c *core[IN, OUT]) isBroken(cause error) bool {
	b := c.broken.Load()
	return b != nil && *b == cause //nolint:errorlint // the same, not the like; it is a pointer of ours
}

// offerJobs offers the direct calls that were started to the workers that come free, and tells whether there were any.
func (c *core[IN, OUT]) offerJobs() bool {
	c.offered = c.engine.Jobs(c.workers.Offer)
	return c.offered > 0
}

// giveWay lets workers whose calls return take what was offered, without a switch, if most of the calls that run are others.
func (c *core[IN, OUT]) giveWay() {
	if c.offered > 0 && c.engine.Running() > 2*c.offered {
		runtime.Gosched()
	}
}

// sendWorkers sends workers for those of the calls offered in the step before that are still there.
func (c *core[IN, OUT]) sendWorkers() {
	if c.offered > 0 {
		c.offered = 0
		c.workers.Send()
	}
}

// endJobs has workers give back the permits of calls that were started and have no worker yet. Their attempts have been
// ended: no call is made.
func (c *core[IN, OUT]) endJobs() {
	c.offerJobs()
	c.workers.Send()
}

// publish makes the statistics visible.
func (c *core[IN, OUT]) publish() {
	counts, oldest := c.engine.Counts()
	counts.Emitted = c.emitted
	c.published.set(counts, oldest)
}

// isEndOfInput tells whether a control element is the marker of the end of the input, behind which only barriers come.
func isEndOfInput(control any) bool {
	b, ok := control.(participant.Barrier)
	return ok && b.Kind == participant.EndOfInput
}

// canHoldControl tells whether a value of type OUT can be a control element.
func canHoldControl[OUT any]() bool {
	t := reflect.TypeFor[OUT]()
	return t.Kind() == reflect.Interface || participant.IsControl(reflect.Zero(t).Interface())
}
