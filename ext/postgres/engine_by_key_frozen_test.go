//go:build unix

package postgres_test

import (
	"context"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
)

// freezingConn is a connection of a process that freezes: it stops reading.
type freezingConn struct {
	net.Conn

	frozen *atomic.Bool
	thawed chan struct{}
}

func (c freezingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.frozen.Load() {
		<-c.thawed
	}
	return n, err
}

// A process freezes during a call. Its messages do not fit into the buffers of its
// connection. The server releases the locks of their keys nevertheless, so other processes
// take messages of these keys.
func TestEngineTakeByKey_FrozenProcessHoldsNoLock(t *testing.T) {
	const limit = 100
	url := schemas(t)(t)
	pool := connect(t, url)
	require.NoError(t, postgres.New(pool).Migrate(t.Context()))
	var frozen atomic.Bool
	thawed := make(chan struct{})
	config, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	config.MaxConns = 1
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return freezingConn{conn, &frozen, thawed}, err
	}
	slow, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	defer slow.Close()
	freezing, other := postgres.New(slow), postgres.New(pool)
	defer freezing.Close()
	defer other.Close()
	require.NoError(t, other.Put(t.Context(), "q", keyed("first", "a"))) // for a call that prepares the statements
	for i := range 8 {
		m := keyed("b"+strconv.Itoa(i), "b")
		m.Payload = make([]byte, 4<<20)
		require.NoError(t, other.Put(t.Context(), "q", m))
	}
	round := store.KeyRound{Each: 4, Limit: limit}
	first, next, err := freezing.TakeByKey(t.Context(), "q", round, 1, time.Hour)
	require.NoError(t, err)
	require.Len(t, first, 1)
	require.Equal(t, "first", first[0].Meta.ID)

	round.After = next
	postgres.SetStep(freezing, func() { frozen.Store(true) })
	took := make(chan int, 1)
	go func() { // ends after the process has thawed
		taken, _, _ := freezing.TakeByKey(context.WithoutCancel(t.Context()), "q", round, 4, time.Hour)
		took <- len(taken)
	}()
	defer func() {
		close(thawed)
		require.Equal(t, 4, <-took)
	}()
	require.Eventually(t, func() bool { // the server has leased the messages, or waits for the process
		var leased int
		var isStuck bool
		err := pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM weir_messages WHERE limited IS NOT NULL),
			EXISTS (SELECT 1 FROM pg_stat_activity WHERE wait_event = 'ClientWrite')`).Scan(&leased, &isStuck)
		return err == nil && (leased == 5 || isStuck)
	}, time.Minute, 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	taken, _, err := other.TakeByKey(ctx, "q", round, 4, time.Hour)
	require.NoError(t, err)
	require.NotEmpty(t, taken)
}
