package checkpoint_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/queue"
)

// Law C3: a checkpoint whose last report comes after the end of the run is not stored.
// The sink has discarded elements by then, so its state would not fit the position of the
// source.
func TestReportAfterTheEndIsNotStored(t *testing.T) {
	for name, end := range map[string]func(c *Coordinator){
		"fail":  func(c *Coordinator) { c.Host().Fail("op", errTest) },
		"close": func(c *Coordinator) { go func() { _ = c.Close() }() },
	} {
		for _, kind := range []participant.Kind{participant.Periodic, participant.Suspend} {
			bubble(t, name+" at a barrier of kind "+kind.String(), func(t *testing.T) {
				store := checkpointtest.NewMemoryStore()
				path := t.TempDir() + "/out"
				run := func() (*Coordinator, *fake, *Sink[string]) {
					c := must(NewCoordinator(store, WithLogger(quiet())))
					src := &fake{name: "src"}
					c.Host().Register("src", src)
					return c, src, NewSink(c, "sink", files.NewLineOutput(path))
				}
				c, src, sink := run()
				require.NoError(t, c.Start())
				sink.In() <- "a"
				taken := make(chan error, 1)
				go func() {
					var err error
					if kind == participant.Periodic {
						_, err = c.Trigger(t.Context())
					} else {
						err = c.Finish(t.Context(), Kind(kind))
					}
					taken <- err
				}()
				synctest.Wait()
				if !src.barrier().Kind.Final() {
					require.Equal(t, participant.Periodic, src.barrier().Kind)
				}
				// The source has reported, the sink has not: its barrier is on its way
				// when the run ends.
				end(c)
				synctest.Wait() // Close has begun
				sink.In() <- "b"
				sink.In() <- src.barrier()
				sink.In() <- queue.Watermark{}
				require.Error(t, <-taken)
				close(sink.In())
				sink.AwaitCompletion()
				require.NoError(t, c.Close())
				_, _, err := Latest(t.Context(), store.Reopen())
				require.ErrorIs(t, err, ErrNotFound)

				store = store.Reopen()
				c, _, sink = run()
				require.NoError(t, c.Start(), "law C3")
				close(sink.In())
				sink.AwaitCompletion()
				require.NoError(t, c.Close())
			})
		}
	}
}

// A report without a state and without an error is refused: the participant could not
// resume from the checkpoint.
func TestReportWithoutStateIsRefused(t *testing.T) {
	bubble(t, "nil", func(t *testing.T) {
		a := &fake{name: "a", mute: true}
		store := checkpointtest.NewMemoryStore()
		c := startWith(t, store, nil, a)
		for _, kind := range []participant.Kind{participant.Periodic, participant.Suspend} {
			taken := make(chan error, 1)
			go func() { _, err := c.Take(t.Context(), kind); taken <- err }()
			synctest.Wait()
			a.barrier().Report("a", nil, nil)
			err := <-taken
			require.ErrorContains(t, err, `state of "a"`)
			require.ErrorIs(t, err, ErrNoState)
		}
		require.ErrorIs(t, c.Wait(), ErrNoState)
		require.Empty(t, must(store.List(t.Context())))
	})
	bubble(t, "empty", func(t *testing.T) {
		for _, empty := range []participant.State{{}, {nil}, {{}}} {
			a := &fake{name: "a", mute: true}
			c := startWith(t, checkpointtest.NewMemoryStore(), nil, a)
			taken := make(chan error, 1)
			go func() { _, err := c.Trigger(t.Context()); taken <- err }()
			synctest.Wait()
			a.barrier().Report("a", empty, nil)
			require.NoError(t, <-taken)
		}
	})
}
