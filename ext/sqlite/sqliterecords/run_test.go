package sqliterecords_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/exactlyoncetest"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
)

type run struct {
	req    exactlyonce.Request
	fail   error // of the effect
	panics bool

	answer string
	err    error
	txs    []*sqlite.Tx // the transactions of its effect
}

func request(client exactlyonce.Client, sequence int64) exactlyonce.Request {
	return exactlyonce.Request{ID: exactlyonce.ID{Client: client, Sequence: sequence, Attempt: 1}, Scope: "s"}
}

// together runs calls in one batch. Each effect counts in a counter of the request's
// name.
func together(t *testing.T, db *sqlite.DB, runs []*run) {
	t.Helper()
	r := sqliterecords.New(db)
	inside, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, db.Write(t.Context(), func(context.Context, *sqlite.Tx) error {
			close(inside)
			<-release
			return nil
		}))
	})
	<-inside // the runs below wait for this transaction, and form a batch
	for i, c := range runs {
		wg.Go(func() {
			answer, err := r.Run(t.Context(), c.req, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
				c.txs = append(c.txs, tx)
				_, err := tx.ExecContext(ctx, add, counter(c.req))
				if c.panics {
					panic("boom")
				}
				return []byte("answer " + strconv.Itoa(c.req.Attempt)), errors.Join(err, c.fail)
			})
			c.answer, c.err = string(answer), err
		})
		for deadline := time.Now().Add(time.Minute); r.Waiting() <= i; runtime.Gosched() {
			require.True(t, time.Now().Before(deadline), "call %d does not wait", i)
		}
	}
	close(release)
	wg.Wait()
}

func counter(req exactlyonce.Request) string {
	return fmt.Sprintf("%v/%d/%s", req.Client, req.Sequence, req.Step)
}

func openDB(t *testing.T) *sqlite.DB {
	t.Helper()
	db := open(t, filepath.Join(t.TempDir(), "test.db"))
	_, err := db.Writer().Exec(table)
	require.NoError(t, err)
	return db
}

// requireEffects checks how often the effect of a request took place.
func requireEffects(t *testing.T, db *sqlite.DB, want int, req exactlyonce.Request) {
	t.Helper()
	n, err := count(t.Context(), db, counter(req))
	require.NoError(t, err)
	require.Equal(t, want, n, "%v", req)
}

// Calls of many goroutines are one transaction, and their records are stored together
// (law X2).
func TestRunShares(t *testing.T) {
	db := openDB(t)
	clients := [3]exactlyonce.Client{exactlyonce.NewClient(), exactlyonce.NewClient(), exactlyonce.NewClient()}
	var runs []*run
	for i := range 30 {
		req := request(clients[i%3], int64(i+1))
		if i%2 == 0 {
			req.Fingerprint = [32]byte{byte(i + 1)}
			req.Step = strconv.Itoa(i)
		}
		runs = append(runs, &run{req: req})
	}
	together(t, db, runs)
	r := sqliterecords.New(db)
	for _, c := range runs {
		require.NoError(t, c.err)
		require.Equal(t, "answer 1", c.answer)
		require.Equal(t, []*sqlite.Tx{runs[0].txs[0]}, c.txs, "a transaction of its own")
		requireEffects(t, db, 1, c.req)
		state, answer, err := exactlyoncetest.StateOf(r.Find(t.Context(), c.req))
		require.NoError(t, err)
		require.Equal(t, "completed", state)
		require.Equal(t, "answer 1", string(answer))
		if c.req.Fingerprint != [32]byte{} {
			c.req.Fingerprint[31]++
			_, _, err = r.Find(t.Context(), c.req)
			require.ErrorIs(t, err, exactlyonce.ErrMismatch)
		}
	}
}

