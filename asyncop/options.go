package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
)

// Option changes a setting of an operator. An option with an invalid value panics.
type Option func(*config)

const defaultHandlerLimit = 10 * time.Second

// config has the values of the options. It is read-only after the start.
type config struct {
	clock          clock.Clock
	ctx            context.Context //nolint:containedctx // the operator's lifetime, from WithContext
	cancelUpstream context.CancelCauseFunc
	keepsUpstream  bool // see WithUpstreamRunning
	name           string
	logger         *slog.Logger
	observers      []observe.Observer
	checkpointed   observe.CheckpointedObserver // or nil

	keys             any // a core.Keys[IN, OUT], or nil
	maxWaitingPerKey int // 0 means no limit

	maxCalls       int     // 0 means the capacity
	backend        Backend // or nil
	cost           any     // a func(IN) float64, or nil
	tenant         any     // a func(IN) string, or nil
	budget         float64 // 0 means no limit
	timeoutFor     any     // a func(IN) time.Duration, or nil
	attemptTimeout time.Duration
	fromAttempt    bool
	handlerLimit   time.Duration
	earlyTimeout   bool

	failurePolicy      string // the option that sets it, or ""
	failureSink        any    // a func(context.Context, Failure[IN]) error, or nil
	exhaustedAsFailure bool
	drainRetries       bool
	buffer             int // size of In and Out; negative means the default

	reorders    bool             // set by the constructor
	coordinator participant.Host // or nil
	retryState  RetryState
	maxRetries  int // of the strategy; 0 if unknown
	overflow    int // see State
	inputCodec  any // a codec.Codec[IN], or nil
	resultCodec any // a codec.Codec[OUT], or nil
}

func newConfig(opts []Option) config {
	c := config{
		clock:        clock.New(),
		ctx:          context.Background(),
		logger:       guard.Logger(nil),
		handlerLimit: defaultHandlerLimit,
		buffer:       -1,
		overflow:     1024, // see State
	}
	for i, opt := range opts {
		refuseIf(opt == nil, "option %d is nil", i)
		opt(&c)
	}
	return c
}

// refuseIf panics with a text if an argument, an option or a method is wrong.
func refuseIf(wrong bool, format string, args ...any) {
	if wrong {
		panic(fmt.Sprintf("asyncop: "+format, args...))
	}
}

// bufferFor returns the size of In and Out: see WithBuffer.
func (c *config) bufferFor(capacity int) int {
	if c.buffer < 0 {
		return min(capacity, max(128, min(capacity/8, 1024)))
	}
	return c.buffer
}

// setFailurePolicy records the option that sets the failure policy. The same option may
// be repeated.
func (c *config) setFailurePolicy(option string) {
	refuseIf(c.failurePolicy != "" && c.failurePolicy != option,
		"%s and %s exclude each other: an element fails once", c.failurePolicy, option)
	c.failurePolicy = option
}

// WithClock sets the clock of the operator's timers. The default is the real clock. The
// clock must not go back. A clock.Mock makes times exact in tests, as testing/synctest
// does. With a mock, contexts of attempts lack deadlines, because dialers compare them
// with the real time.
func WithClock(c clock.Clock) Option {
	guard.RefuseNil("asyncop: WithClock", "clock", c)
	return func(cfg *config) { cfg.clock = c }
}

// WithContext sets the context of the operator. The default is context.Background(). At
// its end the contexts of all attempts end, Out closes, and Err returns context.Cause.
// Attempts see its values.
//
// An operator inside a call of another operator needs the context of that call. Then its
// reports ([predicates.ReportSent], ReportStage of NetworkTime) count for the outer call,
// too.
func WithContext(ctx context.Context) Option {
	guard.RefuseNil("asyncop: WithContext", "context", ctx)
	return func(cfg *config) { cfg.ctx = ctx }
}

// WithUpstreamCancel makes the operator call cancel once, when it stops reading before
// its input has ended. The argument is the failure, the cause of the cancellation, or
// [ErrStopped]. cancel should end the source, which then closes In.
//
// cancel may wait for the source, and Done waits for cancel. Stop also calls it, and then
// drains, so it must not end the operator's own context ([WithContext]). Give the source
// its own, perhaps derived from it.
func WithUpstreamCancel(cancel context.CancelCauseFunc) Option {
	guard.RefuseNil("asyncop: WithUpstreamCancel", "function", cancel)
	return func(cfg *config) { cfg.cancelUpstream = cancel }
}

// WithUpstreamRunning keeps the steps upstream running when this operator fails or is
// cancelled. Their results are discarded and counted.
//
// By default operators and flows of weir that are connected to this operator by Via end
// with a [*DownstreamError]. A step of another library in between does not pass this on:
// there, use [WithUpstreamCancel]. Stop does not end the steps upstream.
func WithUpstreamRunning() Option {
	return func(cfg *config) { cfg.keepsUpstream = true }
}

