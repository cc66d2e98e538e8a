package asyncop

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/nils"
)

// Option changes a setting of an operator. Options panic on nonsense, naming the option and the value.
type Option func(*config)

// Defaults of the options.
const (
	leastBuffer         = 128 // places of In and of Out; with many slots there are more
	mostBuffer          = 1024
	defaultOverflow     = 1024 // elements read past the capacity for the sake of a barrier
	defaultHandlerLimit = 10 * time.Second
)

// config is what the options set. It is read-only once the operator runs.
type config struct {
	clock          clock.Clock
	ctx            context.Context //nolint:containedctx // the operator's lifetime, given by WithContext
	cancelUpstream context.CancelCauseFunc
	name           string
	logger         *slog.Logger
	label          func(element any) string
	random         rand.Source
	observers      []Observer
	checkpointed   CheckpointedObserver // one of them, with checkpoints; nil: none has a state
	statsEvery     time.Duration        // 0: never

	keys             any // an core.Keys[IN, OUT]; nil: no key order
	maxWaitingPerKey int // 0: any number

	maxCalls       int     // 0: the capacity
	backend        Backend // nil: any
	cost           any     // a func(IN) float64, or nil
	tenant         any     // a func(IN) string, or nil
	timeoutFor     any     // a func(IN) time.Duration, or nil
	attemptTimeout time.Duration
	handlerLimit   time.Duration
	earlyTimeout   bool

	onFailure          failurePolicy
	policyOption       string // that has set it
	failureSink        any    // a func(context.Context, Failure[IN]) error
	sideOutput         streams.Inlet
	exhaustedAsFailure bool
	drainRetries       bool // Results does so without it
	buffer             int  // negative: as many as the slots suggest

	reorders    bool             // set by the constructor
	coordinator participant.Host // nil: takes no part in checkpoints
	forChecks   string           // an option that was given and means nothing without them; empty if there is none
	retryState  RetryState
	maxRetries  int // of the strategy; for LatencyFirst
	allowed     int // retries that the strategy says it allows; 0: it does not
	overflow    int
	inputCodec  any // a codec.Codec[IN], or nil
	resultCodec any // a codec.Codec[OUT], or nil: results are not stored
}

func newConfig(opts []Option) config {
	c := config{
		clock:        clock.New(),
		ctx:          context.Background(),
		logger:       slog.Default(),
		handlerLimit: defaultHandlerLimit,
		buffer:       -1,
		overflow:     defaultOverflow,
	}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("asyncop: option %d is nil", i))
		}
		opt(&c)
	}
	return c
}

// bufferFor returns the number of places of In and of Out of an operator with that many slots.
func (c *config) bufferFor(capacity int) int {
	if c.buffer < 0 {
		return max(leastBuffer, min(capacity/8, mostBuffer))
	}
	return c.buffer
}

// failurePolicy is what becomes of elements that fail.
type failurePolicy uint8

const (
	failsRun  failurePolicy = iota // the first one ends the run
	drops                          // they are dropped
	handsOver                      // they are offered to the failure sink until that takes them
)

// setPolicy sets the failure policy that an option stands for. Of several options the last one of a kind counts.
func (c *config) setPolicy(p failurePolicy, option string) {
	if c.policyOption != "" && c.policyOption != option {
		panic(fmt.Sprintf("asyncop: %s and %s exclude each other: an element fails once", c.policyOption, option))
	}
	c.onFailure, c.policyOption = p, option
}

// WithClock sets the clock of every timer of the operator; the default is the real one. It must not go back. A clock.Mock makes
// all times exact in tests, as testing/synctest does without one; the contexts of attempts then report no deadline, since a
// real dialer would take a mock's deadline for one long past.
func WithClock(c clock.Clock) Option {
	if nils.Is(c) {
		panic("asyncop: WithClock: nil clock")
	}
	return func(cfg *config) { cfg.clock = c }
}

// WithContext sets the context of the operator; the default is context.Background(). When it ends, so do the contexts
// of all attempts, Out closes, and Err returns context.Cause. Attempts see its values.
//
// An operator that runs inside a call of another one needs the context of that call: what its own calls report
// ([predicates.ReportSent], ReportStage of NetworkTime) then counts for the outer call, too. [Map] takes it as its first argument.
func WithContext(ctx context.Context) Option {
	if nils.Is(ctx) {
		panic("asyncop: WithContext: nil context")
	}
	return func(cfg *config) { cfg.ctx = ctx }
}

