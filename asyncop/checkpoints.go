package asyncop

import (
	"fmt"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
)

// WithCheckpoints makes the operator take part in the checkpoints of a pipeline. c is its
// *checkpoint.Coordinator. The operator needs a name ([WithName]) that is the same in
// each run. On a barrier it reports the elements that are not settled, in input order,
// and lets the barrier overtake them (law C1). Restored elements are called before new
// input.
//
//	asyncop.WithCheckpoints(coordinator)
//	asyncop.WithCheckpoints(coordinator, asyncop.State[Order, Receipt]{
//		Results: codec.JSON[Receipt](), Retries: asyncop.TimeSpent,
//	})
//
// At a barrier the loop copies the elements in flight, in about 20 ns each. The copy,
// which another goroutine encodes, takes IN and 48 bytes per element.
//
// Without this option, barriers wait in the queue like watermarks, so a checkpoint takes
// as long as the elements in flight.
//
// state is a [State] of the operator's types, by default its zero value. It panics if c
// is nil, or if Retries is unknown.
func WithCheckpoints(c Coordinator, state ...CheckpointState) Option {
	guard.RefuseNil("asyncop: WithCheckpoints", "coordinator", c)
	return func(cfg *config) {
		cfg.coordinator = c.Host()
		for _, s := range state {
			s.apply(cfg)
		}
	}
}

// Coordinator is a *checkpoint.Coordinator.
type Coordinator interface {
	// Host returns the methods that participants call.
	Host() participant.Host
}

// CheckpointState is a [State] of any types.
type CheckpointState interface {
	apply(cfg *config)
}

// State sets how a checkpoint stores an operator's elements, and how much restored
// elements keep: see [WithCheckpoints].
type State[IN, OUT any] struct {
	// Inputs encodes the inputs. The default is codec.Default. Calls must not change
	// inputs, which another goroutine encodes.
	Inputs codec.Codec[IN]
	// Results encodes results that are not yet emitted, so that their calls are not
	// repeated after a restart. nil means that they are not stored. Downstream must not
	// change results, which another goroutine encodes.
	Results codec.Codec[OUT]
	// Retries selects how much of their attempts and timeout restored elements keep. By
	// default both start again.
	//
	// With LatencyFirst and TimeSpent, an attempt that ran at the checkpoint is repeated
	// with the same number. So is the last attempt of a complete element whose results
	// were not stored, with the whole timeout from the checkpoint on. An element without
	// time left times out at once, unless that would fail the pipeline.
	//
	// An element in back-off always waits for the rest of it (law C3), which ends when it
	// would have ended without the restart, by the wall clock, so downtime counts. The
	// wait is never longer than the rest at the checkpoint, even if the clock was set
	// back. A step before the retry (strategies.Action.Before) is not kept.
	Retries RetryState
	// Overflow limits the elements that the operator reads past its capacity, to reach a
	// barrier or the marker of the end of the input behind them. 0 means 1,024, a
	// negative value no elements. They are not started, and are part of the checkpoint.
	//
	// A barrier of a checkpoint.Source passes a full queue and any number of elements:
	// while there are more than Overflow, the source sends only barriers. So the operator
	// never reads more past its capacity than Overflow and twice the number of elements
	// that buffers, flows and operators before it hold. A barrier of another source
	// passes at most Overflow elements; behind more, it waits for free slots. One more
	// may be read to look for a barrier.
	Overflow int
}

// apply sets the fields that are not zero.
func (s State[IN, OUT]) apply(cfg *config) {
	if s.Inputs != nil {
		cfg.inputCodec = s.Inputs
	}
	if s.Results != nil {
		cfg.resultCodec = s.Results
	}
	refuseIf(s.Retries > TimeSpent, "WithCheckpoints: unknown choice %v for Retries", s.Retries)
	if s.Retries != fromScratch {
		cfg.retryState = s.Retries
	}
	if s.Overflow != 0 {
		cfg.overflow = max(0, s.Overflow)
	}
}

// RetryState sets how much a restored element keeps of the time before the crash: the
// three choices of FLIP-232. By default, as in Flink, it keeps only the wait: it starts
// with attempt 1 and the whole timeout.
type RetryState uint8

const (
	fromScratch RetryState = iota // keeps only the wait
	// LatencyFirst keeps the attempts, and counts all the time since the first attempt,
	// including downtime. The rest of the timeout is timeout − (now − first execution),
	// but at least timeout/(maxRetries+1) and a tenth of the timeout. (FLIP-232 prints
	// now() − firstExecTime, apparently by mistake.) The strategy, or a strategy inside
	// it (Unwrap() any), must have a method MaxRetries() int.
	LatencyFirst
	// TimeSpent keeps the attempts, and counts only the time before the crash: timeout −
	// time spent, but at least a tenth of the timeout.
	TimeSpent
)

func (s RetryState) String() string {
	if int(s) < len(retryStates) {
		return retryStates[s]
	}
	return fmt.Sprintf("RetryState(%d)", uint8(s))
}

var retryStates = [...]string{"FromScratch", "LatencyFirst", "TimeSpent"}

// findStateful finds the observer with a state.
func (s *frontend[IN, OUT]) findStateful(constructor string) {
	for _, o := range s.observers {
		if c, ok := o.(observe.CheckpointedObserver); ok {
			refuseIf(s.checkpointed != nil, "%s: two observers with a state in checkpoints, a %T and a %T", constructor, s.checkpointed, c)
			s.checkpointed = c
		}
	}
}

// chooseCodecs sets the codecs, and panics if they have other types, or if codec.Default
// refuses the inputs.
func (s *frontend[IN, OUT]) chooseCodecs(constructor string) {
	of := func(what string, v any) string { return fmt.Sprintf("is not a codec for the %s, of type %T", what, v) }
	s.state.Inputs = typed[codec.Codec[IN]](constructor, "WithCheckpoints", s.inputCodec, of("inputs", *new(IN)))
	s.state.Results = typed[codec.Codec[OUT]](constructor, "WithCheckpoints", s.resultCodec, of("results", *new(OUT)))
	if s.state.Inputs == nil {
		defer func() {
			refused := recover()
			refuseIf(refused != nil, "%s: WithCheckpoints needs a codec for the inputs (State.Inputs): %v", constructor, refused)
		}()
		s.state.Inputs = codec.Default[IN]()
	}
}
