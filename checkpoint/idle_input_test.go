package checkpoint_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
)

// topic is an input over a client that polls batches, as in the documentation of
// [Waiter]. A nil batch is an error of the client.
type topic struct {
	client chan []string
	closed chan struct{}
	polled []string
	offset byte
}

func newTopic() *topic { return &topic{client: make(chan []string), closed: make(chan struct{})} }

func (in *topic) Wait(ctx context.Context) error {
	for len(in.polled) == 0 {
		select {
		case in.polled = <-in.client:
			if in.polled == nil {
				return errTest
			}
		case <-ctx.Done():
			return fmt.Errorf("poll: %w", ctx.Err())
		}
	}
	return nil
}

func (in *topic) Next() (v string, err error) {
	v, in.polled = in.polled[0], in.polled[1:]
	in.offset++
	return v, nil
}

func (in *topic) Position() []byte     { return []byte{in.offset} }
func (in *topic) Seek(at []byte) error { in.offset = at[0]; return nil }
func (in *topic) Close() error         { close(in.closed); return nil }

// readText returns the elements and barriers that a source has sent.
func readText(out <-chan any) (all []string) {
	synctest.Wait()
	for {
		select {
		case v, ok := <-out:
			if !ok {
				return append(all, "closed")
			}
			all = append(all, fmt.Sprint(v))
		default:
			return all
		}
	}
}

// A barrier does not wait for an idle input. Its position is after the last element that
// was sent.
func TestIdleInput(t *testing.T) {
	bubble(t, "barriers, elements and the end", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := must(NewCoordinator(store))
		in := newTopic()
		src := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		position := func() byte {
			s, _, err := Latest(t.Context(), store)
			require.NoError(t, err)
			return s.States["src"].Bytes()[0]
		}
		began := time.Now()
		for id := range uint64(3) { // before the first element
			require.Equal(t, id+1, must(c.Trigger(t.Context())))
			require.Zero(t, position())
		}
		in.client <- []string{"a", "b"}
		require.Equal(t, []string{
			"barrier 1 (periodic)", "barrier 2 (periodic)", "barrier 3 (periodic)", "a", "b",
		}, readText(src.Out()))
		must(c.Trigger(t.Context()))
		require.EqualValues(t, 2, position())
		in.client <- []string{"c"}
		require.Equal(t, []string{"barrier 4 (periodic)", "c"}, readText(src.Out()))
		require.NoError(t, c.Finish(t.Context(), Suspend))
		require.Equal(t, []string{"barrier 5 (suspend)", "closed"}, readText(src.Out()))
		require.EqualValues(t, 3, position())
		<-in.closed
		require.Zero(t, time.Since(began))
		require.NoError(t, c.Close())
	})
	bubble(t, "what was polled and not sent is after the barrier", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := must(NewCoordinator(store))
		in := newTopic()
		src := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		batch := slices.Repeat([]string{"x"}, 2*Buffer)
		in.client <- batch
		synctest.Wait() // the source blocks at the full Out with an element that it has read
		done := make(chan uint64, 1)
		go func() { done <- must(c.Trigger(context.Background())) }()
		got := slices.Index(append(readText(src.Out()), readText(src.Out())...), "barrier 1 (periodic)")
		require.EqualValues(t, 1, <-done)
		s, _, err := Latest(t.Context(), store)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(got)}, s.States["src"].Bytes())
		require.NoError(t, c.Close())
		texts(src.Out())
	})
	bubble(t, "the end of the run", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		in := newTopic()
		src := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		synctest.Wait()
		require.NoError(t, c.Close())
		require.Empty(t, texts(src.Out()))
		<-in.closed
		require.ErrorIs(t, c.Err(), ErrClosed)
	})
	bubble(t, "an error of Wait fails the run", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		in := newTopic()
		src := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		must(c.Trigger(t.Context()))
		in.client <- nil
		require.Equal(t, []string{"barrier 1 (periodic)"}, texts(src.Out()))
		require.EqualError(t, c.Wait(), `checkpoint: "src" failed: input: broken on purpose`)
		require.NoError(t, c.Close())
	})
	// An error that looks like an interrupted wait must fail the run, not repeat the
	// wait.
	for _, err := range []error{context.Canceled, errTest} {
		bubble(t, "interrupted by itself: "+err.Error(), func(t *testing.T) {
			c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
			in := waitFails{topic: newTopic(), err: err, calls: make(chan struct{}, 2)}
			src := NewSource(c, "src", in)
			require.NoError(t, c.Start())
			require.Empty(t, texts(src.Out()))
			require.ErrorIs(t, c.Wait(), err)
			require.NoError(t, c.Close())
		})
	}
	bubble(t, "a failure while it is interrupted", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		in := waitFails{topic: newTopic(), err: errTest, late: true, calls: make(chan struct{}, 2)}
		src := NewSource(c, "src", in)
		require.NoError(t, c.Start())
		synctest.Wait()
		_, err := c.Trigger(t.Context())
		require.ErrorIs(t, err, errTest)
		require.Empty(t, texts(src.Out()))
		require.Len(t, in.calls, 1)
		require.NoError(t, c.Close())
	})
}

// waitFails returns err from Wait, at once or when it is interrupted.
type waitFails struct {
	*topic
	err   error
	late  bool
	calls chan struct{}
}

func (in waitFails) Wait(ctx context.Context) error {
	in.calls <- struct{}{}
	if in.late {
		<-ctx.Done()
	}
	return in.err
}

// lagging is a Lagger that may panic.
type lagging struct {
	Input[int]
	lag func() int64
}

func (l lagging) Lag() int64 { return l.lag() }

// The lag of a pipeline is the lag of its input, if the input is a Lagger. It is unknown
// if Lag panics.
func TestLag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for want, input := range map[int64]Input[int]{
			5:  lagging{checkpointtest.NewSliceInput([]int{1}), func() int64 { return 5 }},
			0:  lagging{checkpointtest.NewSliceInput([]int{1}), func() int64 { return 0 }},
			-1: lagging{checkpointtest.NewSliceInput([]int{1}), func() int64 { return -3 }},
			-2: lagging{checkpointtest.NewSliceInput([]int{1}), func() int64 { panic("broken") }},
			-3: checkpointtest.NewSliceInput([]int{1}),
		} {
			c, err := NewCoordinator(checkpointtest.NewMemoryStore())
			require.NoError(t, err)
			_, known := c.Lag()
			require.False(t, known)
			NewSource(c, "source", input)
			lag, known := c.Lag()
			require.Equal(t, want >= 0, known)
			require.Equal(t, max(0, want), lag)
			require.NoError(t, c.Close())
		}
	})
}
