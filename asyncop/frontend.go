package asyncop

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// frontend is the part of an operator that depends on the user's functions and options.
// It makes the driver, and builds its errors, failures and log lines. The loop owns the
// fields that it writes.
type frontend[IN, OUT any] struct {
	config // read-only
	fn     AsyncFunction[IN, OUT]
	policy *decision.Steps[OUT]
	batch  *core.Batching[IN, OUT] // nil unless the function is Batched
	driver *drive.Driver[IN, OUT]

	// Options with the operator's types, or nil.
	sink      func(context.Context, Failure[IN]) error
	timeoutOf func(IN) time.Duration
	costOf    func(IN) float64
	tenantOf  func(IN) string
	state     drive.StateCodec[IN, OUT]

	rations []*ration // of log lines
	failingLine
	timelines timelines     // has its own lock
	groups    failureGroups // has its own lock
}

func (s *frontend[IN, OUT]) newDriver(timeout time.Duration, q queue.Queue[*core.Slot[IN, OUT]]) {
	s.groups.groups = counting.NewGroups(mostGroups)
	cfg := &s.config
	c := drive.Config[IN, OUT]{
		Core: s.coreConfig(timeout, q), Features: s.features(), Batch: s.batch,
		Context: cfg.ctx, Clock: cfg.clock, Name: cfg.name, Buffer: cfg.bufferFor(q.Cap()), Reorders: cfg.reorders,
		ErrStopped: ErrStopped, CancelUpstream: cfg.cancelUpstream, Node: s.newNode(), DrainRetries: cfg.drainRetries,
		Coordinator: cfg.coordinator, State: s.state, Overflow: cfg.overflow, Observer: cfg.checkpointed, Backend: cfg.backend,
		Hooks: drive.Hooks[IN]{
			WrongType: func(got any) error {
				return &TypeError{Operator: cfg.name, Got: reflect.TypeOf(got), Want: reflect.TypeFor[IN]()}
			},
			NotTaken: s.logNotTaken, ObserverBroke: func(err error) {
				s.logAttrs(s.ctx, slog.LevelError, "asyncop: an observer broke", slog.Any("error", err))
			},
			Abandoned: abandonedBy, Declined: s.logDeclined, SourceBroke: s.logSourceBroke, Log: s.logAttrs,
			LogLate:    func(level slog.Level, msg string, attrs ...slog.Attr) { s.write(s.ctx, level, msg, attrs...) },
			FlushLines: s.flushLines, LinesDue: s.linesDue,
		},
	}
	for _, o := range cfg.observers {
		if g, ok := o.(observe.Gate); ok {
			c.Gates = append(c.Gates, g)
		}
		if counter := counting.Of(o); counter != nil {
			c.Counters = append(c.Counters, counter)
		} else {
			c.Observers = append(c.Observers, o)
		}
	}
	if direct := directCall(s.fn); direct != nil {
		c.Direct = direct.run
	}
	if h, ok := find[Opener](s.fn); ok {
		c.Open = h.Open
	}
	if h, ok := find[io.Closer](s.fn); ok {
		c.Close = h.Close
	}
	if s.sink != nil {
		c.Sink = func(ctx context.Context, r core.Report[IN]) error { return s.sink(ctx, s.failureOf(r)) }
	}
	s.driver = drive.New(c)
}

// newNode returns the operator's node in the wiring of its pipeline.
func (s *frontend[IN, OUT]) newNode() *wiring.Node {
	node := &wiring.Node{
		Kind: "operator", Label: s.name, In: reflect.TypeFor[IN](), Out: reflect.TypeFor[OUT](), KeepsUpstream: s.keepsUpstream,
		DownstreamFailed: func(err *wiring.DownstreamError) { s.driver.DownstreamFailed(err) },
		UpstreamCut:      func(err error) { s.driver.CutByUpstream(err) },
	}
	if s.coordinator != nil {
		_ = node.MarkCheckpointed() // there is no next step yet
	}
	return node
}

