package asyncop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
)

// Law Q1: a call that completes at once does not overtake completions that were taken from the mailbox with the answer that
// started it.
func TestCompletionAtOnceDoesNotOvertake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		futures := map[string]ResultFuture[string]{}
		fn := Func(func(ctx context.Context, in string, result ResultFuture[string]) error {
			switch {
			case in == "b":
				futures[in] = result
			case AttemptFromContext(ctx) == 1:
				return errors.New("broken")
			default:
				result.Complete("A")
			}
			return nil
		})
		refresh := strategies.ReasonStrategyFunc[string](
			func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
				return strategies.Action{Retry: true, Before: func(context.Context) error { return nil }}, nil
			})
		p := strategies.ReasonAware(predicates.ByException[string](predicates.HasException,
			predicates.NewReason("TEST", true, false)), refresh).Immediate()
		c := newCore(newConfig(nil), fn, delegatorOf(p, nil), time.Minute, queue.NewUnordered[slot[string, string]](4))
		c.accept("a")
		c.accept("b")
		c.startWaiting()
		synctest.Wait() // a's refresh has answered
		futures["b"].Complete("B")
		c.turn()
		c.turn()
		for _, want := range []string{"B", "A"} {
			assert.Equal(t, []string{want}, c.queue.Head().Value.results())
			c.queue.Pop()
		}
		c.workers.Stop()
	})
}