// WithUpstreamCancel sets what the operator calls, once, when it takes no more input before its input has ended: with
// the failure, the cause of the cancellation, or [ErrStopped]. It should end the source, which closes In in turn. There
// is none by default: what a source sends to an ended operator is discarded and counted.
//
// It may wait for the source; Done waits for it. Stop calls it, too, and then drains. So it must not end the operator's own
// context ([WithContext]), or nothing is left to be drained: give the source a context of its own, derived from the operator's
// for instance.
func WithUpstreamCancel(cancel context.CancelCauseFunc) Option {
	if cancel == nil {
		panic("asyncop: WithUpstreamCancel: nil function")
	}
	return func(cfg *config) { cfg.cancelUpstream = cancel }
}

// reordering adds to the options of an operator that emits in the order of completion that it does.
func reordering(opts []Option) []Option {
	return slices.Concat(opts, []Option{func(cfg *config) { cfg.reorders = true }})
}

// WithName names the operator in logs and, in a checkpoint, its state. The default is the empty string.
func WithName(name string) Option {
	return func(cfg *config) { cfg.name = name }
}

// WithLogger sets the logger; the default is slog.Default() at construction. Retries, and retries that are not made although
// there was a reason, are logged at debug level; elements that failed and calls that block the loop at warn. At most 10 lines
// of a kind are written a second, and then one with the number of lines left out. While at least a tenth of the attempts fail, a line
// at warn says how many did, every 10 s, with the last error. An operator that fails is logged once at
// error level, also if nothing calls Wait; one that was cancelled at info level. A line about a panic has its stack.
func WithLogger(logger *slog.Logger) Option {
	if logger == nil {
		panic("asyncop: WithLogger: nil logger")
	}
	return func(cfg *config) { cfg.logger = logger }
}

// WithObserver makes the operator call o with what happens to its elements. It may be given several times. Observers are called
// in this order, and the context that one returns goes to the next. A [Gate] among them may hold the input back, and one
// [CheckpointedObserver] may have a state in checkpoints. It panics if o is nil.
//
// If an observer has a method Attach(stats func() Stats, done <-chan struct{}), as metrics have, the constructor calls it:
// stats is [AsyncWaitOperator.Stats], and done [AsyncWaitOperator.Done].
func WithObserver(o Observer) Option {
	if nils.Is(o) {
		panic("asyncop: WithObserver: nil observer")
	}
	return func(c *config) { c.observers = append(c.observers, o) }
}

// WithStatsEvery logs the statistics ([Stats]) at info level: d after the first element, then every d as long as elements are
// in flight or something has changed, and once more at the end. So an idle operator logs nothing. By default, and with 0, none
// are logged. It panics if d < 0.
//
// The line has the counts since the operator began. per_second is the number of elements completed a second since the line
// before.
func WithStatsEvery(d time.Duration) Option {
	if d < 0 {
		panic(fmt.Sprintf("asyncop: WithStatsEvery: negative interval: %v", d))
	}
	return func(c *config) { c.statsEvery = d }
}

// WithElementLabel sets what names an element in logs and error messages, such as its key. By default a short string or
// number stands for itself and anything else for its type, since whole records do not belong in logs.
func WithElementLabel(label func(element any) string) Option {
	if label == nil {
		panic("asyncop: WithElementLabel: nil function")
	}
	return func(cfg *config) { cfg.label = label }
}

// WithRandom sets the source of the jitter of back-offs; the default is seeded by the runtime. It is used by the
// operator's loop alone.
func WithRandom(source rand.Source) Option {
	if nils.Is(source) {
		panic("asyncop: WithRandom: nil source")
	}
	return func(cfg *config) { cfg.random = source }
}

// WithMaxConcurrentCalls bounds the calls that run at once; the default is the capacity. Elements beyond it hold a slot
// and wait: retries before first attempts, oldest first. It panics if n < 1.
//
// A callback-style call ends with its attempt, a [Blocking] one when its function returns.
func WithMaxConcurrentCalls(n int) Option {
	if n < 1 {
		panic(fmt.Sprintf("asyncop: WithMaxConcurrentCalls: must be at least 1, got %d", n))
	}
	return func(cfg *config) { cfg.maxCalls = n }
}