// WithName names the operator in logs, in the errors of steps upstream
// ([DownstreamError]) and in checkpoints. The default is "".
func WithName(name string) Option {
	return func(cfg *config) { cfg.name = name }
}

// WithLogger sets the logger. The default is slog.Default() at construction. Retries, and
// refused retries, are logged at debug level; elements that failed, and elements that a
// failure sink did not take, at warn, or at error if they are lost. Of similar failures,
// the first has a line, and the others have one line every 10 s, with their number: see
// [AsyncWaitOperator.Groups]. While at least a tenth of the attempts fail, a line at warn
// has their number every 10 s, with the last error. An operator that fails is logged once
// at error level, even without Wait. If it or an earlier operator was cancelled or
// stopped, the level is info. A line about a panic has its stack.
func WithLogger(logger *slog.Logger) Option {
	guard.RefuseNil("asyncop: WithLogger", "logger", logger)
	return func(cfg *config) { cfg.logger = guard.Logger(logger) }
}

// StatsReader is an observer that reads the counts of its operator, such as metrics.
type StatsReader interface {
	// Attach is called by the operator's constructor. stats is [AsyncWaitOperator.Stats],
	// and done is [AsyncWaitOperator.Done].
	Attach(stats func() Stats, done <-chan struct{})
}

// GroupsReader is an observer that reads the groups of failures of its operator.
type GroupsReader interface {
	// AttachGroups is called by the operator's constructor. groups is
	// [AsyncWaitOperator.Groups].
	AttachGroups(groups func() []observe.Group)
}

// WithObserver makes the operator call o at each event of its elements. It may be
// repeated: observers are called in this order, and the context that one returns goes to
// the next. o may also be an [observe.Gate], a [StatsReader] or a [GroupsReader], and at
// most one an [observe.CheckpointedObserver]. WithObserver panics if o is nil.
func WithObserver(o observe.Observer) Option {
	guard.RefuseNil("asyncop: WithObserver", "observer", o)
	return func(c *config) { c.observers = append(c.observers, o) }
}

// WithMaxConcurrentCalls limits the calls that run at once. The default is the capacity.
// More than the capacity is useless and logged as a warning. Retries go before first
// attempts, and older elements first. It panics if n < 1.
//
// A callback-style call ends with its attempt, a [Blocking] call when its function
// returns.
func WithMaxConcurrentCalls(n int) Option {
	refuseIf(n < 1, "WithMaxConcurrentCalls: must be at least 1, got %d", n)
	return func(cfg *config) { cfg.maxCalls = n }
}

// WithAttemptTimeout limits each attempt. The outcome of a longer attempt is an
// [*AttemptTimeoutError]. By default only the total timeout applies. It panics if d <= 0.
func WithAttemptTimeout(d time.Duration) Option {
	refuseIf(d <= 0, "WithAttemptTimeout: must be positive, got %v", d)
	return func(cfg *config) { cfg.attemptTimeout = min(d, maxTimeout) }
}

// WithTimeoutFor gives elements their own timeouts. They may be shorter or longer than
// the operator's timeout, which 0 selects. With a negative duration the element times out
// before its first call. If that would fail the pipeline, a restored element gets a tenth
// of the operator's timeout or more, or 10 s if the operator does not have a timeout. So
// an element can have a deadline:
//
//	asyncop.WithTimeoutFor(func(r Request) time.Duration { return time.Until(r.Deadline) })
//
// timeout is called once for each element that has taken its slot, and again when it is
// restored: the rest of the timeout is computed from the new value (State.Retries). It is
// called on the operator's loop and must not block. A panic fails its element. IN must be
// the operator's type. It panics if timeout is nil.
func WithTimeoutFor[IN any](timeout func(in IN) time.Duration) Option {
	guard.RefuseNil("asyncop: WithTimeoutFor", "function", timeout)
	return func(cfg *config) { cfg.timeoutFor = timeout }
}

// WithTimeoutFromFirstAttempt makes the timeout of an element count from the start of its
// first attempt, instead of from its acceptance. So the wait for a permit or for its
// backend ([WithBackend]) is not limited, even if the backend is held or stays down. The
// element keeps its slot, so the input waits, too.
//
// If the timeout of an element that waits for its next attempt runs out while its backend
// is down, held or recovering, the timeout starts again with that attempt, up to three
// times. A service that throttles is not down. A restored element that keeps its attempts
// (State.Retries) has the rest of its time. An element with a negative timeout
// ([WithTimeoutFor]) times out at once.
func WithTimeoutFromFirstAttempt() Option {
	return func(cfg *config) { cfg.fromAttempt = true }
}

