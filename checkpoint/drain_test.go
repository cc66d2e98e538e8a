package checkpoint_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
)

// draining starts a coordinator of a and b, and makes it announce the end of the input. b
// has not reported the marker.
func draining(t *testing.T, store Store, opts ...Option) (c *Coordinator, a, b *fake) {
	t.Helper()
	a, b = &fake{name: "a"}, &fake{name: "b", mute: true}
	c = startWith(t, store, opts, a, b)
	c.Host().RequestFinal(participant.Drain)
	synctest.Wait()
	require.Equal(t, participant.EndOfInput, b.barrier().Kind)
	b.mute = false
	return c, a, b
}

func TestDraining(t *testing.T) {
	bubble(t, "checkpoints go on", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c, a, b := draining(t, store)
		marker := b.barrier()
		for id := range uint64(2) {
			require.Equal(t, id+2, must(c.Trigger(t.Context())))
		}
		s, _, err := Latest(t.Context(), store)
		require.NoError(t, err)
		require.Equal(t, Periodic, s.Kind)
		marker.Report("b", participant.State{}, nil)
		require.NoError(t, c.Wait())
		require.Equal(t, "p1 p2 c2 p3 c3 p4 c4", a.history())
		require.Equal(t, a.history(), b.history())
		s, _, err = Latest(t.Context(), store)
		require.NoError(t, err)
		require.Equal(t, Drain, s.Kind)
		require.Equal(t, "b", string(s.States["b"].Bytes()))
	})
	bubble(t, "an error that is reported with the marker changes nothing", func(t *testing.T) {
		a, b := &fake{name: "a", mute: true}, &fake{name: "b", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a, b)
		c.Host().RequestFinal(participant.Drain)
		synctest.Wait()
		marker := a.barrier()
		a.mute, b.mute = false, false
		marker.Report("a", nil, errTest)
		synctest.Wait()
		require.Equal(t, "p1", a.history(), "b is not done")
		marker.Report("b", participant.State{}, nil)
		require.NoError(t, c.Wait())
	})
	bubble(t, "at intervals, too", func(t *testing.T) {
		c, a, b := draining(t, checkpointtest.NewMemoryStore(), WithInterval(time.Second))
		marker := b.barrier()
		time.Sleep(2500 * time.Millisecond)
		require.Equal(t, "p1 p2 c2 p3 c3", a.history())
		marker.Report("b", participant.State{}, nil)
		require.NoError(t, c.Wait())
	})
	bubble(t, "a checkpoint that is aborted changes nothing", func(t *testing.T) {
		c, _, b := draining(t, checkpointtest.NewMemoryStore(), WithTimeout(time.Second))
		marker := b.barrier()
		b.mute = true
		_, err := c.Trigger(t.Context())
		require.ErrorContains(t, err, "not complete after 1s")
		b.mute = false
		must(c.Trigger(t.Context()))
		marker.Report("b", participant.State{}, nil)
		require.NoError(t, c.Wait())
	})
	bubble(t, "warnings name who is not done", func(t *testing.T) {
		var log strings.Builder
		c, _, b := draining(t, checkpointtest.NewMemoryStore(), WithTimeout(time.Minute), WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		time.Sleep(150 * time.Second)
		synctest.Wait()
		require.Equal(t, 2, strings.Count(log.String(), `is being drained" "not done"=b`), log.String())
		b.barrier().Report("b", participant.State{}, nil)
		require.NoError(t, c.Wait())
	})
	bubble(t, "the end of the input waits for a checkpoint that is under way", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		go func() { must(c.Trigger(context.Background())) }()
		synctest.Wait()
		c.Host().RequestFinal(participant.Drain)
		synctest.Wait()
		require.Equal(t, "p1", a.history())
		a.mute = false
		a.barrier().Report("a", participant.State{}, nil)
		require.NoError(t, c.Wait())
		require.Equal(t, "p1 c1 p2 p3 c3", a.history())
	})
	bubble(t, "suspended", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c, a, _ := draining(t, store)
		joined := make(chan error, 1)
		go func() { joined <- c.Finish(context.Background(), Drain) }()
		synctest.Wait()
		require.NoError(t, c.Finish(t.Context(), Suspend))
		require.NoError(t, c.Wait())
		require.EqualError(t, <-joined, "checkpoint: the stream has ended")
		require.Equal(t, "p1 p2 c2", a.history())
		s, _, err := Latest(t.Context(), store)
		require.NoError(t, err)
		require.Equal(t, Suspend, s.Kind)
	})
	bubble(t, "failure", func(t *testing.T) {
		c, _, b := draining(t, checkpointtest.NewMemoryStore())
		c.Host().Fail("b", errTest)
		require.ErrorIs(t, c.Wait(), errTest)
		b.barrier().Report("b", participant.State{}, nil) // too late
		synctest.Wait()
		require.Equal(t, "p1", b.history())
		require.ErrorIs(t, c.Finish(t.Context(), Drain), errTest)
	})
	bubble(t, "the context of who began it ends the stream", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := c.Finish(ctx, Drain)
		require.EqualError(t, err, `checkpoint: draining: context deadline exceeded: elements that were read are not finished: no report from "a"`)
		require.ErrorIs(t, c.Wait(), context.DeadlineExceeded)
	})
	bubble(t, "also between the draining and the final checkpoint", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
		ctx, cancel := context.WithCancelCause(t.Context())
		done := make(chan error, 1)
		go func() { done <- c.Finish(ctx, Drain) }()
		synctest.Wait()
		marker := a.barrier()
		go func() { _, _ = c.Trigger(context.Background()) }() // it stays under way
		synctest.Wait()
		marker.Report("a", participant.State{}, nil)
		synctest.Wait()
		cancel(errTest)
		require.ErrorIs(t, <-done, errTest)
		require.ErrorIs(t, c.Wait(), errTest, "nobody else would end it")
	})
	bubble(t, "the context of who joins does not", func(t *testing.T) {
		c, _, b := draining(t, checkpointtest.NewMemoryStore())
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Finish(ctx, Drain), context.DeadlineExceeded)
		require.NoError(t, c.Err())
		b.barrier().Report("b", participant.State{}, nil)
		require.NoError(t, c.Wait())
	})
	bubble(t, "nothing before the start", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Finish(ctx, Drain), context.DeadlineExceeded)
		require.NoError(t, c.Err())
		require.NoError(t, c.Close())
	})
}

