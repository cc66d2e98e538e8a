package optest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

func Limited(n int) *backend.Backend {
	return backend.New("limited", backend.Limit(n), backend.WithLogger(slog.New(slog.DiscardHandler)))
}

// InEveryPhase returns a rig with an element in each phase, named after it, and a blocked
// failure sink.
func InEveryPhase(t *testing.T, m Mode, side *SideSink) *Rig {
	t.Helper()
	r := NewRig(t, m, Setup{
		Timeout:  10 * time.Second,
		Strategy: strategies.FixedDelay[string](3, time.Second).RetryIfException(predicates.ErrorIs(ErrBroken)),
		Blocked:  true,
		Wrap: func(h *Hand) Function {
			return TimeoutMethod(h, func(ctx context.Context, _ string) ([]string, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
		},
		Opts: Options(asyncop.WithBuffer(0), asyncop.WithMaxConcurrentCalls(2), asyncop.WithFailureSink(side.Take)),
	})
	r.Send("handling")
	r.Advance(10 * time.Second)
	r.Send("failing", "done")
	r.Fail("failing#1", errors.New("not retried"))
	r.Complete("done#1", "D")
	r.Send("ready", "backoff")
	r.Fail("ready#1", ErrBroken)
	r.Advance(900 * time.Millisecond)
	r.Fail("backoff#1", ErrBroken)
	r.Send("running1", "running2", "fresh")
	r.Advance(100 * time.Millisecond)
	require.Equal(t, "handling#1 failing#1 done#1 ready#1 backoff#1 running1#1 running2#1", r.Calls())
	return r
}

func Source(elements ...any) streams.Source {
	in := make(chan any, len(elements))
	for _, e := range elements {
		in <- e
	}
	close(in)
	return extension.NewChanSource(in)
}

// Numbers returns 0..n-1.
func Numbers(n int) []any {
	elements := make([]any, n)
	for i := range elements {
		elements[i] = i
	}
	return elements
}

func Drain(outlet streams.Outlet) (out []any) {
	for v := range outlet.Out() {
		out = append(out, v)
	}
	return out
}

// Slowly answers a number with its sum with d, after a time that depends on it.
func Slowly(d int) asyncop.AsyncFunction[int, int] {
	return asyncop.Blocking(func(_ context.Context, in int) (int, error) {
		time.Sleep(time.Duration(in%3) * time.Millisecond)
		return in + d, nil
	})
}

// Same compares the outputs, without their order if the mode is unordered.
func Same(t *testing.T, m Mode, want, got []any) {
	t.Helper()
	if m.Ordered {
		require.Equal(t, want, got)
	} else {
		require.ElementsMatch(t, want, got)
	}
}

func PanicOf(f func()) (message string) {
	defer func() {
		if v := recover(); v != nil {
			message = fmt.Sprint(v)
		}
	}()
	f()
	return "no panic"
}

func (m Mode) Constructor(retry bool) string {
	name := map[bool]string{true: "OrderedWait", false: "UnorderedWait"}[m.Ordered]
	if retry {
		name += "WithRetry"
	}
	return name
}

func HandledBy(fn Function) Function {
	return TimeoutMethod(fn, func(_ context.Context, in string) ([]string, error) { return []string{in + "!"}, nil })
}

// SlowRetry fails at first, and its retry blocks the loop for a millisecond.
func SlowRetry(retried chan<- struct{}) asyncop.AsyncFunction[string, string] {
	return asyncop.Func(func(ctx context.Context, in string, r asyncop.ResultFuture[string]) error {
		if asyncop.AttemptFromContext(ctx) == 1 {
			return ErrBroken
		}
		close(retried)
		time.Sleep(time.Millisecond)
		r.Complete(in)
		return nil
	})
}

func FirstLetter(in string) string { return in[:1] }

var KeyMode = Mode{Capacity: defaultCapacity}

// EndOf sends one element and returns the results and the error of the run.
func EndOf(op *asyncop.AsyncWaitOperator[string, string]) (got []any, err error) {
	op.In() <- "a"
	close(op.In())
	for v := range op.Out() {
		got = append(got, v)
	}
	return got, op.Wait()
}

// SlowPredicate has a predicate that takes a second for one result.
func SlowPredicate(result string) strategies.Retry[string] {
	return strategies.FixedDelay[string](0, 0).RetryIfResult(func(results []string) bool {
		if results[0] == result {
			time.Sleep(time.Second)
		}
		return false
	})
}

// BlockingHand makes h a blocking function, whose calls end with their answers or, unless
// ignoresContext is set, with their contexts.
func BlockingHand(h *Hand, ignoresContext bool) Function {
	return asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
		answer := make(Answers, 1)
		_ = h.AsyncInvoke(ctx, in, answer)
		done := ctx.Done()
		if ignoresContext {
			done = nil
		}
		select {
		case a := <-answer:
			return a.Result, a.Err
		case <-done:
			return "", ctx.Err()
		}
	})
}

type Reply struct {
	Result string
	Err    error
}

// Answers is the future of a blocking call.
type Answers chan Reply

func (a Answers) Complete(results ...string) { a <- Reply{Result: strings.Join(results, " ")} }

func (a Answers) CompleteExceptionally(err error) { a <- Reply{Err: err} }

// Wrapper passes calls on with a context of its own.
type Wrapper struct{ Inner Function }

func (w *Wrapper) AsyncInvoke(ctx context.Context, in string, result Future) error {
	return w.Inner.AsyncInvoke(context.WithValue(ctx, ValueKey{}, "of the wrapper"), in, result)
}

func (w *Wrapper) Unwrap() any { return w.Inner }

type Demand struct{ Delay time.Duration }

func (d Demand) Error() string                        { return "come back later" }
func (d Demand) RetryPushback() (time.Duration, bool) { return d.Delay, true }

func WithoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

func Letters(s string) iter.Seq[string] { return slices.Values(strings.Split(s, "")) }

func UpperFunc() Function {
	return asyncop.Func(func(_ context.Context, in string, result Future) error {
		result.Complete(strings.ToUpper(in))
		return nil
	})
}

// Handled adds a timeout handler, which answers with the element and an exclamation mark.
func Handled(h *Hand) Function {
	return TimeoutMethod(h, func(_ context.Context, in string) ([]string, error) { return []string{in + "!"}, nil })
}

type PredicatesOfStrings = predicates.AsyncRetryPredicate[string]

var ErrorsOnly = predicates.RetryIf[string](nil, predicates.HasException)
