package streams_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// ---- Elements: kinds, types, and nil

// echo returns an operator that returns every element as its result.
func echo[T any](m optest.Mode, opts ...asyncop.Option) *asyncop.AsyncWaitOperator[T, T] {
	fn := asyncop.Func(func(_ context.Context, in T, result asyncop.ResultFuture[T]) error {
		result.Complete(in)
		return nil
	})
	return optest.Construct[T, T](m, fn, 0, nil, opts...)
}

// through sends elements through an operator and returns its output.
func through[IN, OUT any](op *asyncop.AsyncWaitOperator[IN, OUT], elements ...any) (out []any, err error) {
	go func() {
		defer close(op.In())
		for _, e := range elements {
			op.In() <- e
		}
	}()
	for v := range op.Out() {
		out = append(out, v)
	}
	return out, op.Wait()
}

// An element of a wrong type fails the pipeline with an error that names both types,
// never with a panic.
func TestElement_WrongType(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for _, wrong := range []any{1, []byte("a"), optest.ErrBroken, struct{}{}, (*string)(nil), nil} {
			op := echo[string](m)
			out, err := through(op, wrong, "b")
			typeErr, ok := errors.AsType[*asyncop.TypeError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, reflect.TypeFor[string](), typeErr.Want)
			require.Equal(t, reflect.TypeOf(wrong), typeErr.Got)
			require.Contains(t, err.Error(), "want string")
			require.Contains(t, err.Error(), map[bool]string{true: "a nil element", false: fmt.Sprint(reflect.TypeOf(wrong))}[wrong == nil])
			require.Empty(t, out)
			synctest.Wait()
			require.EqualValues(t, 2, op.Stats().Discarded)
		}
	})
}

// A wrong type is noticed while other elements are in flight. These are abandoned and
// counted.
func TestElement_WrongTypeAbandonsOthers(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{})
		r.Send("a", "b", 3)
		err := r.Wait()
		_, ok := errors.AsType[*asyncop.TypeError](err)
		require.True(t, ok, "%v", err)
		abandoned, ok := errors.AsType[*asyncop.AbandonedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, 2, abandoned.Abandoned)
	})
}

// nil is accepted as a nil of type IN if IN is an interface. Otherwise it has a wrong
// type.
func TestNilElements(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		out, err := through(echo[any](m), nil, 1, nil)
		require.NoError(t, err)
		require.Equal(t, []any{nil, 1, nil}, out)

		out, err = through(echo[error](m), nil, optest.ErrBroken)
		require.NoError(t, err)
		require.Equal(t, []any{nil, optest.ErrBroken}, out)

		out, err = through(echo[*int](m), (*int)(nil))
		require.NoError(t, err, "a typed nil is a value of its type")
		require.Equal(t, []any{(*int)(nil)}, out)

		_, err = through(echo[*int](m), nil)
		typeErr, ok := errors.AsType[*asyncop.TypeError](err)
		require.True(t, ok, "%v", err)
		require.Nil(t, typeErr.Got)
	})
}

// If IN is an interface, an element that does not implement it has a wrong type.
func TestInterfaceElements(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		out, err := through(echo[error](m), optest.ErrBroken, io.EOF)
		require.NoError(t, err)
		require.Equal(t, []any{optest.ErrBroken, io.EOF}, out)
		_, err = through(echo[error](m), "no error")
		require.ErrorContains(t, err, "got an element of type string, want error")
	})
}

// Control elements are recognised before the type is checked, even if IN is any: a
// Watermark is never an element.
func TestWatermarkWhereInIsAny(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := echo[any](m)
		out, err := through(op, 1, optest.Mark(1), "x", optest.Mark(2))
		require.NoError(t, err)
		require.Equal(t, []any{1, optest.Mark(1), "x", optest.Mark(2)}, out)
		require.EqualValues(t, 2, op.Stats().Accepted)
	})
}

// A *Watermark is not a watermark. It is an element if the type fits, and has a wrong
// type otherwise.
func TestPointerToAWatermarkIsAnElement(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		w := optest.Mark(1)
		for _, op := range []interface {
			In() chan<- any
			Out() <-chan any
			Wait() error
			Stats() asyncop.Stats
		}{echo[any](m), echo[*asyncop.Watermark](m)} {
			op.In() <- &w
			close(op.In())
			require.Equal(t, any(&w), <-op.Out())
			require.NoError(t, op.Wait())
			require.EqualValues(t, 1, op.Stats().Accepted)
		}
		_, err := through(echo[string](m), &w)
		_, ok := errors.AsType[*asyncop.TypeError](err)
		require.True(t, ok, "%v", err)
	})
}

