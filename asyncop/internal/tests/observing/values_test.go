package observing_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

type elementValue struct{}

type attemptValue struct{}

// giving is an observer that adds a value to the context of each element and of each
// attempt.
type giving struct{ observe.Observer }

func (giving) Accepted(ctx context.Context, element any, _ bool) context.Context {
	return context.WithValue(ctx, elementValue{}, "of "+fmt.Sprint(element))
}

func (giving) AttemptStarted(ctx context.Context, attempt int) context.Context {
	return context.WithValue(ctx, attemptValue{}, fmt.Sprint("try ", attempt))
}

func (giving) AttemptEnded(context.Context, observe.Outcome) {}
func (giving) Ended(context.Context, observe.Ending)         {}

// known describes the values that user code finds in a context: the values of the
// operator, the element and the attempt, the number of the attempt, and the message.
func known(ctx context.Context) string {
	meta, _ := message.MetaFromContext(ctx)
	return fmt.Sprint(ctx.Value(operatorValue{}), ", ", ctx.Value(elementValue{}), ", ", ctx.Value(attemptValue{}), ", ",
		asyncop.AttemptFromContext(ctx), ", ", meta.ID)
}

type operatorValue struct{}

// valueLog records the values that the logger finds in the contexts of lines about
// elements.
type valueLog struct {
	slog.Handler
	found map[string]string
}

func (l valueLog) Enabled(context.Context, slog.Level) bool { return true }
func (l valueLog) Handle(ctx context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "element") || strings.Contains(r.Message, "retr") {
		l.found["log "+r.Message] = known(ctx)
	}
	return nil
}

// All user code that runs for an element finds the values of its observers, its message,
// and the number of its attempt.
func TestValuesReachUserCode(t *testing.T) {
	for _, kind := range []string{"blocking strategy", "immediate strategy"} {
		for _, batched := range []bool{false, true} {
			for _, observed := range []bool{false, true} {
				t.Run(fmt.Sprint(kind, " batched ", batched, " observed ", observed), func(t *testing.T) {
					found := map[string]string{}
					strategy := strategies.ReasonStrategyFunc[string](func(ctx context.Context, a *optest.View) (strategies.Action, error) {
						found["strategy"] = known(ctx)
						found["view of the strategy"] = known(a.Values.(context.Context)) //nolint:forcetypeassert // as documented
						return strategies.Action{Retry: a.Number < 2, Before: func(ctx context.Context) error {
							found["before"] = known(ctx)
							return nil
						}}, nil
					})
					policy := strategies.ReasonAware(func(a *optest.View) (predicates.Reason, bool) {
						found["classifier"] = known(a.Values.(context.Context)) //nolint:forcetypeassert // as documented
						return optest.SafeReason, true
					}, strategy)
					if kind == "immediate strategy" {
						policy = policy.Immediate()
					}
					one := func(ctx context.Context) {
						found["call"] = known(ctx)
					}
					fn := asyncop.Blocking(func(ctx context.Context, _ string) (string, error) {
						one(ctx)
						return "", optest.ErrBroken
					})
					if batched {
						fn = asyncop.Batched(func(ctx context.Context, ins []string) ([]asyncop.Result[string], error) {
							for _, m := range asyncop.MemberContexts(ctx) {
								one(m)
							}
							return nil, optest.ErrBroken
						}, 1, 0)
					}
					fn = asyncop.HandleFailure(fn, func(ctx context.Context, f asyncop.Failure[string]) ([]string, error) {
						found["fallback"] = known(ctx)
						return nil, f.Err
					})
					opts := []asyncop.Option{
						asyncop.WithContext(message.ContextWithMeta(
							context.WithValue(t.Context(), operatorValue{}, "op"), message.Meta{ID: "around"})),
						asyncop.WithLogger(slog.New(valueLog{found: found})),
						asyncop.WithFailureSink(func(ctx context.Context, _ asyncop.Failure[string]) error {
							found["failure sink"] = known(ctx)
							return nil
						}),
					}
					want := map[string]string{"element": "op, <nil>, <nil>, %d, m1", "attempt": "op, <nil>, <nil>, %d, m1"}
					if observed {
						opts = append(opts, asyncop.WithObserver(giving{}))
						want = map[string]string{"element": "op, of a, <nil>, %d, m1", "attempt": "op, of a, try 2, %d, m1"}
					}
					op := asyncop.OrderedWaitWithRetry(fn, time.Minute, 1, policy, opts...)
					op.In() <- message.New("a", &message.Meta{ID: "m1"}, func(message.Settlement) {})
					close(op.In())
					for range op.Out() {
					}
					require.NoError(t, op.Wait())

					attempt, element := fmt.Sprintf(want["attempt"], 2), fmt.Sprintf(want["element"], 0)
					for where, what := range map[string]string{
						"call": attempt, "classifier": attempt, "view of the strategy": attempt, "strategy": attempt, "before": attempt,
						"fallback": element, "failure sink": element,
					} {
						require.Equal(t, what, found[where], where)
					}
					lines := 0
					for where, what := range found {
						if strings.HasPrefix(where, "log ") {
							lines++
							require.Equal(t, element, what, where)
						}
					}
					require.Positive(t, lines)
				})
			}
		}
	}
}

// uncomparable is a context of a type that cannot be compared.
type uncomparable struct {
	context.Context
	values map[any]any
}

func (u uncomparable) Value(key any) any {
	if v, ok := u.values[key]; ok {
		return v
	}
	return u.Context.Value(key)
}

// unchanged is an observer that returns the contexts that it is given.
type unchanged struct{ giving }

func (unchanged) Accepted(ctx context.Context, _ any, _ bool) context.Context { return ctx }
func (unchanged) AttemptStarted(ctx context.Context, _ int) context.Context   { return ctx }

// Law A6: the user's context may be of any type.
func TestWithContext_TypeThatCannotBeCompared(t *testing.T) {
	ctx := uncomparable{t.Context(), map[any]any{operatorValue{}: "of the operator"}}
	found := make(chan string, 1)
	fn := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
		found <- known(ctx)
		return in, nil
	})
	op := asyncop.OrderedWait(fn, time.Minute, 1, asyncop.WithContext(ctx), asyncop.WithObserver(unchanged{}))
	op.In() <- 1
	close(op.In())
	require.Equal(t, 1, <-op.Out())
	require.NoError(t, op.Wait())
	require.Equal(t, "of the operator, <nil>, <nil>, 1, ", <-found)
}
