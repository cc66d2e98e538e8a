//go:build unix

package keystest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/internal/testing/golden"
)

// endWhileListing ends requests and writes to the database inside a loop over List, which
// must not hold a connection: SQLite has only one for writing.
func (b *bench) endWhileListing() {
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	o := b.keys.Operation("op", p.handle)
	for i := range 3 {
		_, err := o.Do(b.Context(), request("a", fmt.Sprint("k", i)))
		require.ErrorIs(b, err, broken)
	}
	ended, err := keys.JSON(http.StatusConflict, "ended by hand")
	require.NoError(b, err)
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
	defer cancel()
	listed := 0
	for i, err := range b.keys.List(ctx, keys.Filter{}) {
		require.NoError(b, err)
		require.NoError(b, b.keys.End(ctx, i.ID, ended), "the loop holds the connection that End needs")
		_, err := b.db.ExecContext(ctx, "INSERT INTO effects (name) VALUES ('listed')")
		require.NoError(b, err)
		listed++
	}
	assert.Equal(b, 3, listed)
	assert.Equal(b, 3, b.effects("listed"))
	counts, err := b.keys.Count(b.Context())
	require.NoError(b, err)
	assert.Zero(b, counts.Unfinished)
}

// listManyPages checks that List returns each request once, the oldest first, over many
// pages and equal creation times.
func (b *bench) listManyPages() {
	const n = 1203 // pages of 500
	tx, err := b.db.BeginTx(b.Context(), nil)
	require.NoError(b, err)
	for i := range n {
		createdAt := i / 700 // the first 700 have the same age, and a page ends among them
		_, err := tx.ExecContext(b.Context(), `INSERT INTO weir_keys (id, principal, idempotency_key, operation, request_method, request_path,
request_query, request_type, request_body, fingerprint, created_at, last_run_at, expires_at, fence, recovery_point)
VALUES ($1, 'a', $2, 'op', 'POST', '/', '', '', $3, $4, $5, $6, $7, 1, 'started')`,
			fmt.Sprintf("%032d", (i*7919)%n), fmt.Sprint(i), []byte{}, make([]byte, 32), createdAt, createdAt, createdAt+1)
		require.NoError(b, err)
	}
	require.NoError(b, tx.Commit())
	var before keys.Info
	listed := 0
	for i, err := range b.keys.List(b.Context(), keys.Filter{User: "a"}) {
		require.NoError(b, err)
		if listed > 0 {
			older := before.Created.Before(i.Created) || before.Created.Equal(i.Created) && before.ID < i.ID
			require.True(b, older, "%s is listed after %s", i.ID, before.ID)
		}
		before = i
		listed++
	}
	assert.Equal(b, n, listed)
}

// refusalsOfOthers checks that another service's refusal, which a step returns wrapped,
// is an error of the handler: the client receives the handler's own response.
func (b *bench) refusalsOfOthers() {
	const user = "a"
	inner := b.keys.Operation("inner", func(context.Context, *keys.Run) (exactlyonce.Response, error) {
		return keys.JSON(http.StatusOK, "done")
	})
	_, err := inner.Do(b.Context(), request(user, "taken"))
	require.NoError(b, err)
	_, ofOther := inner.Do(b.Context(), keys.Request{User: user, Key: "taken", Body: []byte("other content")})
	require.ErrorIs(b, ofOther, exactlyonce.ErrMismatch)
	_, invalid := inner.Do(b.Context(), keys.Request{User: user})
	require.ErrorIs(b, invalid, exactlyonce.ErrInvalid)

	var refusal error
	inPhase := false
	outer := b.keys.Operation("outer", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		var err error
		if inPhase {
			err = run.Phase(ctx, "step", func(context.Context, *sql.Tx) error { return refusal })
		} else {
			_, err = keys.Call(ctx, run, "step", func(context.Context, string) (int, error) { return 0, refusal })
		}
		return exactlyonce.Response{Status: http.StatusServiceUnavailable, Body: []byte("the handler's own")}, err
	})
	server := httptest.NewServer(outer.Handler(keys.HandlerConfig{User: userOf}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for i, class := range []error{exactlyonce.ErrMismatch, exactlyonce.ErrInvalid, exactlyonce.ErrInProgress, exactlyonce.ErrStale, ofOther, invalid} {
		for _, inPhase = range []bool{false, true} {
			refusal = fmt.Errorf("charge: %w", class)
			resp, text, err := post(server.URL, fmt.Sprintf("key-%d-%t", i, inPhase), "body")
			require.NoError(b, err)
			assert.Equal(b, http.StatusServiceUnavailable, resp.StatusCode, "%v", class)
			assert.Equal(b, "the handler's own", text, "%v", class)
			assert.Empty(b, resp.Header.Get("Exactly-Once-Result"), "%v", class)
		}
	}
	stats := b.keys.Stats()
	assert.EqualValues(b, 1, stats.Mismatched, "only the direct call of inner was refused")
	assert.EqualValues(b, 1, stats.Invalid)
	assert.Zero(b, stats.InProgress)
	assert.Zero(b, stats.Stale)
}

// ownRefusalWrapped checks that the operation's own refusal is recognised although the
// handler wraps it: the client is asked to repeat the request later.
func (b *bench) ownRefusalWrapped() {
	stolen := false
	o := b.keys.Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		if !stolen { // another run takes over
			stolen = true
			_, err := b.db.ExecContext(ctx, "UPDATE weir_keys SET fence = fence + 1")
			require.NoError(b, err)
		}
		err := run.Phase(ctx, "step", func(context.Context, *sql.Tx) error { return nil })
		if err != nil {
			return exactlyonce.Response{Status: http.StatusServiceUnavailable}, fmt.Errorf("first step: %w", err)
		}
		return keys.JSON(http.StatusOK, "done")
	})
	server := httptest.NewServer(o.Handler(keys.HandlerConfig{User: userOf}))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	resp, _, err := post(server.URL, "k", "body")
	require.NoError(b, err)
	assert.Equal(b, http.StatusConflict, resp.StatusCode)
	assert.Equal(b, "in-progress", resp.Header.Get("Exactly-Once-Result"))
	assert.EqualValues(b, 1, b.keys.Stats().Stale)
}

