package asyncop

import (
	"context"
	"io"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// frontend has the user's functions and options: the drive.User of its driver. The loop
// owns the fields that it writes.
type frontend[IN, OUT any] struct {
	config // read-only
	fn     AsyncFunction[IN, OUT]
	policy *decision.Steps[OUT]
	batch  *batching[IN, OUT] // nil unless the function is Batched
	driver *drive.Driver[IN, OUT]

	handlers   []handler[IN, OUT]
	handlesAll bool // not only timeouts

	// With the operator's types, or nil.
	sink      func(context.Context, Failure[IN]) error
	timeoutOf func(IN) time.Duration
	costOf    func(IN) float64
	tenantOf  func(IN) string
	state     drive.StateCodec[IN, OUT]

	lines *counting.Lines[lineKey] // limits lines
	failingLine
	timelines timelines     // has its own lock
	groups    failureGroups // has its own lock
}

func (s *frontend[IN, OUT]) newDriver(timeout time.Duration, q queue.Queue[*core.Slot[IN, OUT]]) {
	s.groups.groups = counting.NewGroups(mostGroups)
	s.lines = counting.NewLines[lineKey](groupPeriod, mostLineGroups)
	s.handlers, s.handlesAll = handlersOf(s.fn)
	cfg := &s.config
	c := drive.Config[IN, OUT]{
		Core: s.coreConfig(timeout, q), User: s,
		Context: cfg.ctx, Clock: cfg.clock, Name: cfg.name, Buffer: cfg.bufferFor(q.Cap()), Reorders: cfg.reorders,
		ErrStopped: ErrStopped, CancelUpstream: cfg.cancelUpstream, Node: s.newNode(), DrainRetries: cfg.drainRetries,
		Coordinator: cfg.coordinator, State: s.state, MaxOverflow: cfg.overflow, Observer: cfg.checkpointed, Backend: gate.Of(cfg.backend),
	}
	for _, o := range cfg.observers {
		if g, ok := o.(observe.Gate); ok {
			c.Gates = append(c.Gates, g)
		}
	}
	if direct := directCall(s.fn); direct != nil {
		c.BlockingCall = direct.run
	}
	if opener, ok := find[Opener](s.fn); ok {
		c.Opener = opener
	}
	if closer, ok := find[io.Closer](s.fn); ok {
		c.Closer = closer
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
		_ = node.MarkCheckpointed() // not linked yet
	}
	return node
}

// coreConfig returns the options of the core.
func (s *frontend[IN, OUT]) coreConfig(timeout time.Duration, q queue.Queue[*core.Slot[IN, OUT]]) core.Config[IN, OUT] {
	c := core.Config[IN, OUT]{
		Queue:  q,
		Policy: s.policy, Random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
		Limits: core.Limits{
			Timeout: timeout, FromAttempt: s.fromAttempt, AttemptTimeout: s.attemptTimeout, EarlyTimeout: s.earlyTimeout, MaxCalls: s.maxCalls,
		},
		FailsRun: s.failurePolicy == "", ExhaustedAsFailure: s.exhaustedAsFailure,
		Restored: core.Restored{Keep: core.Keep(s.retryState), ReserveDivisor: 10},

		MaxWaitingPerKey: s.maxWaitingPerKey, OwnTimeouts: s.timeoutOf != nil, HandsOver: s.sink != nil,
		// Other types cannot be control elements, which are refused.
		ChecksResults:    reflect.TypeFor[OUT]().Kind() == reflect.Interface || participant.IsControl(*new(OUT)),
		AsksForTimelines: reflect.TypeFor[IN]().Implements(reflect.TypeFor[timelineAsker]()),
	}
	if s.retryState == LatencyFirst && s.maxRetries != strategies.Unlimited {
		c.Restored.ReserveDivisor = min(c.Restored.ReserveDivisor, s.maxRetries+1)
	}
	c.Keys, _ = s.keys.(core.Keys[IN, OUT])
	c.Lookups = lookupsOf[IN](s.fn)
	if s.batch != nil {
		c.Batching = &s.batch.Batching
	}
	if s.backend != nil {
		c.Calls = &core.BackendCalls{HasCost: s.costOf != nil, HasTenant: s.tenantOf != nil, Budget: s.budget}
		c.Calls.HasKey = s.keyIsTenant()
	}
	if len(s.handlers) > 0 {
		c.Handling = &core.Handling{All: s.handlesAll, Limit: s.handlerLimit, ErrLimit: errHandlerLimit}
	}
	for _, o := range s.observers {
		if counter := counting.Of(o); counter != nil {
			c.Counters = append(c.Counters, counter)
		} else {
			c.Observers = append(c.Observers, o)
		}
	}
	return c
}

// keyIsTenant reports whether the key of a message is its tenant. A batch may have
// several keys.
func (s *frontend[IN, OUT]) keyIsTenant() bool {
	return s.backend != nil && s.tenantOf == nil && s.batch == nil && gate.Of(s.backend).BreaksTenants()
}
