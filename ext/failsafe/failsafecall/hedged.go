package failsafecall

import (
	"context"
	"errors"

	"github.com/failsafe-go/failsafe-go"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// ErrNotRepeatable is the failure of an element whose call was not made, because it must
// not happen twice: see [Hedged].
var ErrNotRepeatable = errors.New("failsafecall: the call of this element must not happen twice, so it cannot be hedged")

// notRepeatable is a rejection: another attempt would be refused, too.
var notRepeatable = predicates.NewRejection("NOT_REPEATABLE")

// Hedged is asyncop.Blocking with a hedge policy: a slow call is made once more beside
// the first, and the first answer counts. The context of the others ends.
//
// Both may take effect, so only calls that may happen twice are allowed: the element
// decides (predicates.Idempotent), or else repeatable. A nil repeatable means no.
// repeatable gets the context of the attempt, for calls that their server recognises by
// an identity in it. An element whose call must not happen twice fails with
// [ErrNotRepeatable], in stage ClientDispatch.
//
// The attempt has one permit for all its calls: with a limit of n calls, and h hedges
// each, up to n·(h+1) run. The permit is released when the policy has its answer; a call
// that continues after the end of its context no longer counts. Each call has two
// goroutines. Hedged panics if call or policy is nil.
func Hedged[IN, OUT any](
	call func(ctx context.Context, in IN) (OUT, error), policy hedgepolicy.HedgePolicy[OUT],
	repeatable func(ctx context.Context, in IN) bool,
) asyncop.AsyncFunction[IN, OUT] {
	if call == nil {
		panic("failsafecall: Hedged: nil call")
	}
	if policy == nil {
		panic("failsafecall: Hedged: nil policy")
	}
	executor := failsafe.With[OUT](policy)
	return asyncop.Blocking(func(ctx context.Context, in IN) (OUT, error) {
		if !mayHappenTwice(ctx, in, repeatable) {
			var none OUT
			return none, predicates.WithReason(
				&predicates.StageError{Stage: predicates.ClientDispatch, Err: ErrNotRepeatable}, notRepeatable)
		}
		return executor.WithContext(ctx).GetWithExecution(func(e failsafe.Execution[OUT]) (out OUT, err error) {
			// failsafe-go calls on its own goroutines: a panic would end the program, and
			// runtime.Goexit hang the attempt.
			err = guard.Call(func() (err error) {
				out, err = call(e.Context(), in)
				return err
			}, func(recovered any) error { return guard.Recovered("asyncop", recovered) })
			return out, err
		})
	})
}

func mayHappenTwice[IN any](ctx context.Context, in IN, repeatable func(ctx context.Context, in IN) bool) bool {
	if i, ok := any(in).(predicates.Idempotent); ok {
		return i.Idempotent()
	}
	return repeatable != nil && repeatable(ctx, in)
}