// coreConfig returns the options of the core.
func (s *frontend[IN, OUT]) coreConfig(timeout time.Duration, q queue.Queue[*core.Slot[IN, OUT]]) core.Config[IN, OUT] {
	fn := s.fn
	c := core.Config[IN, OUT]{
		Queue: q,
		Invoke: func(ctx context.Context, in IN, a *call.Attempt[OUT]) error {
			return fn.AsyncInvoke(ctx, in, a)
		},
		Policy: s.policy, Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		Limits: core.Limits{
			Timeout: timeout, FromAttempt: s.fromAttempt, AttemptTimeout: s.attemptTimeout, EarlyTimeout: s.earlyTimeout, MaxCalls: s.maxCalls,
		},
		FailsRun: s.failurePolicy == "", ExhaustedAsFailure: s.exhaustedAsFailure,
		Restored: core.Restored{Keep: core.Keep(s.retryState), LeastPart: 10},
		Hooks:    s.coreHooks(),
	}
	if s.retryState == LatencyFirst && s.maxRetries != strategies.Unlimited {
		c.Restored.LeastPart = min(c.Restored.LeastPart, s.maxRetries+1)
	}
	if reflect.TypeFor[OUT]().Kind() == reflect.Interface || participant.IsControl(*new(OUT)) { // other types cannot be control elements
		c.Check = func(results []OUT) error {
			for _, v := range results {
				if participant.IsControl(v) || isMessage(v) {
					return errControlResult
				}
			}
			return nil
		}
	}
	return c
}

// features returns functions that add the optional parts of the core.
func (s *frontend[IN, OUT]) features() (all []func(g *core.Machine[IN, OUT])) {
	add := func(f func(g *core.Machine[IN, OUT])) { all = append(all, f) }
	if keys, _ := s.keys.(core.Keys[IN, OUT]); keys != nil {
		add(func(g *core.Machine[IN, OUT]) { core.OrderKeys(g, keys, s.maxWaitingPerKey) })
	}
	if s.timeoutOf != nil {
		add(func(g *core.Machine[IN, OUT]) {
			core.OwnTimeouts(g, func(in IN) time.Duration { return min(s.timeoutOf(in), maxTimeout) })
		})
	}
	if handlers, forAll := handlersOf(s.fn); len(handlers) > 0 {
		add(func(g *core.Machine[IN, OUT]) {
			core.HandleFailures(g, core.Handler[IN, OUT]{
				Handle: func(ctx context.Context, r core.Report[IN], timedOut bool) ([]OUT, error) {
					return handle(ctx, handlers, s.failureOf(r), timedOut)
				},
				All: forAll, Limit: s.handlerLimit, ErrLimit: errHandlerLimit, Broke: handlerBroke,
			})
		})
	}
	if s.backend != nil {
		calls := core.BackendCalls[IN]{Cost: s.costOf, Tenant: s.tenantOf, Budget: s.budget, Spent: s.budgetSpent}
		add(func(g *core.Machine[IN, OUT]) { core.AtBackend(g, calls) })
	}
	add(func(g *core.Machine[IN, OUT]) { core.KeepTimelines(g, s.timelineKeeper()) })
	add(func(g *core.Machine[IN, OUT]) {
		core.LogRetries(g, s.logsDebug, s.logDecision)
	})
	return all
}

// coreHooks returns functions that build errors and log lines.
func (s *frontend[IN, OUT]) coreHooks() core.Hooks[IN] {
	return core.Hooks[IN]{
		TimedOut: func(r core.Report[IN], out core.TimedOut) error {
			if out.Attempt {
				return &AttemptTimeoutError{Limit: s.attemptTimeout, Attempt: r.Attempts}
			}
			return &TimeoutError{
				Limit: r.Timeout, Attempts: r.Attempts, Last: r.Err, Early: out.Early,
				InDoubt: r.InDoubt, waited: out.Waited, element: r.Element, policy: s.policy,
			}
		},
		Undecided: func(d decision.Decision) error {
			if d.NoRetryReason == decision.Failed {
				return d.Err
			}
			return fmt.Errorf("%w (%v: %v)", ErrRetriesExhausted, d.NoRetryReason, d.Reason)
		},
		RunFailed: func(r core.Report[IN]) error {
			return &ElementError{
				Element: r.Element, Attempts: r.Attempts, Elapsed: r.Elapsed, Err: r.Err, label: s.labelOf(r.Element, true),
				NoRetryReason: r.NoRetryReason, Reason: r.Reason, InDoubt: r.InDoubt, policy: s.policy,
				Operator: s.name, retries: s.maxRetries,
			}
		},
		GivenUp: s.logGivenUp,
	}
}

// failureOf describes an element for the failure sink or the fallback.
func (s *frontend[IN, OUT]) failureOf(r core.Report[IN]) Failure[IN] {
	return Failure[IN]{
		Element: r.Element, Err: r.Err, Attempts: r.Attempts, Elapsed: r.Elapsed, Reasons: r.Reasons,
		NoRetryReason: r.NoRetryReason, Reason: r.Reason, InDoubt: r.InDoubt, Deduplicated: r.Deduplicated, policy: s.policy, Abandoned: !r.Failed,
		FirstAttempt: r.First, LastAttempt: r.Last,
	}
}