// WithAttemptTimeout bounds each single attempt; its outcome is then an [*AttemptTimeoutError]. By default only the
// total timeout bounds it. It panics if d <= 0.
func WithAttemptTimeout(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("asyncop: WithAttemptTimeout: must be positive, got %v", d))
	}
	return func(cfg *config) { cfg.attemptTimeout = min(d, maxTimeout) }
}

// WithTimeoutFor gives elements timeouts of their own. What timeout returns for an element takes the place of the operator's
// timeout, whether it is shorter or longer. 0 stands for the operator's. A negative one means that the time is over: the
// element times out before its first call. So an element can bring its deadline:
//
//	asyncop.WithTimeoutFor(func(r Request) time.Duration { return time.Until(r.Deadline) })
//
// timeout is called once for each element, when it has taken its slot. It is called again when the element is restored from a
// checkpoint: the rest of the timeout is then computed from the new value ([WithRetryState]). It is called on the operator's loop and must
// not block. A panic fails its element. IN must be the operator's. It panics if timeout is nil.
func WithTimeoutFor[IN any](timeout func(in IN) time.Duration) Option {
	if timeout == nil {
		panic("asyncop: WithTimeoutFor: nil function")
	}
	return func(cfg *config) { cfg.timeoutFor = timeout }
}

// WithHandlerLimit bounds the time of the fallback of [HandleFailure], and of a [TimeoutHandler], for one element; the default
// is 10 s. It panics if d <= 0.
func WithHandlerLimit(d time.Duration) Option {
	if d <= 0 {
		panic(fmt.Sprintf("asyncop: WithHandlerLimit: must be positive, got %v", d))
	}
	return func(cfg *config) { cfg.handlerLimit = min(d, maxTimeout) }
}

// WithEarlyTimeout times an element out as soon as its next retry could not start before its deadline, which frees its
// slot. By default such an element waits for its deadline, as in Flink and RFC 0049.
func WithEarlyTimeout() Option {
	return func(cfg *config) { cfg.earlyTimeout = true }
}

// WithDropOnFailure logs and counts elements that fail, and goes on without them. By default the first failure fails
// the pipeline. It excludes [WithFailureSink] and [WithSideOutput].
func WithDropOnFailure() Option {
	return func(cfg *config) { cfg.setPolicy(drops, "WithDropOnFailure") }
}

// WithFailureSink makes the operator call take for each element that fails. take writes it to a table, a queue, or the dead
// letters of package delivery, and the other elements go on. By default the first failure fails the pipeline.
//
//	asyncop.WithFailureSink(dead.Take) // of a *deadfile.File
//
// When take returns nil, the element is taken and its slot is free. After an error or a panic it is not taken, and take is
// called again: after 100 ms, then after twice as long each time, up to 10 s, by the operator's clock and as long as the
// operator runs. A clean end waits for it. So take should return an error only if another try makes sense.
//
// An error that matches [delivery.ErrRefused] says that take can never take the element: it is too large for its store, for example.
// A message is then rejected, and ends among the dead letters of its source. An element that is no message fails the pipeline.
//
// take is called for one element at a time, off the loop, and may block. Elements are offered in the order in which they fail;
// one that waits for its next offer does not hold up the others. Until it is taken, an element holds its slot: a sink that
// takes nothing stops the input when the slots are used up. What take shares with other goroutines, such as a slice with the
// body of the loop over the results, needs a lock. It must not wait for the operator.
//
// The context of the call has the values of the observers ([WithObserver]) and of the operator's context. It ends with the
// operator.
//
// When the operator fails or is cancelled, take is called once more for each failed element that it has not taken, and once for
// each element that was cut off (Failure.Abandoned). The contexts of these calls end 30 s after the operator. Done waits for
// the calls. Failed elements that are not taken then are lost: they are logged at error level, and counted in Stats.Abandoned.
//
// An element that is a message ([delivery.Message]) is acknowledged when it is taken. Its history is in the context
// ([delivery.MetaFromContext]). When the operator fails or is cancelled it is given back to its source, and not offered once
// more.
//
// With checkpoints, an element is done as soon as it is taken. After a restart it may be offered again if it was taken since
// the last checkpoint, so take must recognise it by something of its own, such as an id. When the run fails or is cancelled, an
// element that was not taken is not offered once more: it comes again in the next run.
//
// IN must be the operator's. It excludes [WithSideOutput] and [WithDropOnFailure].
func WithFailureSink[IN any](take func(ctx context.Context, f Failure[IN]) error) Option {
	if take == nil {
		panic("asyncop: WithFailureSink: nil function")
	}
	return func(cfg *config) {
		cfg.setPolicy(handsOver, "WithFailureSink")
		cfg.failureSink = take
	}
}

