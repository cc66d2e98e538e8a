package streams_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/optest"
	weirflow "github.com/weirflow/weir/flow"
)

// Operators in a row: the failure of an operator does not look like a clean end to the
// next operator.

var errRow = errors.New("no row")

// failsAt returns an operator that appends its mark to each letter and fails at the given
// letter. It does not log, because the failure is expected.
func failsAt(letter, mark string, opts ...asyncop.Option) *asyncop.AsyncWaitOperator[string, string] {
	fn := asyncop.Blocking(func(_ context.Context, in string) (string, error) {
		if strings.HasPrefix(in, letter) {
			return "", errRow
		}
		return in + mark, nil
	})
	return asyncop.OrderedWait(fn, time.Minute, 4, append(opts, asyncop.WithLogger(slog.New(slog.DiscardHandler)))...)
}

func TestResultsFromFailsWithItsInput(t *testing.T) {
	first, second := failsAt("c", "1"), failsAt("none", "2")
	var got []string
	var failed error
	for v, err := range second.ResultsFrom(first.Results(optest.Letters("abcde"))) {
		if err != nil {
			failed = err
			break
		}
		got = append(got, v)
	}
	require.ErrorIs(t, failed, errRow)
	require.ErrorContains(t, failed, "asyncop: input of Results: asyncop: element \"c\" failed")
	require.Equal(t, failed, second.Err())
	var element *asyncop.ElementError
	require.ErrorAs(t, failed, &element)
	// The first operator may fail before it has emitted earlier results.
	require.Equal(t, append([]string(nil), []string{"a12", "b12"}[:len(got)]...), got)
	require.EqualValues(t, len(got), second.Stats().Accepted)
	optest.CheckBalance(t, second.Stats())
}

// Elements from before the error are finished in both modes, including elements in
// flight.
func TestResultsFromFinishesWhatCameBeforeTheError(t *testing.T) {
	input := func(yield func(string, error) bool) {
		for _, v := range []string{"a", "b", "c"} {
			if !yield(v, nil) {
				return
			}
		}
		if yield("d", errRow) {
			t.Error("went on after the error")
		}
	}
	for range 100 {
		var got []string
		var errs []error
		op := failsAt("none", "1")
		for v, err := range op.ResultsFrom(input) {
			got, errs = append(got, v), append(errs, err)
		}
		require.Equal(t, []string{"a1", "b1", "c1", ""}, got)
		require.ErrorIs(t, errors.Join(errs...), errRow)
		require.ErrorIs(t, op.Wait(), errRow)
		require.Zero(t, op.Stats().Abandoned)
	}
}

// When the loop over the last operator is left, the loops over the others are left, too.
func TestResultsFromBreaksOffItsInput(t *testing.T) {
	first, second := failsAt("none", "1"), failsAt("none", "2")
	for v, err := range second.ResultsFrom(first.Results(slices.Values(slices.Repeat([]string{"a"}, 10_000)))) {
		require.NoError(t, err)
		require.Equal(t, "a12", v)
		break
	}
	require.ErrorIs(t, second.Wait(), asyncop.ErrStopped)
	require.ErrorIs(t, first.Wait(), asyncop.ErrStopped)
	func() {
		defer func() { assert.Equal(t, "body", recover()) }()
		a, b := failsAt("none", "1"), failsAt("none", "2")
		for range b.ResultsFrom(a.Results(optest.Letters("abc"))) {
			panic("body")
		}
	}()
	unused := failsAt("none", "1")
	require.PanicsWithValue(t, "asyncop: ResultsFrom: nil input", func() { unused.ResultsFrom(nil) })
	require.NoError(t, unused.Stop(t.Context()))
}

// A failure passes from operator to operator, even through a flow of weir.
func TestFailureOfARowOfFlows(t *testing.T) {
	for name, between := range map[string]func(streams.Flow) streams.Flow{
		"operators": func(f streams.Flow) streams.Flow { return f },
		"Map":       func(f streams.Flow) streams.Flow { return f.Via(weirflow.NewMap(strings.ToUpper)) },
	} {
		t.Run(name, func(t *testing.T) {
			first, second := failsAt("b", "1"), failsAt("none", "2")
			out := make(chan []any)
			go func() {
				var all []any
				for v := range second.Out() {
					all = append(all, v)
				}
				out <- all
			}()
			go between(first).Via(second)
			for _, v := range []string{"a", "b", "c"} {
				first.In() <- v
			}
			close(first.In())
			require.ErrorIs(t, second.Wait(), errRow)
			require.ErrorIs(t, first.Wait(), errRow)
			for _, v := range <-out {
				require.IsType(t, "", v, "no failure among the elements")
			}
		})
	}
}

// Operators that are cancelled together lose only the elements that they had accepted.
// The failure itself does not count as an element.
func TestFailureOfARowIsNoDiscardedElement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		hanging := asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
			<-ctx.Done()
			return "", ctx.Err()
		})
		opts := []asyncop.Option{asyncop.WithContext(ctx), asyncop.WithLogger(slog.New(slog.DiscardHandler))}
		first := asyncop.OrderedWait(hanging, time.Minute, 4, opts...)
		second := asyncop.OrderedWait(hanging, time.Minute, 4, opts...)
		first.Via(second)
		for range 2 {
			first.In() <- "a"
		}
		synctest.Wait()
		cancel(errRow)
		close(first.In())
		require.ErrorIs(t, first.Wait(), errRow)
		require.ErrorIs(t, second.Wait(), errRow)
		synctest.Wait() // discarding has ended
		require.EqualValues(t, 2, first.Stats().Abandoned)
		require.Zero(t, second.Stats().Discarded)
	})
}

// A clean end is also clean for the next operator. A sink that does not belong to weir
// gets elements only.
func TestCleanEndOfARowOfFlows(t *testing.T) {
	first, second := failsAt("none", "1"), failsAt("none", "2")
	go first.Via(second)
	first.In() <- "a"
	close(first.In())
	require.Equal(t, []any{"a12"}, slices.Collect(func(yield func(any) bool) {
		for v := range second.Out() {
			if !yield(v) {
				return
			}
		}
	}))
	require.NoError(t, second.Wait())

	failing, sink := failsAt("a", "1"), newCollector()
	go failing.To(sink)
	failing.In() <- "a"
	close(failing.In())
	<-sink.done
	require.Empty(t, sink.got)
	require.ErrorIs(t, failing.Wait(), errRow)
}

// collector is a sink that does not belong to weir.
type collector struct {
	in   chan any
	got  []any
	done chan struct{}
}

func newCollector() *collector {
	c := &collector{in: make(chan any), done: make(chan struct{})}
	go func() {
		defer close(c.done)
		for v := range c.in {
			c.got = append(c.got, v)
		}
	}()
	return c
}

func (c *collector) In() chan<- any   { return c.in }
func (c *collector) AwaitCompletion() { <-c.done }