// If IN is Watermark itself, there are no elements, only watermarks.
func TestWatermarkAsElementType(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		op := echo[asyncop.Watermark](m)
		out, err := through(op, optest.Mark(1))
		require.NoError(t, err)
		require.Equal(t, []any{optest.Mark(1)}, out)
		require.Zero(t, op.Stats().Accepted)
	})
}

// A control element as a result is an error, whatever the predicates examine.
func TestWatermarkAsResultIsAnError(t *testing.T) {
	strategiesOfAny := map[string]strategies.Retry[any]{
		"no retry":          nil,
		"retry of others":   strategies.FixedDelay[any](3, 0).RetryIfException(predicates.ErrorIs(optest.ErrBroken)),
		"retry of results":  strategies.FixedDelay[any](3, 0).RetryIfResult(predicates.EmptyResult),
		"retry of that one": strategies.FixedDelay[any](3, 0).RetryIfException(optest.ErrControlResult.In),
	}
	for name, s := range strategiesOfAny {
		t.Run(name, func(t *testing.T) {
			optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
				calls := 0
				fn := asyncop.Func(func(_ context.Context, in any, result asyncop.ResultFuture[any]) error {
					calls++
					result.Complete("before", optest.Mark(1))
					return nil
				})
				out, err := through(optest.Construct[any, any](m, fn, time.Second, s, asyncop.WithDrainRetries()), "a")
				require.ErrorContains(t, err, string(optest.ErrControlResult))
				require.Empty(t, out)
				require.Equal(t, map[bool]int{true: 4, false: 1}[name == "retry of that one"], calls)
			})
		})
	}
}

// A timeout handler must not return one either. A pointer to a control element is an
// ordinary result.
func TestWatermarkFromTheHandler(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		w := optest.Mark(1)
		fn := func(answer any) asyncop.AsyncFunction[any, any] {
			silent := asyncop.Func(func(context.Context, any, asyncop.ResultFuture[any]) error { return nil })
			return optest.TimeoutMethod(silent, func(context.Context, any) ([]any, error) { return []any{answer}, nil })
		}
		_, err := through(optest.Construct[any, any](m, fn(w), time.Second, nil), "a")
		require.ErrorContains(t, err, string(optest.ErrControlResult))
		out, err := through(optest.Construct[any, any](m, fn(&w), time.Second, nil), "a")
		require.NoError(t, err)
		require.Equal(t, []any{&w}, out)
	})
}

// Results are of type OUT, nil included.
func TestNilResults(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		fn := asyncop.Func(func(_ context.Context, in any, result asyncop.ResultFuture[any]) error {
			result.Complete(nil, in, nil)
			return nil
		})
		out, err := through(optest.Construct[any, any](m, fn, 0, nil), "a")
		require.NoError(t, err)
		require.Equal(t, []any{nil, "a", nil}, out)
	})
}

// BlockingMany and ErrNoResult allow any number of results, including 0.
func TestBlockingMany_AnyNumberOfResults(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		many := asyncop.BlockingMany(func(_ context.Context, n int) ([]int, error) {
			if n == 0 {
				return nil, fmt.Errorf("wrapped: %w", asyncop.ErrNoResult)
			}
			return make([]int, n-1), nil
		})
		op := optest.Construct[int, int](m, many, 0, nil)
		out, err := through(op, 3, 0, 1, 2)
		require.NoError(t, err)
		require.Equal(t, []any{0, 0, 0}, out)
		require.EqualValues(t, 4, op.Stats().Completed)
	})
}

// A result of ErrNoResult is empty, so predicates.EmptyResult sees it, and exception
// predicates do not.
func TestErrNoResult_IsAnEmptyResult(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: strategies.FixedDelay[string](1, time.Second).RetryIfResult(predicates.EmptyResult),
			Wrap: func(*optest.Hand) optest.Function {
				return asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
					if asyncop.AttemptFromContext(ctx) == 1 {
						return "", asyncop.ErrNoResult
					}
					return in, nil
				})
			},
		})
		r.SendEach("a")
		r.Advance(time.Second)
		require.NoError(t, r.End())
		require.Equal(t, "a@1s", r.OutputTimes())
		require.EqualValues(t, 1, r.Stats().RetriesOnResult)
	})
}