func TestKinds(t *testing.T) {
	for kind, want := range map[participant.Kind]bool{participant.Periodic: false, participant.Drain: true, participant.Suspend: true, participant.EndOfInput: false} {
		require.Equal(t, want, kind.Final(), kind)
	}
	require.ErrorIs(t, (&Snapshot{ID: 1, Kind: Kind(participant.EndOfInput)}).Validate(), ErrInvalidSnapshot)
	require.Equal(t, "barrier 1 (end of input)", fmt.Sprint(participant.NewBarrier(1, participant.EndOfInput, nil)))
}

func TestSourceIsDrained(t *testing.T) {
	bubble(t, "on demand, while its input is idle", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := must(NewCoordinator(store))
		in := newTopic()
		b := &fake{name: "b", mute: true}
		src := NewSource(c, "src", in)
		c.Host().Register("b", b)
		require.NoError(t, c.Start())
		in.client <- []string{"x"}
		c.Host().RequestFinal(participant.Drain)
		require.Equal(t, []string{"x", "barrier 1 (end of input)"}, readText(src.Out()))
		marker := b.barrier()
		b.mute = false
		must(c.Trigger(t.Context()))
		select {
		case in.client <- []string{"y"}:
			t.Fatal("read after the end")
		default:
		}
		marker.Report("b", participant.State{}, nil)
		require.Equal(t, []string{"barrier 2 (periodic)", "barrier 3 (drain)", "closed"}, readText(src.Out()))
		s, _, err := Latest(t.Context(), store)
		require.NoError(t, err)
		require.Equal(t, []byte{1}, s.States["src"].Bytes())
		require.Zero(t, src.Kept())
		require.NoError(t, c.Close())
	})
	bubble(t, "at the end of its input it serves barriers until the final one", func(t *testing.T) {
		for _, kind := range []Kind{Drain, Suspend} {
			c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
			b := &fake{name: "b", mute: true}
			src := NewSource(c, "src", newRecorder("a"))
			c.Host().Register("b", b)
			require.NoError(t, c.Start())
			require.Equal(t, []string{"a", "barrier 1 (end of input)"}, readText(src.Out()))
			marker := b.barrier()
			b.mute = false
			must(c.Trigger(t.Context()))
			if kind == Drain {
				marker.Report("b", participant.State{}, nil)
			} else {
				require.NoError(t, c.Finish(t.Context(), Suspend))
			}
			require.Equal(t, []string{"barrier 2 (periodic)", fmt.Sprintf("barrier 3 (%v)", kind), "closed"}, readText(src.Out()))
			require.NoError(t, c.Wait())
			require.NoError(t, c.Close())
		}
	})
	bubble(t, "neither the marker nor a barrier is lost while it is held up", func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
		src := NewSource(c, "src", checkpointtest.NewSliceInput(make([]int, 9*Buffer)))
		require.NoError(t, c.Start())
		synctest.Wait() // Out is full
		c.Host().RequestFinal(participant.Drain)
		synctest.Wait()
		done := make(chan error, 1)
		go func() { _, err := c.Trigger(context.Background()); done <- err }()
		synctest.Wait()
		all := texts(src.Out())
		require.NoError(t, errors.Join(<-done, c.Wait()))
		require.Contains(t, all, "barrier 2 (periodic)")
		end := slices.Index(all, "barrier 1 (end of input)")
		require.GreaterOrEqual(t, end, Buffer)
		require.NotContains(t, all[end:], "0", "no element follows the marker")
		require.Equal(t, "barrier 3 (drain)", all[len(all)-1])
		require.NoError(t, c.Close())
	})
}

