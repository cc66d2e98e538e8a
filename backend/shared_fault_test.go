package backend_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/gate"
)

// lockedLog keeps the lines of a log. It is safe for concurrent use.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// count returns how many lines contain a text.
func (l *lockedLog) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func (l *lockedLog) option() backend.Option {
	return backend.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// whyWaiting returns the reason that an operator without a permit reports.
func whyWaiting(t *testing.T, b *backend.Backend) string {
	t.Helper()
	o := &operator{bench: &bench{T: t, Backend: b}, parked: true}
	o.seat = gate.Of(b).Attach(o, gate.Caller{})
	defer o.seat.Leave()
	err, _ := o.seat.WhyWaiting(time.Now(), &gate.Late{})
	require.Error(t, err)
	return err.Error()
}

// overwrite replaces the record of the shares.
func overwrite(t *testing.T, k store.Keeper, text string) {
	t.Helper()
	require.NoError(t, k.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		records, err := tx.Records(ctx, "fleet payments", "", 1)
		require.NoError(t, err)
		require.Len(t, records, 1)
		records[0].Value = text
		return tx.Write(ctx, records[0])
	}))
}

// The engine answers, but the record has a format that the process cannot read. Other
// processes can, and divide the whole limit, so the process must not add calls to it.
func TestWithoutEngine_UnreadableRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		service, log := &counted{takes: 100 * time.Millisecond}, new(lockedLog)
		w := startWorker(t, service, 10000, keeper, backend.Limit(10), backend.WithoutEngine(1), log.option())
		time.Sleep(5 * time.Second)
		require.Equal(t, 10, w.Stats().Limit)
		overwrite(t, keeper, `{"members":[]}`)
		time.Sleep(3 * time.Second)
		require.Equal(t, 10, w.Stats().Limit, "its lease has not ended")
		time.Sleep(3 * time.Second)
		require.Zero(t, w.Stats().Limit)
		before := service.calls.Load()
		time.Sleep(10 * time.Second)
		require.Equal(t, before, service.calls.Load())
		require.Contains(t, whyWaiting(t, w.Backend), "backend payments: at present this process does not have a share of the fleet's limit: "+
			"unknown format of the record with the shares: update weir if a later version has written it: ")
		require.Equal(t, 1, log.count("backend: the record of the shared limit cannot be read"))

		keeper.down.Store(true)
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, w.Stats().Limit, "now the engine does not answer")
		require.Equal(t, 1, log.count("backend: the engine of the shared limit does not answer"))
		keeper.down.Store(false)
		time.Sleep(2 * time.Second)
		require.Zero(t, w.Stats().Limit)
		require.Equal(t, 2, log.count("backend: the record of the shared limit cannot be read"))

		require.Equal(t, `{"members":[]}`, shares(t, keeper), "the process does not overwrite it")
		overwrite(t, keeper, `{"members":{}}`)
		time.Sleep(4 * time.Second)
		require.Equal(t, 10, w.Stats().Limit)
		require.Equal(t, 1, log.count("backend: the share of the limit is renewed again"))
		w.stop()
		time.Sleep(time.Minute)
	})
}

// While other processes are always faster, the process loses its lease although the
// engine answers, so WithoutEngine allows no calls.
func TestShared_OtherProcessesAreFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			noShare  = "backend payments: at present this process does not have a share of the fleet's limit"
			begins   = "backend: other processes renew their shares of the limit faster"
			ends     = "backend: the share of the limit is renewed again"
			isDown   = "backend: the engine of the shared limit does not answer"
			isUp     = "backend: the engine of the shared limit answers again"
			outpaced = ": in 20 tries to renew it, other processes were faster"
		)
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		service, log := &counted{takes: 100 * time.Millisecond}, new(lockedLog)
		w := startWorker(t, service, 10000, keeper, backend.Limit(10), backend.WithoutEngine(1), log.option())
		time.Sleep(5 * time.Second)
		keeper.outpaced.Store(true)
		time.Sleep(3 * time.Second)
		require.Equal(t, 10, w.Stats().Limit, "its lease has not ended")
		require.Equal(t, 1, log.count(begins))
		time.Sleep(5 * time.Second)
		require.Zero(t, w.Stats().Limit)
		require.Equal(t, noShare+outpaced, whyWaiting(t, w.Backend))

		keeper.down.Store(true)
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, w.Stats().Limit)
		keeper.down.Store(false)
		time.Sleep(5 * time.Second)
		require.Zero(t, log.count(isUp), "no step has succeeded yet")
		require.Equal(t, 1, log.count(isDown))
		require.Equal(t, 1, log.count(begins))
		require.Equal(t, 1, w.Stats().Limit)

		keeper.outpaced.Store(false)
		time.Sleep(4 * time.Second)
		require.Equal(t, 10, w.Stats().Limit)
		require.Equal(t, 1, log.count(isUp))
		keeper.outpaced.Store(true)
		time.Sleep(time.Second)
		keeper.outpaced.Store(false)
		time.Sleep(time.Second)
		require.Equal(t, 2, log.count(begins))
		require.Equal(t, 1, log.count(ends))
		w.stop()
		time.Sleep(time.Minute)
	})
}

// A process has a lease, but its share is 0. So a step in which other processes are
// faster is not the reason why it does not have a share.
func TestShared_OtherProcessesAreFasterDuringALease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keeper := &flakyKeeper{Keeper: newEngine(t)}
		b := backend.New("payments", backend.Shared(keeper), backend.Limit(10))
		o := &operator{bench: &bench{T: t, Backend: b}, parked: true}
		o.seat = gate.Of(b).Attach(o, gate.Caller{})
		time.Sleep(2 * time.Second)
		keeper.outpaced.Store(true)
		time.Sleep(2 * time.Second)
		require.Equal(t, "backend payments: at present this process does not have a share of the fleet's limit", whyWaiting(t, b))
		time.Sleep(5 * time.Second)
		require.Contains(t, whyWaiting(t, b), "other processes were faster")
		o.seat.Leave()
		time.Sleep(time.Minute)
	})
}
