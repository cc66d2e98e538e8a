package streams_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
)

// After a Stop, accepted elements end, and the loop gets ErrStopped.
func TestChainedThatIsStopped(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		fn := asyncop.Func(func(_ context.Context, in string, result optest.Future) error {
			time.AfterFunc(time.Second, func() { result.Complete(in) })
			return nil
		})
		forEver := func() (string, bool) { return "a", true }
		op := optest.Construct(m, fn, time.Minute, nil)
		got := optest.Chain(op, forEver, nil)
		synctest.Wait()
		require.NoError(t, op.Stop(context.Background()))
		require.Equal(t, strings.Repeat("a ", m.Capacity)+asyncop.ErrStopped.Error(), <-got)

		op = optest.Construct(m, fn, time.Minute, nil)
		require.NoError(t, op.Stop(context.Background()))
		require.Equal(t, asyncop.ErrStopped.Error(), <-optest.Chain(op, forEver, nil), "before the loop")
	})
}

// The loop over the results reports a Stop that came before the end of the input, and
// only such a Stop.
func TestResultsOfAnOperatorThatIsStopped(t *testing.T) {
	for _, before := range []bool{true, false} {
		optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
			h := optest.NewHand(t)
			h.Answer = optest.Upper
			op := optest.Construct(m, optest.Function(h), time.Minute, nil)
			var got []string
			var last error
			input := func(yield func(string) bool) {
				_ = yield("a") && yield("b")
				if before {
					synctest.Wait()
					go func() { assert.NoError(t, op.Stop(t.Context())) }()
					<-op.Done()
				}
			}
			for out, err := range op.Results(input) {
				if last = err; err == nil {
					got = append(got, out)
				}
			}
			require.Equal(t, []string{"A", "B"}, got)
			require.NoError(t, op.Err())
			require.NoError(t, op.Stop(t.Context()))
			if before {
				require.ErrorIs(t, last, asyncop.ErrStopped)
			} else {
				require.NoError(t, last)
			}
		})
	}
}