// ---- Contexts: see also context_test.go

// The context of an attempt carries the deadline, the number of the attempt, and the
// values of the operator's context. It ends when the attempt has ended, and not before.
func TestAttemptContext(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{
			Timeout: time.Minute, Strategy: optest.RetryAll(3, time.Second), Opts: optest.Options(asyncop.WithAttemptTimeout(50 * time.Second)),
		})
		r.SendEach("a")
		first := r.Call("a#1").Ctx
		requireDeadline(t, first, 50*time.Second)
		require.Equal(t, "of the operator", first.Value(optest.ValueKey{}))
		require.Equal(t, 1, asyncop.AttemptFromContext(first))
		r.Advance(20 * time.Second)
		require.NoError(t, first.Err())
		r.Fail("a#1", optest.ErrBroken)
		require.ErrorIs(t, first.Err(), context.Canceled)
		<-first.Done()

		r.Advance(time.Second)
		second := r.Call("a#2").Ctx
		require.Equal(t, 2, asyncop.AttemptFromContext(second))
		requireDeadline(t, second, 39*time.Second) // the element's deadline, which precedes the attempt's
		r.Complete("a#2", "A")
		require.ErrorIs(t, second.Err(), context.Canceled)
		require.NoError(t, r.End())
		require.Zero(t, asyncop.AttemptFromContext(t.Context()))
	})
}

func requireDeadline(t *testing.T, ctx context.Context, want time.Duration) {
	t.Helper()
	deadline, ok := ctx.Deadline()
	require.True(t, ok)
	require.Equal(t, want, time.Until(deadline))
}

// The operator's own deadline counts if it is the earliest.
func TestContextTellsTheEarliestDeadline(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		for _, d := range []time.Duration{time.Second, time.Hour} {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			r := optest.NewRig(t, m, optest.Setup{Timeout: time.Minute, Opts: optest.Options(asyncop.WithContext(ctx))})
			r.SendEach("a")
			requireDeadline(t, r.Call("a#1").Ctx, min(d, time.Minute))
			cancel()
			require.ErrorIs(t, r.Wait(), context.Canceled)
		}
	})
}

// At the deadline, a context and its derived contexts end with context.DeadlineExceeded.
func TestContextEndsAtTheDeadline(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: optest.Handled})
		r.SendEach("a")
		ctx := r.Call("a#1").Ctx
		derived, cancel := context.WithCancel(ctx)
		defer cancel()
		r.Advance(time.Second - 1)
		require.NoError(t, derived.Err())
		r.Advance(1)
		require.ErrorIs(t, ctx.Err(), context.DeadlineExceeded)
		require.ErrorIs(t, derived.Err(), context.DeadlineExceeded)
		require.NoError(t, r.End())
	})
}

// Under a mock clock the context reports no deadline, because real dialers would treat it
// as past.
func TestContextUnderAMockReportsNoDeadline(t *testing.T) {
	optest.InBubble(t, optest.Mode{Ordered: true, Capacity: 1, Mock: true}, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: optest.Handled, Opts: optest.Options(asyncop.WithAttemptTimeout(time.Minute))})
		r.SendEach("a")
		_, ok := r.Call("a#1").Ctx.Deadline()
		require.False(t, ok)
		r.Advance(time.Second)
		require.ErrorIs(t, r.Call("a#1").Ctx.Err(), context.DeadlineExceeded, "but it ends at it")
		require.NoError(t, r.End())
	})
}

// A blocking call sees the end of its context: cancelled, timed out, or cut off.
func TestBlockingCallSeesTheEndOfItsContext(t *testing.T) {
	optest.ForEachMode(t, func(t *testing.T, m optest.Mode) {
		r := optest.NewRig(t, m, optest.Setup{Timeout: time.Second, Wrap: func(h *optest.Hand) optest.Function { return optest.HandledBy(optest.BlockingHand(h, false)) }})
		r.SendEach("a")
		r.Advance(time.Second)
		require.Equal(t, "a!", r.Outputs())
		r.SendEach("b")
		require.ErrorIs(t, r.Cut(optest.ErrTestOver), optest.ErrTestOver) // the bubble ends, so all goroutines have ended
	})
}