// expiredKey checks that a key belongs to a new request after its retention, even if Reap
// has not run.
func (b *bench) expiredKey() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	b.clock.Add(24*time.Hour - time.Microsecond)
	_, err = o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, [3]int{1, 1, 1}, p.runs(), "the retention is not over")
	b.clock.Add(time.Microsecond)
	other := request("a", "k")
	other.Body = []byte("another request")
	_, err = o.Do(b.Context(), other)
	require.NoError(b, err)
	assert.Equal(b, [3]int{2, 2, 2}, p.runs(), "the key means a new request")
	assert.Equal(b, 2, p.callKeys(), "its calls have other keys")
	assert.Equal(b, 1, count(b.T, b.db, "SELECT count(*) FROM weir_keys"))
	assert.Equal(b, 2, count(b.T, b.db, "SELECT count(*) FROM weir_key_steps"), "the steps of the expired request are removed")
	assert.EqualValues(b, 1, b.keys.Stats().Collected)

	// An unfinished request stays at any age.
	broken := errors.New("broken")
	p.call = func(string) error { return broken }
	_, err = o.Do(b.Context(), request("a", "unfinished"))
	require.ErrorIs(b, err, broken)
	b.clock.Add(48 * time.Hour)
	p.call = nil
	_, err = o.Do(b.Context(), request("a", "unfinished"))
	require.NoError(b, err)
	assert.Equal(b, [3]int{3, 4, 3}, p.runs(), "its first phase does not run again")
}

// longKey checks that a key may have 255 bytes, even in a database of an earlier version,
// whose requests and steps stay.
func (b *bench) longKey() {
	old := watch(b.setup.Driver, b.setup.New(b.T), &Hooks{})
	defer func() { require.NoError(b, old.Close()) }()
	old.SetMaxOpenConns(b.setup.Conns)
	golden.Run(b.Context(), b, old, golden.Read(b, "keys-1.sql"))
	k := keys.New(old, b.setup.Dialect, keys.Config{Clock: b.clock})
	require.NoError(b, k.Migrate(b.Context()))
	o := k.Operation("order", func(context.Context, *keys.Run) (exactlyonce.Response, error) { return keys.JSON(http.StatusOK, "new") })
	_, err := o.Do(b.Context(), request("a", strings.Repeat("k", 255)))
	require.NoError(b, err)
	_, err = o.Do(b.Context(), request("a", strings.Repeat("k", 256)))
	require.ErrorIs(b, err, exactlyonce.ErrInvalid)
	require.ErrorContains(b, err, "256 bytes, more than 255")
	assert.Equal(b, 2, count(b.T, old, "SELECT count(*) FROM weir_keys"))
	assert.Equal(b, 1, count(b.T, old, "SELECT count(*) FROM weir_key_steps"))
	response, err := o.Do(b.Context(), formatRequest())
	require.NoError(b, err, "its fingerprint is in the form of an earlier version")
	assert.Equal(b, "\"done\"\n", string(response.Body))

	// The steps still belong to their requests.
	_, err = old.ExecContext(b.Context(), "DELETE FROM weir_keys")
	require.NoError(b, err)
	assert.Zero(b, count(b.T, old, "SELECT count(*) FROM weir_key_steps"))
}
