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

// Option changes a setting of an operator. Options panic if a value is invalid, and name
// the option and the value.
type Option func(*config)

// defaultHandlerLimit is the default of WithHandlerLimit.
const defaultHandlerLimit = 10 * time.Second

// config is what the options set. It is read-only once the operator runs.
type config struct {
	clock          clock.Clock
	ctx            context.Context //nolint:containedctx // the operator's lifetime, given by WithContext
	cancelUpstream context.CancelCauseFunc
	keepsUpstream  bool // a failure does not end the steps upstream
	name           string
	logger         *slog.Logger
	observers      []observe.Observer
	checkpointed   observe.CheckpointedObserver // one of them, with checkpoints; nil: none has a state

	keys             any // an core.Keys[IN, OUT]; nil: no key order
	maxWaitingPerKey int // 0: any number

	maxCalls       int     // 0: the capacity
	backend        Backend // nil: any
	cost           any     // a func(IN) float64, or nil
	tenant         any     // a func(IN) string, or nil
	budget         float64 // 0: no limit
	timeoutFor     any     // a func(IN) time.Duration, or nil
	attemptTimeout time.Duration
	fromAttempt    bool
	handlerLimit   time.Duration
	earlyTimeout   bool

	failurePolicy      string // the option that says what becomes of elements that fail; "": the first one ends the run
	failureSink        any    // of WithFailureSink: a func(context.Context, Failure[IN]) error; else nil
	exhaustedAsFailure bool
	drainRetries       bool // Results does so without it
	buffer             int  // of In and of Out; negative if it follows the capacity

	reorders    bool             // set by the constructor
	coordinator participant.Host // nil: takes no part in checkpoints
	retryState  RetryState
	maxRetries  int // that the strategy says it allows; 0 also if it does not say
	overflow    int // elements read past the capacity for the sake of a barrier
	inputCodec  any // a codec.Codec[IN], or nil
	resultCodec any // a codec.Codec[OUT], or nil: results are not stored
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

// refuseIf panics if wrong, with a text about arguments or options, or about a method
// that does not go with another.
func refuseIf(wrong bool, format string, args ...any) {
	if wrong {
		panic(fmt.Sprintf("asyncop: "+format, args...))
	}
}

// bufferFor returns the size of In and of Out for an operator with that many slots: see
// WithBuffer.
func (c *config) bufferFor(capacity int) int {
	if c.buffer < 0 {
		return min(capacity, max(128, min(capacity/8, 1024)))
	}
	return c.buffer
}

// setFailurePolicy sets the failure policy that an option stands for. Of several options
// the last one of a kind counts.
func (c *config) setFailurePolicy(option string) {
	refuseIf(c.failurePolicy != "" && c.failurePolicy != option,
		"%s and %s exclude each other: an element fails once", c.failurePolicy, option)
	c.failurePolicy = option
}

// WithClock sets the clock of every timer of the operator; the default is the real clock.
// It must not go back. A clock.Mock makes all times exact in tests, as testing/synctest
// does without a mock; the contexts of attempts then report no deadline, since a real
// dialer would take a mock's deadline for long past.
func WithClock(c clock.Clock) Option {
	guard.RefuseNil("asyncop: WithClock", "clock", c)
	return func(cfg *config) { cfg.clock = c }
}

// WithContext sets the context of the operator; the default is context.Background(). When
// it ends, so do the contexts of all attempts, Out closes, and Err returns context.Cause.
// Attempts see its values.
//
// An operator that runs inside a call of another operator needs the context of that call:
// the reports of its own calls ([predicates.ReportSent], ReportStage of NetworkTime) then
// count for the outer call, too. [Map] takes it as its first argument.
func WithContext(ctx context.Context) Option {
	guard.RefuseNil("asyncop: WithContext", "context", ctx)
	return func(cfg *config) { cfg.ctx = ctx }
}

// WithUpstreamCancel makes the operator call cancel once, when it stops reading before
// its input has ended: with the failure, the cause of the cancellation, or [ErrStopped].
// cancel should end the source, which closes In in turn. Without it, elements that a
// source sends to an ended operator are discarded and counted.
//
// It may wait for the source; Done waits for it. Stop calls it, too, and then drains. So
// it must not end the operator's own context ([WithContext]), which would leave no
// element to drain: give the source a context of its own, derived from the operator's for
// instance.
func WithUpstreamCancel(cancel context.CancelCauseFunc) Option {
	guard.RefuseNil("asyncop: WithUpstreamCancel", "function", cancel)
	return func(cfg *config) { cfg.cancelUpstream = cancel }
}

// WithUpstreamRunning keeps the steps upstream running when this operator fails or is
// cancelled, for example because their calls have effects of their own. Their results are
// discarded and counted.
//
// By default they end, too: an operator or a flow of weir that Via connects directly to
// this one, and those before it, end with a [*DownstreamError] that names this operator.
// A step of another library in between stops that: give the operator the cancel function
// of the source there ([WithUpstreamCancel]). Stop does not end the steps upstream.
func WithUpstreamRunning() Option {
	return func(cfg *config) { cfg.keepsUpstream = true }
}

// WithName names the operator in logs, in the errors of steps upstream
// ([DownstreamError]) and, in a checkpoint, its state. The default is the empty string.
func WithName(name string) Option {
	return func(cfg *config) { cfg.name = name }
}

// WithLogger sets the logger; the default is slog.Default() at construction. Retries, and
// retries that are not made although there was a reason, are logged at debug level;
// elements that failed at warn. At most 10 lines of a kind are written a second, followed
// by a line with the number of lines left out. While at least a tenth of the attempts
// fail, a line at warn says how many did, every 10 s, with the last error. An operator
// that fails is logged once at error level, even if Wait is never called; a cancelled
// operator at info level. A line about a panic has its stack.
func WithLogger(logger *slog.Logger) Option {
	guard.RefuseNil("asyncop: WithLogger", "logger", logger)
	return func(cfg *config) { cfg.logger = guard.Logger(logger) }
}

// StatsReader is implemented by observers that read the counts of their operator, such as
// metrics.
type StatsReader interface {
	// Attach is called by the constructor of the operator. stats is
	// [AsyncWaitOperator.Stats], and done is [AsyncWaitOperator.Done]. Both may be used
	// from any goroutine.
	Attach(stats func() Stats, done <-chan struct{})
}

// GroupsReader is implemented by observers that read the groups of failures of their
// operator.
type GroupsReader interface {
	// AttachGroups is called by the constructor of the operator. groups is
	// [AsyncWaitOperator.Groups], and may be called from any goroutine.
	AttachGroups(groups func() []observe.Group)
}

// WithObserver makes the operator call o at each event of its elements. It may be given
// several times. Observers are called in this order, and the context that an observer
// returns goes to the next. A [observe.Gate] among them may hold the input back, and at
// most one [observe.CheckpointedObserver] may have a state in checkpoints. It panics if o
// is nil.
//
// If an observer is a [StatsReader] or a [GroupsReader], the constructor calls it.
func WithObserver(o observe.Observer) Option {
	guard.RefuseNil("asyncop: WithObserver", "observer", o)
	return func(c *config) { c.observers = append(c.observers, o) }
}

// WithMaxConcurrentCalls bounds the calls that run at once; the default is the capacity.
// Elements beyond it hold a slot and wait: retries before first attempts, oldest first.
// It panics if n < 1.
//
// A callback-style call ends with its attempt, a [Blocking] call when its function
// returns.
func WithMaxConcurrentCalls(n int) Option {
	refuseIf(n < 1, "WithMaxConcurrentCalls: must be at least 1, got %d", n)
	return func(cfg *config) { cfg.maxCalls = n }
}

// WithAttemptTimeout bounds each single attempt; its outcome is then an
// [*AttemptTimeoutError]. By default only the total timeout bounds it. It panics if d <=
// 0.
func WithAttemptTimeout(d time.Duration) Option {
	refuseIf(d <= 0, "WithAttemptTimeout: must be positive, got %v", d)
	return func(cfg *config) { cfg.attemptTimeout = min(d, maxTimeout) }
}

// WithTimeoutFor gives elements timeouts of their own. The duration that timeout returns
// for an element replaces the operator's timeout, whether it is shorter or longer. 0
// stands for the operator's. A negative duration means that the time is over: the element
// times out before its first call. So an element can bring its deadline:
//
//	asyncop.WithTimeoutFor(func(r Request) time.Duration { return time.Until(r.Deadline) })
//
// timeout is called once for each element, when it has taken its slot. It is called again
// when the element is restored from a checkpoint: the rest of the timeout is then
// computed from the new value (State.Retries). It is called on the operator's loop and
// must not block. A panic fails its element. IN must be the operator's. It panics if
// timeout is nil.
func WithTimeoutFor[IN any](timeout func(in IN) time.Duration) Option {
	guard.RefuseNil("asyncop: WithTimeoutFor", "function", timeout)
	return func(cfg *config) { cfg.timeoutFor = timeout }
}

// WithTimeoutFromFirstAttempt makes the timeout of an element count from the start of its
// first attempt, instead of from its acceptance. So an element that waits for a permit,
// for the rate of its backend ([WithBackend]), or for the end of an outage does not run
// out of time. It waits as long as that takes: without a bound, if a backend is held or
// does not come back. It keeps its slot meanwhile, so the input waits, too.
//
// If the timeout of an element that waits for its next attempt runs out while its backend
// is down or comes back, it begins anew with that attempt, up to three times. A service
// that throttles is not down: the timeout bounds such attempts. A restored element that keeps its attempts
// (State.Retries) has the rest of its time. An element with a negative timeout
// ([WithTimeoutFor]) times out at once.
func WithTimeoutFromFirstAttempt() Option {
	return func(cfg *config) { cfg.fromAttempt = true }
}

// WithHandlerLimit bounds the time of the fallback of [HandleFailure], and of a
// [TimeoutHandler], for each element; the default is 10 s. It panics if d <= 0.
func WithHandlerLimit(d time.Duration) Option {
	refuseIf(d <= 0, "WithHandlerLimit: must be positive, got %v", d)
	return func(cfg *config) { cfg.handlerLimit = min(d, maxTimeout) }
}

// WithEarlyTimeout times an element out as soon as its next retry could not start before
// its deadline, which frees its slot. By default such an element waits for its deadline,
// as in Flink and RFC 0049.
func WithEarlyTimeout() Option {
	return func(cfg *config) { cfg.earlyTimeout = true }
}

// WithDropOnFailure logs and counts elements that fail, and continues without them. By
// default the first failure fails the pipeline. It excludes [WithFailureSink].
func WithDropOnFailure() Option {
	return func(cfg *config) { cfg.setFailurePolicy("WithDropOnFailure") }
}

// WithFailureSink makes the operator call take for each element that fails. take writes
// it to a table, a queue, or the dead letters of package delivery, and the operator
// continues with the other elements. By default the first failure fails the pipeline.
//
//	asyncop.WithFailureSink(dead.Take) // of a *deadfile.File
//
// When take returns nil, the element is taken and its slot is free. After an error or a
// panic it is not taken, and take is called again: after 100 ms, then after twice as long
// each time, up to 10 s, by the operator's clock and as long as the operator runs. A
// clean end waits for it. So take should return an error only if another try makes sense.
//
// An error that matches [message.ErrRefused] says that take can never take the element:
// it is too large for its store, for example. A message is then rejected, and ends among
// the dead letters of its source. An element that is not a message fails the pipeline.
//
// take is called for a single element at a time, off the loop, and may block. Elements
// are offered in the order in which they fail; an element that waits for its next offer
// does not delay the others. Until it is taken, an element holds its slot: a sink that
// takes none stops the input when the slots are used up. Data that take shares with other
// goroutines, such as a slice with the body of the loop over the results, needs a lock.
// It must not wait for the operator.
//
// The context of the call has the values of the observers ([WithObserver]) and of the
// operator's context. It ends with the operator.
//
// When the operator fails or is cancelled, take is called once more for each failed
// element that it has not taken, and once for each element that was cut off
// (Failure.Abandoned). The contexts of these calls end 30 s after the operator. Done
// waits for the calls. Failed elements that are not taken then are lost: they are logged
// at error level, and counted in Stats.Abandoned.
//
// An element that is a message ([message.Message]) is acknowledged when it is taken. Its
// history is in the context ([message.MetaFromContext]). When the operator fails or is
// cancelled it is released to its source, and not offered once more.
//
// With checkpoints, an element is done as soon as it is taken. After a restart it may be
// offered again if it was taken since the last checkpoint, so take must recognise it by
// something of its own, such as an id. When the run fails or is cancelled, an element
// that was not taken is not offered once more: the next run processes it again.
//
// IN must be the operator's. It excludes [WithDropOnFailure].
func WithFailureSink[IN any](take func(ctx context.Context, f Failure[IN]) error) Option {
	guard.RefuseNil("asyncop: WithFailureSink", "function", take)
	return func(cfg *config) {
		cfg.setFailurePolicy("WithFailureSink")
		cfg.failureSink = take
	}
}

// WithExhaustedAsFailure makes an element fail with [ErrRetriesExhausted] if its last
// result still asks for another attempt. By default that result is emitted as it is, as
// in Flink, and counted.
func WithExhaustedAsFailure() Option {
	return func(cfg *config) { cfg.exhaustedAsFailure = true }
}

// WithDrainRetries lets retries finish after the end of the input, up to the timeout of
// each element. Give it to a flow whose input is finite, such as a list or a file:
// without it, the end of the input cuts its retries. It also applies to Stop.
// [AsyncWaitOperator.Results] and its siblings drain retries without it.
//
// By default a flow cuts retries, as in Flink, whose streams end only when they are
// stopped. An element that waits for a retry when the input ends gets a last attempt at
// once, unless a server demanded the wait, and no retry follows. If its last outcome
// still asks for a retry, the element fails, or the result is emitted as it is.
// Stats.CutByEndOfInput counts such elements, and the operator logs a warning at its end
// if there are any.
func WithDrainRetries() Option {
	return func(cfg *config) { cfg.drainRetries = true }
}

// WithBuffer sets the size of the buffers of In and of Out. The default is the capacity,
// but at most 128 up to a capacity of 1,024, an eighth of a larger capacity, and at most
// 1,024. With 0 two goroutines have to meet for each element, and a flow of short calls
// takes 1.5 to 5 times as long. Where Via, To or [AsyncWaitOperator.Results] take the
// results the size is the next power of two, and at least 1.
//
// So an operator whose sink takes nothing reads about as many elements as its capacity
// and two buffers, and begins calls for all but those in In. Elements in In are not
// accepted yet: they do not hold a slot, and are not in checkpoints. It panics if n < 0.
func WithBuffer(n int) Option {
	refuseIf(n < 0, "WithBuffer: negative size: %d", n)
	return func(cfg *config) { cfg.buffer = n }
}
