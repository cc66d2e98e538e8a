package asyncop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
)

// What user code that breaks leads to.
var (
	ErrGoexit        = guard.ErrGoexit
	ErrControlResult = errControlResult
	ErrHandlerLimit  = errHandlerLimit
)

// WithRandom sets the source of the jitter of back-offs.
func WithRandom(source rand.Source) Option {
	return func(cfg *config) { cfg.random = source }
}

// WithState is what WithCheckpoints does with a State.
func WithState(s interface{ apply(cfg *config) }) Option { return s.apply }

// ErrNil stands for a nil error.
var ErrNil = errNil

// SlotsTaken returns the number of slots taken. It may be called by user code that runs on the operator's loop.
func SlotsTaken[IN, OUT any](op *AsyncWaitOperator[IN, OUT]) int { return op.driver.Core().State().Len }

// StateText returns the elements of an operator's state, as a text: "a" with no attempts made, "a#2" with two, "|5|" for a
// watermark, "a=[A1 A2]" with results, "a@5" with the number of an observer.
func StateText[IN, OUT any](state []byte, results codec.Codec[OUT]) (string, error) {
	inputs := codec.Default[IN]()
	s, err := drive.StateCodec[IN, OUT]{Inputs: inputs, Results: results}.Decode(state)
	if err != nil {
		return "", err
	}
	texts := make([]string, len(s.Items))
	for i, it := range s.Items {
		switch {
		case it.Kind == core.Control:
			texts[i] = fmt.Sprintf("|%d|", it.Rest.(Watermark).Timestamp.Unix())
			continue
		case it.Attempts == 0:
			texts[i] = fmt.Sprint(it.In)
		default:
			texts[i] = fmt.Sprintf("%v#%d", it.In, it.Attempts)
		}
		if s.Observer != nil {
			texts[i] += fmt.Sprintf("@%d", s.Numbers[i])
		}
		if it.Kind == core.Completed {
			texts[i] += fmt.Sprintf("=%v", it.Results())
		}
	}
	return strings.Join(texts, " "), nil
}

// StateWithAttempts returns the state of an operator with one element that has been called so many times.
func StateWithAttempts[IN, OUT any](in IN, attempts int32) (participant.State, error) {
	return drive.StateCodec[IN, OUT]{Inputs: codec.Default[IN]()}.Encode(drive.Snapshot[IN, OUT]{
		Items: []core.Item[IN, OUT]{{In: in, Attempts: attempts, First: 1}},
	})
}

// WithTimeoutMethod returns fn with the optional method of a TimeoutHandler.
func WithTimeoutMethod[IN, OUT any](
	fn AsyncFunction[IN, OUT], timeout func(ctx context.Context, in IN) ([]OUT, error),
) AsyncFunction[IN, OUT] {
	return &withTimeoutMethod[IN, OUT]{fn, timeout}
}

type withTimeoutMethod[IN, OUT any] struct {
	AsyncFunction[IN, OUT]
	timeout func(ctx context.Context, in IN) ([]OUT, error)
}

func (f *withTimeoutMethod[IN, OUT]) Timeout(ctx context.Context, in IN) ([]OUT, error) {
	return f.timeout(ctx, in)
}
func (f *withTimeoutMethod[IN, OUT]) Unwrap() any { return f.AsyncFunction }

// FreePermits returns the number of permits that are free. It may be called while the operator is idle.
func FreePermits[IN, OUT any](op *AsyncWaitOperator[IN, OUT]) int {
	return core.Look(op.driver.Core()).FreePermits
}

// WaitingBeside returns how many pieces of user code are kept that wait for their turn. It may be called while the operator is
// idle.
func WaitingBeside[IN, OUT any](op *AsyncWaitOperator[IN, OUT]) int {
	return core.Look(op.driver.Core()).WaitingBeside
}
