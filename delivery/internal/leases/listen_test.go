package leases_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// deaf is an engine that cannot listen.
type deaf struct{ *memory.Engine }

func (deaf) Wake(context.Context, string, func(bool)) error {
	return errors.New("the password is wrong")
}

// Regression: an engine's failure to listen was not reported.
func TestSource_EngineThatCannotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := deaf{memory.Open()}
		var log bytes.Buffer
		s := leases.NewSource(engine, "q", "dead", codec.JSON[int](), leases.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for range 10 {
			time.AfterFunc(59*time.Second, func() {
				require.NoError(t, engine.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "1"}, Payload: []byte("1")}))
			})
			begun := time.Now()
			ms, err := s.Receive(t.Context(), 1)
			require.NoError(t, err)
			require.Less(t, time.Since(begun), 59*time.Second+200*time.Millisecond, "it polls")
			ms[0].Ack()
		}
		require.NoError(t, s.Close(t.Context()))
		lines := bytes.Count(log.Bytes(), []byte("the password is wrong"))
		require.GreaterOrEqual(t, lines, 9)
		require.LessOrEqual(t, lines, 12)
		require.Contains(t, log.String(), " failures=60\n", "the others of a minute are counted")
	})
}

// losing is an engine whose consumers were woken once, until its connection was cut for
// good.
type losing struct {
	*memory.Engine
	cut *atomic.Bool
}

func (l losing) Wake(ctx context.Context, _ string, wake func(misses bool)) error {
	if !l.cut.Load() {
		wake(false)
		time.Sleep(time.Minute)
		l.cut.Store(true)
	}
	return errors.New("the connection was cut")
}

// Law W2: a source that need not poll does so once its engine can no longer listen.
func TestSource_EngineThatNoLongerListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := losing{memory.Open(), new(atomic.Bool)}
		s := leases.NewSource(engine, "q", "dead", codec.JSON[int](), leases.WithLogger(slog.New(slog.DiscardHandler)))
		time.AfterFunc(time.Hour, func() {
			require.NoError(t, engine.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "1"}, Payload: []byte("1")}))
		})
		ctx, stop := context.WithTimeout(t.Context(), 2*time.Hour)
		defer stop()
		begun := time.Now()
		ms, err := s.Receive(ctx, 1)
		require.NoError(t, err)
		require.Less(t, time.Since(begun), time.Hour+200*time.Millisecond)
		ms[0].Ack()
		require.NoError(t, s.Close(t.Context()))
	})
}
