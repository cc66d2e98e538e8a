package checkpoint_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/message"
)

// written is an output that records the written elements.
type written[T any] struct{ values []T }

func (w *written[T]) Write(_ context.Context, v T) error      { w.values = append(w.values, v); return nil }
func (w *written[T]) Prepare(context.Context) ([]byte, error) { return nil, nil }
func (w *written[T]) Commit(context.Context, []byte) error    { return nil }
func (w *written[T]) Restore(context.Context, []byte) error   { return nil }
func (w *written[T]) Close() error                            { return nil }

// sinkOf returns the values that a sink of T writes for an element, and its error.
func sinkOf[T any](t *testing.T, element any) (values []T, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := must(NewCoordinator(checkpointtest.NewMemoryStore(), WithLogger(quiet())))
		out := &written[T]{}
		s := NewSink(c, "sink", out)
		require.NoError(t, c.Start())
		s.In() <- element
		synctest.Wait()
		values, err = out.values, s.Err()
		_ = c.Close()
		close(s.In())
		s.AwaitCompletion()
	})
	return values, err
}

// A message with its own acknowledgement is released, and the run fails: otherwise the
// message would never be acknowledged.
func TestSinkRefusesAcknowledgements(t *testing.T) {
	for name, sink := range map[string]func(t *testing.T, element any) (int, error){
		"string": func(t *testing.T, e any) (int, error) { v, err := sinkOf[string](t, e); return len(v), err },
		"any":    func(t *testing.T, e any) (int, error) { v, err := sinkOf[any](t, e); return len(v), err },
		"message": func(t *testing.T, e any) (int, error) {
			v, err := sinkOf[message.Message[string]](t, e)
			return len(v), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			settlements := make(chan message.Settlement, 1)
			n, err := sink(t, message.New("a", nil, func(v message.Settlement) { settlements <- v }))
			require.ErrorContains(t, err, "a message with an acknowledgement of its own")
			require.Zero(t, n)
			require.Equal(t, message.Released, (<-settlements).Kind)
		})
	}
}

// A message without an acknowledgement is written as its value.
func TestSinkTakesHistory(t *testing.T) {
	m := message.New("a", &message.Meta{ID: "1"}, nil)
	texts, err := sinkOf[string](t, m)
	require.Equal(t, []string{"a"}, texts, "%v", err)
	values, err := sinkOf[any](t, m)
	require.Equal(t, []any{"a"}, values, "%v", err)
	messages, err := sinkOf[message.Message[string]](t, m)
	require.Equal(t, []message.Message[string]{m}, messages, "%v", err)
	_, err = sinkOf[int](t, m)
	require.ErrorContains(t, err, "got an element of type string, want int")
}