// A user's participant that treats all barriers alike need not handle the marker of the
// end of the input.
func TestDrainWithAPlainSink(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		store := checkpointtest.NewMemoryStore()
		c := must(NewCoordinator(store))
		src := NewSource(c, "src", newRecorder("a", "b"))
		c.Host().Register("sink", nothing{})
		require.NoError(t, c.Start())
		var got []string
		for v := range src.Out() {
			if b, ok := v.(participant.Barrier); ok {
				b.Report("sink", participant.State{fmt.Append(nil, len(got))}, nil)
				continue
			}
			got = append(got, v.(string))
		}
		require.NoError(t, c.Wait())
		require.Equal(t, []string{"a", "b"}, got)
		s, _, err := Latest(t.Context(), store)
		require.NoError(t, err)
		require.Equal(t, Drain, s.Kind)
		require.Equal(t, "2", string(s.States["sink"].Bytes()))
		require.NoError(t, c.Close())
	})
}

// nothing is a participant that only acts in the stream.
type nothing struct{}

func (nothing) Pending(participant.Barrier) {}
func (nothing) Completed(uint64)            {}
func (nothing) Aborted(uint64, error)       {}

// Finish returns nil if the input ends the stream before it does.
func TestFinishOfAStreamThatEnds(t *testing.T) {
	for kind, other := range map[Kind]Kind{Drain: Suspend, Suspend: Drain} {
		bubble(t, kind.String(), func(t *testing.T) {
			ctx := t.Context()
			a := &fake{name: "a"}
			c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
			errs := make(chan error, 3)
			for range cap(errs) {
				go func() { errs <- c.Finish(ctx, kind) }()
			}
			for range cap(errs) {
				require.NoError(t, <-errs)
			}
			require.NoError(t, c.Finish(ctx, kind), "it has ended so")
			require.ErrorIs(t, c.Finish(ctx, other), ErrEnded)
			_, err := c.Trigger(ctx)
			require.ErrorIs(t, err, ErrEnded)
			require.NoError(t, c.Wait())
		})
	}
}
