package leases_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// deaf is an engine that cannot listen.
type deaf struct{ *memory.Engine }

func (deaf) Wake(context.Context, string, func()) error { return errors.New("the password is wrong") }

// Regression: nobody got to know that an engine could not listen.
func TestAnEngineThatCannotListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := deaf{memory.Open()}
		var log bytes.Buffer
		s := leases.NewSource(engine, "q", "dead", codec.JSON[int](), leases.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for range 10 {
			time.AfterFunc(59*time.Second, func() {
				require.NoError(t, engine.Put(t.Context(), "q", store.Message{Meta: delivery.Meta{ID: "1"}, Payload: []byte("1")}))
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
		require.LessOrEqual(t, lines, 11)
	})
}
