package sqliteanswers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliteanswers"
	"github.com/weirflow/weir/internal/testing/golden"
	"github.com/weirflow/weir/predicates/httpretry"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("WEIR_ANSWERS_DIR"); dir != "" {
		killedRun(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, path string) *sqlite.DB {
	t.Helper()
	db, err := sqlite.OpenDB(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, sqliteanswers.New(db, "any").Migrate(t.Context()))
	return db
}

type answer struct{ Text string }

// results runs fn for the numbers below n.
func results(t *testing.T, n int, fn asyncop.AsyncFunction[int, answer], opts ...asyncop.Option) (texts []string, err error) {
	t.Helper()
	op := asyncop.OrderedWait(fn, time.Minute, 20, append(opts, asyncop.WithLogger(slog.New(slog.DiscardHandler)))...)
	for v, err := range op.Results(func(yield func(int) bool) {
		for i := range n {
			if !yield(i) {
				return
			}
		}
	}) {
		if err != nil {
			return texts, err
		}
		texts = append(texts, v.Text)
	}
	return texts, nil
}

func TestBlocking_CallsOnce(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "answers.db"))
	var calls atomic.Int64
	function := func(cache string) asyncop.AsyncFunction[int, answer] {
		return sqliteanswers.Blocking(sqliteanswers.New(db, cache), strconv.Itoa, func(ctx context.Context, in int) (answer, error) {
			calls.Add(1)
			asyncop.ReportCost(ctx, 7)
			return answer{fmt.Sprint("answer ", in)}, nil
		})
	}
	var first []string
	for range 3 {
		texts, err := results(t, 100, function("a"))
		require.NoError(t, err)
		require.Len(t, texts, 100)
		first = append(first, texts...)
		require.EqualValues(t, 100, calls.Load())
	}
	require.Equal(t, first[:100], first[200:])
	_, err := results(t, 100, function("b"))
	require.NoError(t, err)
	require.EqualValues(t, 200, calls.Load(), "caches are apart")

	_, err = results(t, 101, function("a"), asyncop.WithBackend(backend.New("service"), asyncop.Budget(8)))
	require.NoError(t, err)
	require.EqualValues(t, 201, calls.Load())
}

// A stored answer does not use the rate, and does not count as an answer of the service.
func TestBlocking_StoredAnswersAtABackend(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "answers.db"))
	fn := sqliteanswers.Blocking(sqliteanswers.New(db, "a"), strconv.Itoa, func(_ context.Context, in int) (answer, error) {
		if in >= 100 {
			return answer{}, &httpretry.StatusError{StatusCode: http.StatusServiceUnavailable}
		}
		return answer{"yes"}, nil
	})
	_, err := results(t, 100, fn)
	require.NoError(t, err)
	service := backend.New("service", backend.CallRate(1, time.Hour), backend.Rate(1, time.Hour), backend.WithLogger(slog.New(slog.DiscardHandler)))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, shared := range []asyncop.AsyncFunction[int, answer]{fn, lookup.New(fn, nil)} {
		texts, err := results(t, 100, shared, asyncop.WithBackend(service), asyncop.WithContext(ctx))
		require.NoError(t, err)
		require.Len(t, texts, 100)
	}

	// Failed calls alternate with stored answers.
	service = backend.New("service", backend.LossShare(0.9, 10), backend.WithLogger(slog.New(slog.DiscardHandler)))
	op := asyncop.OrderedWait(fn, time.Second, 1, asyncop.WithBackend(service), asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	for range op.Results(func(yield func(int) bool) {
		for i := 0; i < 100 && service.Stats().Trips == 0; i++ {
			if !yield(i/2 + i%2*100) {
				return
			}
		}
	}) {
	}
	require.EqualValues(t, 1, service.Stats().Trips)
}

func TestBlocking_Errors(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "answers.db"))
	calls := 0
	fn := sqliteanswers.Blocking(sqliteanswers.New(db, "a"), strconv.Itoa, func(context.Context, int) (answer, error) {
		calls++
		if calls == 1 {
			return answer{}, errors.New("overloaded")
		}
		return answer{"yes"}, nil
	})
	_, err := results(t, 1, fn)
	require.ErrorContains(t, err, "overloaded")
	texts, err := results(t, 1, fn)
	require.NoError(t, err)
	require.Equal(t, []string{"yes"}, texts, "errors are not kept")

	_, err = db.Writer().ExecContext(t.Context(), "UPDATE weir_cached_answers SET answer = x'00'")
	require.NoError(t, err)
	_, err = results(t, 1, fn)
	require.ErrorContains(t, err, `sqliteanswers: an answer of cache "a"`)
	require.NoError(t, sqliteanswers.New(db, "a").Delete(t.Context(), "0"))
	_, err = results(t, 1, fn)
	require.NoError(t, err)

	_, err = db.Writer().ExecContext(t.Context(), "DROP TABLE weir_cached_answers")
	require.NoError(t, err)
	_, err = results(t, 1, fn)
	require.ErrorContains(t, err, `sqliteanswers: read cache "a"`)
}