// WithSideOutput is [WithFailureSink] for go-streams: elements that fail go to inlet, a sink or a flow, as [Failure] values.
// One is taken when it was sent to the channel of inlet. The operator closes inlet.In() after the last one, so each operator
// needs an inlet of its own; if inlet is a streams.Sink, Done waits for its completion. An inlet that takes nothing for 30 s
// after a failure or a cancel is given up.
//
// With checkpoints, what inlet has taken and not stored, such as what is in a channel with a buffer, is lost if the process is
// killed: use WithFailureSink. It panics if inlet is nil, or its In. It excludes WithFailureSink and [WithDropOnFailure].
func WithSideOutput(inlet streams.Inlet) Option {
	if nils.Is(inlet) {
		panic("asyncop: WithSideOutput: nil inlet")
	}
	if inlet.In() == nil {
		panic(fmt.Sprintf("asyncop: WithSideOutput: In of the %T is nil", inlet))
	}
	return func(cfg *config) {
		cfg.setPolicy(handsOver, "WithSideOutput")
		cfg.sideOutput = inlet
	}
}

// sendTo returns the failure sink that sends to a side output.
func sendTo[IN any](failures chan<- any) func(context.Context, Failure[IN]) error {
	return func(ctx context.Context, f Failure[IN]) error {
		select {
		case failures <- f:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// completeInlet ends a side output, and waits for it if that is possible.
func completeInlet(sideOutput streams.Inlet) {
	close(sideOutput.In())
	if sink, ok := sideOutput.(streams.Sink); ok {
		sink.AwaitCompletion()
	}
}

// WithExhaustedAsFailure makes an element fail with [ErrRetriesExhausted] if its last result still asks for another
// attempt. By default that result is emitted as it is, as in Flink, and counted.
func WithExhaustedAsFailure() Option {
	return func(cfg *config) { cfg.exhaustedAsFailure = true }
}

// WithDrainRetries lets retries run their course after the end of the input, up to the timeout of each element. Give it to a
// flow whose input is finite, such as a list or a file: its end comes before the retries do, and cuts them. It also applies to
// Stop. [AsyncWaitOperator.Results] and its siblings drain retries without it.
//
// By default a flow cuts retries, as in Flink, whose streams end only when they are stopped. An element that waits for a retry
// when the input ends gets one last attempt at once, unless a server demanded the wait, and no retry follows. What its last
// outcome would have retried then fails, or is emitted as it is. Stats.CutByEndOfInput counts such elements, and the operator
// logs a warning at its end if there are any.
func WithDrainRetries() Option {
	return func(cfg *config) { cfg.drainRetries = true }
}

// WithBuffer sets the size of the buffers of In and of Out. The default is an eighth of the capacity, but at least 128 and at most
// 1,024. With 0 two goroutines have to meet for each element, and a flow of short calls takes 1.5 to 5 times as
// long. Where Via, To or [AsyncWaitOperator.Results] take the results the size is the next power of two, and at least 1. Elements in
// In are not accepted yet: they hold no slot and are in no checkpoint. It panics if n < 0.
func WithBuffer(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("asyncop: WithBuffer: negative number of places: %d", n))
	}
	return func(cfg *config) { cfg.buffer = n }
}

// WithCheckpoints makes the operator take part in the checkpoints of a pipeline. It needs a name ([WithName]) that stays the same
// from run to run. On a barrier the operator reports its elements that are not settled, in input order, and lets the barrier
// pass ahead of them (law C1). After a restart, restored elements are called before any new input. The state of a
// [CheckpointedObserver] is a part of the operator's.
//
// At a barrier the loop copies what is in flight, which takes about 20 ns an element. Another goroutine encodes the copy. Its
// memory, IN and 48 bytes an element, is kept from checkpoint to checkpoint.
//
// Without this option, barriers wait their turn like watermarks, so that nothing is in flight behind them. A checkpoint then
// takes as long as the elements in flight. [WithRetryState], [WithInputCodec], [WithResultCodec] and [WithOverflow] would do
// nothing, so the constructors panic if they are given.
func WithCheckpoints(c *checkpoint.Coordinator) Option {
	if c == nil {
		panic("asyncop: WithCheckpoints: nil coordinator")
	}
	return func(cfg *config) { cfg.coordinator = c.Host() }
}

// RetryState says what a restored element keeps of the time before the crash: the three choices of FLIP-232.
type RetryState uint8

const (
	// FromScratch keeps nothing but the wait: no attempts made, the whole timeout. It is the default, as in Flink.
	FromScratch RetryState = iota
	// LatencyFirst keeps the attempts, and counts all the time since the first of them, downtime included. What is left is
	// timeout − (now − first execution), but at least timeout/(maxRetries+1) and a tenth of the timeout, enough for one
	// attempt. The FLIP prints now() − firstExecTime for the new timeout, which must be a slip. The strategy must have a method
	// MaxRetries() int, or wrap one that has it and return that from a method Unwrap() any.
	LatencyFirst
	// TimeSpent keeps the attempts, and counts the time before the crash only: timeout − time spent, but at least a tenth of
	// the timeout. With less, an element that needs more would fail the pipeline after every restart.
	TimeSpent
)

func (s RetryState) String() string {
	if int(s) < len(retryStates) {
		return retryStates[s]
	}
	return fmt.Sprintf("RetryState(%d)", uint8(s))
}

var retryStates = [...]string{"FromScratch", "LatencyFirst", "TimeSpent"}

// WithRetryState says what restored elements keep; the default is [FromScratch]. An attempt that ran when the checkpoint was
// taken is made again under its number. An element that has nothing left of its timeout times out at once, if that does not
// fail the pipeline.
//
// Whatever is chosen, an element in back-off waits for the rest of it (law C3), also if a server demanded it by Retry-After.
// The wait ends when it would have ended without the restart: by the wall clock, so the time that the process was down counts.
// It is never longer than it was when the checkpoint was taken, also if the clock was set back. What a strategy wanted done
// before the retry (strategies.Action.Before) is not kept.
//
// An element that was complete, and whose results were not stored ([WithResultCodec]), is called again under the number of its
// last attempt. It has the whole timeout, which counts from the checkpoint.
func WithRetryState(s RetryState) Option {
	if s > TimeSpent {
		panic(fmt.Sprintf("asyncop: WithRetryState: unknown choice %v", s))
	}
	return func(cfg *config) { cfg.retryState, cfg.forChecks = s, "WithRetryState" }
}

// WithInputCodec sets how the inputs in a checkpoint are encoded; the default is codec.Default. IN must be the
// operator's. Inputs are encoded on a goroutine of their own, while their calls run: neither may change them.
func WithInputCodec[IN any](c codec.Codec[IN]) Option {
	if nils.Is(c) {
		panic("asyncop: WithInputCodec: nil codec")
	}
	return func(cfg *config) { cfg.inputCodec, cfg.forChecks = c, "WithInputCodec" }
}

// WithResultCodec stores the results of elements that are complete but not yet emitted, too, so that their calls are not
// repeated after a restore. By default results are not stored, and the calls are repeated. Results are encoded while the
// pipeline goes on, so downstream must not change them. OUT must be the operator's.
func WithResultCodec[OUT any](c codec.Codec[OUT]) Option {
	if nils.Is(c) {
		panic("asyncop: WithResultCodec: nil codec")
	}
	return func(cfg *config) { cfg.resultCodec, cfg.forChecks = c, "WithResultCodec" }
}

// WithOverflow bounds the elements that the operator reads past its capacity; the default is 1024. It does so to reach a
// barrier of a checkpoint, or the marker of the end of the input, behind them. They are not started, and are part of the
// checkpoint.
//
// A barrier of a checkpoint.Source gets through a full queue behind any number of elements: while there are more than n, the
// source sends barriers only. So the operator never reads more past its capacity than n and twice what the stream before it
// holds, in buffers, flows and operators. A barrier of another source gets through behind at most n elements; behind more, it
// waits until slots come free. To see whether the barrier has come, one more element may be read. It panics if n < 0.
func WithOverflow(n int) Option {
	if n < 0 {
		panic(fmt.Sprintf("asyncop: WithOverflow: negative number of elements: %d", n))
	}
	return func(cfg *config) { cfg.overflow, cfg.forChecks = n, "WithOverflow" }
}
