package sqlite_test

import (
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/storebench"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// Many messages wait, a million with WEIR_LONG=1. Memory stays flat, no message is early,
// and all are delivered when they are due.
func TestEngine_ManyWaiting(t *testing.T) {
	n := 5000
	if suite.Long() {
		n = 1_000_000
	}
	mock := clock.NewMock()
	mock.Set(time.Unix(1_700_000_000, 0))
	s := sqlite.New(open(t, filepath.Join(t.TempDir(), "queues.db")), sqlite.WithClock(mock))
	defer s.Close()
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const batch = 1000
	for i := 0; i < n; i += batch {
		ms := make([]store.Message, batch)
		for j := range ms {
			ms[j] = store.Message{Meta: message.Meta{ID: strconv.Itoa(i + j)}, Payload: make([]byte, 256), Delay: time.Hour}
		}
		require.NoError(t, s.Put(t.Context(), "q", ms...))
	}
	require.Less(t, heap(), before+16<<20, "messages that wait take memory")
	mock.Add(time.Hour - 1)
	taken, err := s.Take(t.Context(), "q", batch, time.Hour)
	require.NoError(t, err)
	require.Empty(t, taken)
	mock.Add(1)
	for left := n; left > 0; left -= batch {
		taken, err := s.Take(t.Context(), "q", batch, time.Hour)
		require.NoError(t, err)
		require.Len(t, taken, batch)
		leases := make([]store.Lease, batch)
		for i := range taken {
			leases[i] = taken[i].Lease
		}
		require.NoError(t, s.Done(t.Context(), leases...))
	}
	c, err := s.Count(t.Context(), "q", store.Filter{})
	require.NoError(t, err)
	require.Zero(t, c.Messages)
}

// TestEngine_TenantThatFloods is durable: each commit waits for the disk.
func TestEngine_TenantThatFloods(t *testing.T) {
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, sqlite.New(db).Migrate(t.Context()))
	s := sqlite.New(db)
	defer s.Close()
	storebench.Fair(t, s)
}

// TestEngine_BadEndpoints is durable: each commit waits for the disk.
func TestEngine_BadEndpoints(t *testing.T) {
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, sqlite.New(db).Migrate(t.Context()))
	s := sqlite.New(db)
	defer s.Close()
	storebench.BadEndpoints(t, s)
}

// TestEngine_ManyMessages is durable with WEIR_LONG: each commit waits for the disk.
func TestEngine_ManyMessages(t *testing.T) {
	var opts []sqlite.Option
	if !suite.Long() {
		opts = append(opts, sqlite.WithSynchronousNormal())
	}
	db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"), opts...)
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, sqlite.New(db).Migrate(t.Context()))
	s := sqlite.New(db)
	defer s.Close()
	storebench.Many(t, s)
}

func TestEngineCountKeys_ManyMessages(t *testing.T) {
	s := sqlite.New(open(t, filepath.Join(t.TempDir(), "queues.db")))
	defer s.Close()
	storebench.Keys(t, s)
}

// TestEngineTakeInOrder_BehindAFlood is durable: each commit waits for the disk.
func TestEngineTakeInOrder_BehindAFlood(t *testing.T) {
	storebench.InOrder(t, func() (storebench.OrderedEngine, func() int) {
		db, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "queues.db"))
		require.NoError(t, err)
		t.Cleanup(func() { db.Close() })
		require.NoError(t, sqlite.New(db).Migrate(t.Context()))
		s := sqlite.New(db)
		t.Cleanup(func() { s.Close() })
		return s, func() int { return parkedIn(t, db) }
	})
}
