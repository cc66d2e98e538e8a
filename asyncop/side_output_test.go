package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
)

// Elements that fail go to a stream of their own, and the others go on.
func ExampleWithSideOutput() {
	lookup := asyncop.Blocking(func(_ context.Context, key string) (string, error) {
		if key == "QQQ" {
			return "", errors.New("unknown airport")
		}
		return "row of " + key, nil
	})
	failures := extension.NewChanSink(make(chan any, 10)) // enough for this input; else read it meanwhile
	op := asyncop.OrderedWait(lookup, time.Second, 10, asyncop.WithSideOutput(failures))
	for row, err := range op.Results(slices.Values([]string{"LHR", "QQQ", "CDG"})) {
		fmt.Println(row, err)
	}
	for v := range failures.Out {
		failure := v.(asyncop.Failure[string])
		fmt.Printf("%s failed after %d attempt: %v\n", failure.Element, failure.Attempts, failure.Err)
	}
	// Output:
	// row of LHR <nil>
	// row of CDG <nil>
	// QQQ failed after 1 attempt: unknown airport
}

// sideInlet is a sink whose reader is the test.
type sideInlet struct {
	in        chan any
	completed chan struct{}
}

func (i sideInlet) In() chan<- any   { return i.in }
func (i sideInlet) AwaitCompletion() { <-i.completed }

func newSideInlet() sideInlet { return sideInlet{make(chan any), make(chan struct{})} }

func refuse(_ context.Context, n int) (int, error) { return 0, fmt.Errorf("no %d", n) }

// Done comes after the inlet has taken all failures (law A1), was closed, and has completed.
func TestSideOutputIsCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newSideInlet()
		op := asyncop.OrderedWait(asyncop.Blocking(refuse), time.Minute, 2, asyncop.WithSideOutput(out),
			asyncop.WithMaxConcurrentCalls(1)) // they fail in their order
		go func() {
			for range op.Results(slices.Values([]int{1, 2, 3})) {
				t.Error("a result")
			}
		}()
		for n := 1; n <= 3; n++ {
			time.Sleep(time.Hour) // a blocked inlet holds slots, and nothing is lost
			require.Equal(t, n, (<-out.in).(asyncop.Failure[int]).Element)
		}
		_, open := <-out.in
		require.False(t, open)
		synctest.Wait()
		select {
		case <-op.Done():
			t.Fatal("done before the sink has completed")
		default:
		}
		close(out.completed)
		require.NoError(t, op.Wait())
		require.EqualValues(t, 3, op.Stats().HandedOver)
	})
}

// After a cancel, an inlet gets what was cut off; one that takes nothing is given up, and what it did not get is lost loudly.
func TestSideOutputAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		out := newSideInlet()
		close(out.completed)
		hangs := asyncop.Blocking(func(ctx context.Context, n int) (int, error) {
			<-ctx.Done()
			return n, nil
		})
		op := asyncop.OrderedWait(hangs, time.Hour, 2, asyncop.WithSideOutput(out), asyncop.WithContext(ctx))
		op.In() <- 1
		op.In() <- 2
		synctest.Wait()
		cancel()
		f := (<-out.in).(asyncop.Failure[int])
		require.Equal(t, 1, f.Element)
		require.True(t, f.Abandoned)
		require.ErrorIs(t, f.Err, context.Canceled)
		time.Sleep(time.Minute) // it takes no more
		<-op.Done()
		require.EqualValues(t, 2, op.Stats().Abandoned)
		close(op.In())
	})
}

// An inlet that two operators share is closed by the first: the other one says so, and ends.
func TestSharedSideOutputDoesNotPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := newSideInlet()
		close(out.completed)
		first := asyncop.OrderedWait(asyncop.Blocking(refuse), time.Minute, 1, asyncop.WithSideOutput(out))
		close(first.In())
		require.NoError(t, first.Wait())
		ctx, cancel := context.WithCancel(t.Context())
		second := asyncop.OrderedWait(asyncop.Blocking(refuse), time.Minute, 1, asyncop.WithSideOutput(out), asyncop.WithContext(ctx))
		second.In() <- 1
		time.Sleep(time.Minute)
		require.EqualValues(t, 1, second.Stats().InFlight, "the element is kept")
		cancel()
		<-second.Done()
		close(second.In())
	})
}

func TestSideOutputRefuses(t *testing.T) {
	require.PanicsWithValue(t, "asyncop: WithSideOutput: nil inlet", func() { asyncop.WithSideOutput(nil) })
	require.PanicsWithValue(t, "asyncop: WithSideOutput: In of the asyncop_test.sideInlet is nil", func() { asyncop.WithSideOutput(sideInlet{}) })
	require.PanicsWithValue(t, "asyncop: WithSideOutput and WithFailureSink exclude each other: an element fails once", func() {
		asyncop.OrderedWait(asyncop.Blocking(refuse), time.Minute, 1, asyncop.WithSideOutput(newSideInlet()),
			asyncop.WithFailureSink(func(context.Context, asyncop.Failure[int]) error { return nil }))
	})
}