// An answer that arrives after the timeout of its element is still stored.
func TestBlocking_AnswerAfterTheTimeout(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "answers.db"))
	calls := 0
	fn := sqliteanswers.Blocking(sqliteanswers.New(db, "a"), strconv.Itoa, func(ctx context.Context, _ int) (answer, error) {
		calls++
		<-ctx.Done()
		return answer{"late"}, nil
	})
	op := asyncop.OrderedWait(fn, 50*time.Millisecond, 1, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	for range op.Results(func(yield func(int) bool) { yield(0) }) {
		t.Error("a result")
	}
	require.Eventually(t, func() bool {
		var n int
		err := db.Reader().QueryRowContext(t.Context(), "SELECT count(*) FROM weir_cached_answers").Scan(&n)
		return err == nil && n == 1
	}, time.Minute, 5*time.Millisecond)
	texts, err := results(t, 1, fn)
	require.NoError(t, err)
	require.Equal(t, []string{"late"}, texts)
	require.Equal(t, 1, calls)
}

// Law W3: old answers are collected.
func TestCache_Collect(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "answers.db"))
	mock := clock.NewMock()
	c := sqliteanswers.New(db, "a").WithClock(mock)
	fn := sqliteanswers.Blocking(c, strconv.Itoa, func(_ context.Context, in int) (answer, error) { return answer{}, nil })
	_, err := results(t, 1500, fn)
	require.NoError(t, err)
	mock.Add(time.Hour)
	_, err = results(t, 1600, fn)
	require.NoError(t, err)
	removed, err := c.Collect(t.Context(), time.Minute)
	require.NoError(t, err)
	require.EqualValues(t, 1500, removed)
	removed, err = c.Collect(t.Context(), time.Minute)
	require.NoError(t, err)
	require.Zero(t, removed)
}

func TestNew_Arguments(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "answers.db"))
	require.Panics(t, func() { sqliteanswers.New(nil, "a") })
	require.Panics(t, func() { sqliteanswers.New(db, "") })
	require.Panics(t, func() { sqliteanswers.Blocking[int, answer](sqliteanswers.New(db, "a"), nil, nil) })
}

// killedRun is a run in a process of its own: it notes each call in a file, which counts
// as paid.
func killedRun(dir string) {
	ctx := context.Background()
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	db, err := sqlite.OpenDB(ctx, filepath.Join(dir, "answers.db"))
	fail(err)
	c := sqliteanswers.New(db, "a")
	fail(c.Migrate(ctx))
	paid, err := os.OpenFile(filepath.Join(dir, "paid"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	fail(err)
	fn := sqliteanswers.Blocking(c, strconv.Itoa, func(_ context.Context, in int) (answer, error) {
		fmt.Fprintln(paid, in)
		time.Sleep(2 * time.Millisecond)
		return answer{strconv.Itoa(in)}, nil
	})
	op := asyncop.OrderedWait(fn, time.Minute, 20, asyncop.WithMaxConcurrentCalls(8))
	for _, err := range op.Results(func(yield func(int) bool) {
		for i := range 1000 {
			if !yield(i) {
				return
			}
		}
	}) {
		fail(err)
	}
	fmt.Println("done")
}

// A run that is killed repeats at most the calls in flight.
func TestBlocking_Killed(t *testing.T) {
	dir := t.TempDir()
	kills, isDone := 0, false
	for !isDone {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "WEIR_ANSWERS_DIR="+dir)
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		require.NoError(t, cmd.Start())
		timer := time.AfterFunc(150*time.Millisecond+time.Duration(kills)*40*time.Millisecond, func() { _ = cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		isDone = err == nil
		if isDone {
			require.Contains(t, out.String(), "done")
			break
		}
		kills++
		require.Less(t, kills, 60, out.String())
	}
	paid, err := os.ReadFile(filepath.Join(dir, "paid"))
	require.NoError(t, err)
	n := strings.Count(string(paid), "\n")
	t.Logf("%d calls for 1,000 answers, %d kills", n, kills)
	require.GreaterOrEqual(t, n, 1000)
	require.LessOrEqual(t, n, 1000+8*kills, "each kill repeats at most the calls in flight")
}

// The table, with an answer (law W4).
func TestFormatOfTables(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	db := open(t, filepath.Join(t.TempDir(), "new.db"))
	c := sqliteanswers.New(db, "summaries").WithClock(mock)
	call := func(context.Context, int) (answer, error) { return answer{"yes"}, nil }
	_, err := results(t, 1, sqliteanswers.Blocking(c, strconv.Itoa, call))
	require.NoError(t, err)
	tables := golden.Database{DB: db.Writer(), Files: c.Migrations(), Tables: []string{"weir_cached_answers"}}
	script := golden.Written(t, "cached-answers-1.sql", tables.Script(t))

	old, err := sqlite.OpenDB(t.Context(), filepath.Join(t.TempDir(), "old.db"))
	require.NoError(t, err)
	defer old.Close()
	golden.Run(t.Context(), t, old.Writer(), script)
	c = sqliteanswers.New(old, "summaries")
	require.NoError(t, c.Migrate(t.Context()))
	texts, err := results(t, 1, sqliteanswers.Blocking(c, strconv.Itoa, func(context.Context, int) (answer, error) {
		return answer{}, errors.New("called again")
	}))
	require.NoError(t, err)
	require.Equal(t, []string{"yes"}, texts)
}
