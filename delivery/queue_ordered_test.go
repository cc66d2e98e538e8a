package delivery_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// inOrder runs a worker that keeps the order of keys for a time, and returns the visits
// that it makes.
func inOrder(t *testing.T, q *delivery.Queue[job], d time.Duration, f func(context.Context, job) error) (visits []string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(d, stop)
	var mu sync.Mutex
	_, err := delivery.Run(ctx, q, operate(q, func(ctx context.Context, j job) (string, error) {
		mu.Lock()
		visits = append(visits, string(j))
		mu.Unlock()
		return "", f(ctx, j)
	}), sinkFunc(func(context.Context, []message.Message[string]) error { return nil }), silently, delivery.WithFloodGuard(1, 100))
	require.NoError(t, err)
	return visits
}

func done(context.Context, job) error { return nil }

func inLayer(id string, visit int, delay time.Duration) store.Message {
	return store.Message{Meta: message.Meta{ID: id, Key: "k", Visit: visit}, Payload: []byte(`"` + id + `"`), Delay: delay}
}

// Law D4: a message that fails delays its own key, and no other.
func TestWithOrdered_FailureDelaysItsOwnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", delivery.RetryAfter(time.Minute), delivery.WithOrdered(), noLog)
		for _, id := range []string{"first", "second"} {
			require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
		}
		require.NoError(t, q.Put(t.Context(), "other", delivery.ID("other"), delivery.Key("o")))
		visits := inOrder(t, q, time.Hour, func(ctx context.Context, j job) error {
			meta, _ := message.MetaFromContext(ctx)
			if j == "first" && meta.Visit == 1 {
				return errors.New("it fails once")
			}
			return nil
		})
		require.Less(t, slices.Index(visits, "other"), 2, "it does not wait for another key: %v", visits)
		visits = slices.DeleteFunc(visits, func(id string) bool { return id == "other" })
		require.Equal(t, []string{"first", "first", "second"}, visits)
		require.Empty(t, entriesOf(t, engine, "jobs"))
		require.Empty(t, entriesOf(t, engine, "jobs-retry-1"))
		require.Empty(t, entriesOf(t, engine, "jobs-dead"))
	})
}

// A message that fails waits in the queue with its history, and the next worker
// continues with it.
func TestWithOrdered_Restart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		open := func() *delivery.Queue[job] {
			return delivery.NewQueue[job](engine.Reopen(), "jobs", delivery.RetryAfter(time.Hour), delivery.WithOrdered(), noLog)
		}
		q := open()
		for _, id := range []string{"first", "second"} {
			require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
		}
		require.Equal(t, []string{"first"}, inOrder(t, q, time.Minute, func(context.Context, job) error { return errors.New("it fails") }))
		waits := entriesOf(t, engine, "jobs")
		require.Len(t, waits, 2)
		require.Equal(t, "first", waits[0].Meta.ID)
		require.Equal(t, 1, waits[0].Meta.Visit)
		require.Contains(t, waits[0].Meta.LastError, "it fails")
		require.Equal(t, []string{"first", "second"}, inOrder(t, open(), 3*time.Hour, done))
	})
}

// A dead letter frees its key, and comes last when it is merged back.
func TestWithOrdered_DeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		q := delivery.NewQueue[job](engine, "jobs", delivery.WithOrdered(), noLog)
		for _, id := range []string{"first", "second"} {
			require.NoError(t, q.Put(t.Context(), job(id), delivery.ID(id), delivery.Key("k")))
		}
		visits := inOrder(t, q, time.Minute, func(_ context.Context, j job) error {
			if j == "first" {
				return errors.New("it fails")
			}
			return nil
		})
		require.Equal(t, []string{"first", "second"}, visits)
		require.Len(t, entriesOf(t, engine, "jobs-dead"), 1)
	})
}

func TestWithOrdered_OptionsThatDoNotGoTogether(t *testing.T) {
	const limited = "WithOrdered and a layer with a limit do not go together: " +
		"messages wait in the queue itself, so leave MaxConcurrent and Rate of the layers out"
	for _, c := range []struct {
		other delivery.QueueOption
		want  string
	}{
		{delivery.WithFairByKey(0), "WithOrdered and WithFairByKey do not go together: WithOrdered is fair by key already, so leave WithFairByKey out"},
		{delivery.WithLayers(delivery.Layer{Delay: 1, Rate: 1}), limited},
		{delivery.WithLayers(delivery.Layer{Delay: 1, MaxConcurrent: 1}), limited},
	} {
		require.PanicsWithValue(t, "delivery: NewQueue: queue \"q\": "+c.want, func() {
			delivery.NewQueue[int](memory.Open(), "q", delivery.WithOrdered(), c.other)
		})
	}
}

// fullDead refuses dead letters with a payload: only pointers fit.
type fullDead struct{ *memory.Engine }

func (f fullDead) Move(ctx context.Context, moves ...store.Move) error {
	for _, m := range moves {
		if m.Queue == "jobs-dead" && len(m.Message.Payload) > 0 {
			return message.ErrRefused
		}
	}
	return f.Engine.Move(ctx, moves...)
}

// A message that cannot be decoded, and whose dead letter does not fit, is set aside.
// Later messages of its key do not wait for it.
func TestWithOrdered_MessageSetAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := fullDead{memory.Open()}
		q := delivery.NewQueue[job](engine, "jobs", delivery.WithOrdered(), noLog)
		require.NoError(t, engine.Put(t.Context(), "jobs", store.Message{Meta: message.Meta{ID: "damaged", Key: "k"}, Payload: []byte("{")}))
		require.NoError(t, q.Put(t.Context(), "next", delivery.ID("next"), delivery.Key("k")))
		visits := inOrder(t, q, time.Hour, done)
		require.Len(t, entriesOf(t, engine.Engine, "jobs-dead"), 1, "the pointer is a dead letter")
		require.Equal(t, []string{"next"}, visits)
	})
}
