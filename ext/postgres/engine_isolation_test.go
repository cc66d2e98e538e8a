//go:build unix

package postgres_test

import (
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/message"
)

// With a default of REPEATABLE READ the database rolls back statements because of other
// transactions. Each call is tried again.
func TestEngine_DefaultOfRepeatableRead(t *testing.T) {
	address := newDatabase(pgtest.Start(t), "isolation", "UTF8")
	u, err := url.Parse(address)
	require.NoError(t, err)
	q := u.Query()
	q.Set("default_transaction_isolation", "repeatable read")
	u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20")
	e, err := postgres.Open(t.Context(), u.String(), postgres.WithLogger(slog.New(slog.DiscardHandler)), postgres.WithConnections(8))
	require.NoError(t, err)
	defer e.Close()
	require.NoError(t, e.Put(t.Context(), "q", store.Message{Meta: message.Meta{ID: "1"}}))
	taken, err := e.Take(t.Context(), "q", 1, time.Hour)
	require.NoError(t, err)

	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			for range 50 {
				g, err := e.Locks().Acquire(t.Context(), "lock", strconv.Itoa(worker), time.Hour)
				if errors.Is(err, lock.ErrHeld) {
					continue
				}
				if !assert.NoError(t, err) {
					return
				}
				assert.NoError(t, e.Locks().Extend(t.Context(), g, time.Hour))
				provider := strconv.Itoa(worker)
				assert.NoError(t, e.Amend(t.Context(), taken[0].Lease, store.Amendment{Provider: &provider}))
				assert.NoError(t, e.Locks().Release(t.Context(), g))
			}
		})
		wg.Go(func() {
			for range 50 {
				provider := strconv.Itoa(worker)
				assert.NoError(t, e.Amend(t.Context(), taken[0].Lease, store.Amendment{Provider: &provider}))
			}
		})
	}
	wg.Wait()
}
