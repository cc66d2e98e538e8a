package sqliterecords_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/exactlyoncetest"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
)

// A failed statement is the error of its call, which leaves no partial step and can be
// repeated.
func TestStatementsThatFail(t *testing.T) {
	db := openDB(t)
	mock := clock.NewMock()
	mock.Set(time.Unix(1_000_000, 0))
	r := sqliterecords.NewBy(db, mock)
	ctx := t.Context()
	exec := func(query string) {
		t.Helper()
		_, err := db.Writer().Exec(query)
		require.NoError(t, err)
	}
	// failing makes each change of this kind fail during f.
	failing := func(change string, f func() error) {
		t.Helper()
		exec("CREATE TRIGGER broken BEFORE " + change + " BEGIN SELECT RAISE(ABORT, 'broken'); END")
		require.ErrorContains(t, f(), "broken", change)
		exec("DROP TRIGGER broken")
		require.NoError(t, f(), change)
	}
	put := func(req exactlyonce.Request) func() error {
		return func() error {
			return db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error { return r.Put(ctx, tx, req, []byte("x")) })
		}
	}
	find := func(req exactlyonce.Request) string {
		t.Helper()
		state, _, err := exactlyoncetest.StateOf(r.Find(ctx, req))
		require.NoError(t, err)
		return state
	}
	client := exactlyonce.NewClient()
	failing("INSERT ON weir_clients", put(request(client, 1)))
	failing("INSERT ON weir_answers", put(request(client, 2)))
	effect := func(context.Context, *sqlite.Tx) ([]byte, error) { return []byte("x"), nil }
	failing("INSERT ON weir_clients", func() error {
		_, err := r.Run(ctx, request(exactlyonce.NewClient(), 1), effect)
		return err
	})

	mark := func(before int64) func() error {
		return func() error {
			return r.Acknowledge(ctx, []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: client, First: before}}})
		}
	}
	failing("UPDATE ON weir_clients", mark(1))
	failing("DELETE ON weir_answers", mark(2))
	require.Equal(t, "stale", find(request(client, 1)))
	require.Equal(t, "completed", find(request(client, 2)))

	var answers, clients int
	collect := func(age, silence time.Duration) func() error {
		return func() (err error) {
			answers, clients, err = r.Collect(ctx, mock.Now().Add(-age), mock.Now().Add(-silence))
			return err
		}
	}
	mock.Add(time.Hour)
	failing("UPDATE OF answer ON weir_answers", collect(time.Minute, 2*time.Hour))
	require.Equal(t, [...]int{2, 0}, [...]int{answers, clients}, "that of the failing client, and that of Run")
	require.Equal(t, "stale", find(request(client, 2)))
	require.NoError(t, put(request(client, 3))())
	mock.Add(3 * time.Hour)
	failing("UPDATE OF mark ON weir_clients", collect(time.Hour, time.Hour))
	require.Equal(t, "stale", find(request(client, 3)))

	other := exactlyonce.NewClient()
	require.NoError(t, put(request(other, 1))())
	mock.Add(3 * time.Hour)
	exec("CREATE TRIGGER broken BEFORE DELETE ON weir_answers BEGIN SELECT RAISE(ABORT, 'broken'); END")
	require.ErrorContains(t, collect(time.Hour, time.Hour)(), "broken", "the rows of a silent client")
	exec("DROP TRIGGER broken")
	require.Equal(t, "completed", find(request(other, 1)))
	require.NoError(t, collect(time.Hour, time.Hour)())
	require.Equal(t, "stale", find(request(other, 1)))
	mock.Add(24 * time.Hour)
	failing("DELETE ON weir_clients", collect(time.Hour, time.Hour))
	require.Equal(t, 3, clients)
}

// A database that cannot be read causes an error, and requests do not seem new.
func TestTablesThatAreGone(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "test.db"))
	r := sqliterecords.New(db)
	req := request(exactlyonce.NewClient(), 1)
	_, err := r.Run(t.Context(), req, func(context.Context, *sqlite.Tx) ([]byte, error) { return []byte("x"), nil })
	require.NoError(t, err)
	_, err = db.Writer().Exec("ALTER TABLE weir_answers RENAME TO elsewhere")
	require.NoError(t, err)
	_, _, err = r.Find(t.Context(), req)
	require.ErrorContains(t, err, "weir_answers")
	_, _, err = r.Collect(t.Context(), time.Now(), time.Now())
	require.ErrorContains(t, err, "weir_answers")
	req.Attempt = 2
	_, err = r.Run(t.Context(), req, func(context.Context, *sqlite.Tx) ([]byte, error) {
		t.Error("an effect, and it is not known whether there was one")
		return nil, nil
	})
	require.ErrorContains(t, err, "weir_answers")
	_, err = db.Writer().Exec("ALTER TABLE weir_clients RENAME TO elsewhere_too")
	require.NoError(t, err)
	_, _, err = r.Collect(t.Context(), time.Now(), time.Now())
	require.ErrorContains(t, err, "weir_clients")
}

// Law X1: a stale request that has to run alone, because another request of its batch
// failed, does not run, and its error is ErrStale.
func TestRunAloneWhenStale(t *testing.T) {
	db := openDB(t)
	r := sqliterecords.New(db)
	client := exactlyonce.NewClient()
	require.NoError(t, r.Acknowledge(t.Context(), []exactlyonce.Request{{Scope: "s", ID: exactlyonce.ID{Client: client, First: 5}}}))
	stale, done := request(client, 1), request(client, 7)
	stale.Attempt = 2
	_, err := r.Run(t.Context(), done, func(context.Context, *sqlite.Tx) ([]byte, error) { return []byte("answer 0"), nil })
	require.NoError(t, err)
	done.Attempt = 3
	failed := errors.New("refused")
	runs := []*run{{req: request(client, 6), fail: failed}, {req: stale}, {req: done}}
	together(t, db, runs)
	require.ErrorIs(t, runs[0].err, failed)
	require.ErrorIs(t, runs[1].err, exactlyonce.ErrStale)
	require.Empty(t, runs[1].txs)
	require.NoError(t, runs[2].err)
	require.Equal(t, "answer 0", runs[2].answer)
	require.Empty(t, runs[2].txs)
}