// A known request is refused or answered without running its effect, and without harm to
// the others.
func TestRunBesideKnown(t *testing.T) {
	db := openDB(t)
	r := sqliterecords.New(db)
	marked, c := exactlyonce.NewClient(), exactlyonce.NewClient()
	require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: marked, First: 5}}}))
	done := request(c, 1)
	done.Fingerprint = [32]byte{1}
	_, err := r.Run(t.Context(), done, func(context.Context, *sqlite.Tx) ([]byte, error) { return []byte("done"), nil })
	require.NoError(t, err)
	done.Attempt = 2
	other := done
	other.Fingerprint = [32]byte{2}
	runs := []*run{
		{req: request(marked, 4)}, {req: request(marked, 5)}, {req: request(c, 2)}, {req: done}, {req: other}, {req: request(c, 3)},
	}
	together(t, db, runs)
	require.ErrorIs(t, runs[0].err, exactlyonce.ErrStale)
	require.NoError(t, runs[3].err)
	require.Equal(t, "done", runs[3].answer)
	require.ErrorIs(t, runs[4].err, exactlyonce.ErrMismatch)
	for i, c := range runs {
		if i == 1 || i == 2 || i == 5 {
			require.NoError(t, c.err)
			requireEffects(t, db, 1, c.req)
			require.Len(t, c.txs, 1, "it ran again")
		} else {
			requireEffects(t, db, 0, c.req)
			require.Empty(t, c.txs)
		}
	}
}

// A call that fails has no effect and fails by itself; the others take effect once
// (laws X1, X2).
func TestRunBesideFailures(t *testing.T) {
	errRefused := errors.New("refused")
	c := exactlyonce.NewClient()
	attempt := func(sequence int64, n int) exactlyonce.Request {
		req := request(c, sequence)
		req.Attempt = n
		return req
	}
	for name, bad := range map[string]*run{
		"error":                  {req: attempt(50, 1), fail: errRefused},
		"error, a later attempt": {req: attempt(50, 2), fail: errRefused},
		"panic":                  {req: attempt(50, 1), panics: true},
		"the same request twice": {req: attempt(1, 1)},
		"a second attempt":       {req: attempt(1, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			db := openDB(t)
			runs := []*run{{req: attempt(1, 1)}, {req: attempt(2, 1)}, {req: attempt(3, 1)}, bad, {req: attempt(4, 1)}}
			together(t, db, runs)
			for _, c := range runs {
				switch {
				case c == bad && bad.fail != nil:
					require.ErrorIs(t, c.err, errRefused)
					requireEffects(t, db, 0, c.req)
				case c == bad && bad.panics:
					require.ErrorContains(t, c.err, "boom")
					requireEffects(t, db, 0, c.req)
				default:
					require.NoError(t, c.err)
					requireEffects(t, db, 1, c.req)
				}
			}
			if bad.req.Sequence == 1 {
				require.Equal(t, runs[0].answer, bad.answer)
			}
			if name == "a second attempt" {
				require.Len(t, runs[1].txs, 1, "it ran again, though nothing had to be rolled back")
			}
		})
	}
}

// A call whose context ends while it waits has no effect.
func TestRunContext(t *testing.T) {
	db := openDB(t)
	r := sqliterecords.New(db)
	inside, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, db.Write(t.Context(), func(context.Context, *sqlite.Tx) error {
			close(inside)
			<-release
			return nil
		}))
	})
	<-inside
	ctx, cancel := context.WithCancelCause(t.Context())
	errGone := errors.New("gone")
	cancel(errGone)
	effect := func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
		_, err := tx.ExecContext(ctx, add, "total")
		return nil, err
	}
	c := exactlyonce.NewClient()
	_, err := r.Run(ctx, request(c, 1), effect)
	require.ErrorIs(t, err, errGone)
	close(release)
	wg.Wait()
	_, err = r.Run(t.Context(), request(c, 2), effect)
	require.NoError(t, err)
	total, err := count(t.Context(), db, "total")
	require.NoError(t, err)
	require.Equal(t, 1, total)
}