// WithHandlerLimit limits the fallback of [HandleFailure], and a [TimeoutHandler], for
// each element. The default is 10 s. It panics if d <= 0.
func WithHandlerLimit(d time.Duration) Option {
	refuseIf(d <= 0, "WithHandlerLimit: must be positive, got %v", d)
	return func(cfg *config) { cfg.handlerLimit = min(d, maxTimeout) }
}

// WithEarlyTimeout times an element out as soon as its next retry could not start before
// its deadline, to free its slot. By default the element waits for its deadline, as in
// Flink and RFC 0049.
func WithEarlyTimeout() Option {
	return func(cfg *config) { cfg.earlyTimeout = true }
}

// WithDropOnFailure logs, counts and drops elements that fail. By default the first
// failure fails the pipeline. It excludes [WithFailureSink].
func WithDropOnFailure() Option {
	return func(cfg *config) { cfg.setFailurePolicy("WithDropOnFailure") }
}

// WithFailureSink makes the operator call take for each element that fails, and continue.
// take writes the element to a table, a queue, or the dead letters of package delivery.
// By default the first failure fails the pipeline.
//
//	asyncop.WithFailureSink(orders.TakeFailure) // of a *delivery.Queue
//
// When take returns nil, the element is taken and its slot is free. After an error or a
// panic, take is called again: after 100 ms, then after twice as long each time, up to 10
// s, as long as the operator runs. A clean end waits for it.
//
// An error that matches [message.ErrRefused] means that take can never take the element.
// A message is then rejected, and ends among the dead letters of its source. An element
// that is not a message fails the pipeline.
//
// take is called for one element at a time, off the loop, and may block. Elements are
// offered in the order of their failure. An element that waits for its next offer does
// not delay others, but holds its slot, so a sink that takes no elements eventually stops
// the input. take must not wait for the operator. Data that take shares with other
// goroutines, such as the body of the loop over the results, needs a lock.
//
// The context has the values of the observers ([WithObserver]) and of the operator's
// context. It ends with the operator.
//
// When the operator fails or is cancelled, take is called once more for each failed
// element that it has not taken, and once for each element that was cut off
// (Failure.Abandoned). These contexts end 30 s after the operator, and Done waits for the
// calls. Failed elements that are not taken are lost: they are logged at error level, and
// counted in Stats.Abandoned.
//
// A [message.Message] is acknowledged when it is taken. Its history is in the context
// ([message.MetaFromContext]). When the operator fails or is cancelled, the message is
// released to its source, and not offered again.
//
// With checkpoints, an element that was taken since the last checkpoint may be offered
// again after a restart, so take must recognise it, for example by an id. When the run
// fails or is cancelled, an element that was not taken is left to the next run.
//
// IN must be the operator's type. It excludes [WithDropOnFailure].
func WithFailureSink[IN any](take func(ctx context.Context, f Failure[IN]) error) Option {
	guard.RefuseNil("asyncop: WithFailureSink", "function", take)
	return func(cfg *config) {
		cfg.setFailurePolicy("WithFailureSink")
		cfg.failureSink = take
	}
}

// WithExhaustedAsFailure makes an element fail with [ErrRetriesExhausted] if its last
// result still asks for another attempt. By default this result is emitted, as in Flink,
// and counted.
func WithExhaustedAsFailure() Option {
	return func(cfg *config) { cfg.exhaustedAsFailure = true }
}

// WithDrainRetries lets retries finish after the end of the input, up to the timeout of
// each element. Use it for a flow with a finite input. It also applies to Stop.
// [AsyncWaitOperator.Results] and its siblings always drain retries.
//
// By default a flow cuts retries, as in Flink, whose streams end only when they are
// stopped. An element that waits for a retry when the input ends gets a last attempt at
// once, unless a server demanded the wait. Further retries are not made: if the last
// outcome asks for one, the element fails, or the result is emitted.
// Stats.CutByEndOfInput counts these elements, and a warning is logged.
func WithDrainRetries() Option {
	return func(cfg *config) { cfg.drainRetries = true }
}

// WithBuffer sets the size of the buffers of In and Out. The default is the capacity, but
// at most 128 up to a capacity of 1,024, an eighth of a larger capacity, and at most
// 1,024. With 0 a flow of short calls takes 1.5 to 5 times as long. Where Via, To or
// [AsyncWaitOperator.Results] take the results, the size is the next power of two, and at
// least 1.
//
// So an operator whose sink is blocked reads about as many elements as its capacity and
// two buffers. Elements in In are not accepted yet: they do not hold slots, and are not
// in checkpoints. It panics if n < 0.
func WithBuffer(n int) Option {
	refuseIf(n < 0, "WithBuffer: negative size: %d", n)
	return func(cfg *config) { cfg.buffer = n }
}
