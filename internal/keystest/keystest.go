//go:build unix

// Package keystest tests package exactlyonce/keys on a database. The core has no driver: the modules of ext run it.
package keystest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
)

// Place makes databases.
type Place struct {
	Driver  driver.Driver
	Dialect keys.Dialect
	New     func(t *testing.T) (dsn string) // of an empty database
	Conns   int                             // at most
}

// Run runs the tests, but for those of [RunKilled].
func Run(t *testing.T, p Place) {
	for name, test := range map[string]func(*bench){
		"one run": (*bench).oneRun, "same key": (*bench).sameKey, "in progress": (*bench).inProgress, "takeover": (*bench).takeover,
		"two takers": (*bench).twoTakers, "renewed": (*bench).renewed, "failures": (*bench).failures, "refusals": (*bench).refusals, "changed handler": (*bench).changedHandler,
		"conflicts": (*bench).conflicts, "retries": (*bench).retries, "reap": (*bench).reap, "complete": (*bench).complete,
		"lost commit": (*bench).lostCommit, "http": (*bench).http, "entity": (*bench).entity, "limits": (*bench).limits, "maintain": (*bench).maintain, "provider": (*bench).provider,
		"list": (*bench).list, "time of a step": (*bench).timeOfAStep,
	} {
		t.Run(name, func(t *testing.T) {
			mock := clock.NewMock()
			mock.Set(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
			b := &bench{T: t, place: p, hooks: &Hooks{}, clock: mock}
			b.dsn = p.New(t)
			b.db = Watch(p.Driver, b.dsn, b.hooks)
			b.db.SetMaxOpenConns(p.Conns)
			b.db.SetMaxIdleConns(p.Conns)
			t.Cleanup(func() { assert.NoError(t, b.db.Close()) })
			require.NoError(t, keys.Migrate(t.Context(), b.db, p.Dialect))
			require.NoError(t, keys.Migrate(t.Context(), b.db, p.Dialect))
			_, err := b.db.ExecContext(t.Context(), "CREATE TABLE effects (name TEXT NOT NULL)")
			require.NoError(t, err)
			b.keys = b.server()
			test(b)
		})
	}
}

type bench struct {
	*testing.T
	place Place
	hooks *Hooks
	dsn   string
	db    *sql.DB
	clock *clock.Mock
	keys  *keys.Keys
}

// server returns the keys of another server.
func (b *bench) server() *keys.Keys {
	return keys.New(b.db, b.place.Dialect, keys.Config{Clock: b.clock, Logger: slog.New(slog.DiscardHandler)})
}

func (b *bench) effects(name string) int {
	b.Helper()
	return count(b.T, b.db, "SELECT count(*) FROM effects WHERE name = $1", name)
}

func add(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects (name) VALUES ($1)", name)
	return err
}

// timeOfAStep checks that the lock begins anew with each step: a step may take the whole time.
func (b *bench) timeOfAStep() {
	o := b.keys.Operation("timed", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		b.clock.Add(time.Minute)
		err := run.Phase(ctx, "first", func(ctx context.Context, tx *sql.Tx) error { return add(ctx, tx, "first") })
		if err != nil {
			return exactlyonce.Response{}, err
		}
		_, err = keys.Call(ctx, run, "second", func(ctx context.Context, _ string) (int, error) {
			b.clock.Add(50 * time.Second) // 110 s after the request came
			return 1, ctx.Err()
		})
		if err != nil {
			return exactlyonce.Response{}, err
		}
		return keys.JSON(http.StatusOK, "done")
	})
	_, err := o.Do(b.Context(), keys.Request{User: "u", Key: "timed", Method: "POST", Path: "/"})
	require.NoError(b.T, err)
	require.Equal(b.T, 1, b.effects("first"))
}

// phases is an operation with two phases and a call, which tests break.
type phases struct {
	between func(ctx context.Context, run *keys.Run) error // after the first phase; nil: nothing
	call    func(key string) error
	ran     [3]atomic.Int32
	keys    sync.Map // the keys of calls
}

func (p *phases) handle(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
	first, err := keys.Phase(ctx, run, "first", func(ctx context.Context, tx *sql.Tx) (string, error) {
		p.ran[0].Add(1)
		return "result of " + run.User, add(ctx, tx, "first")
	})
	if err != nil {
		return exactlyonce.Response{}, err
	}
	if p.between != nil {
		if err := p.between(ctx, run); err != nil {
			return exactlyonce.Response{}, err
		}
	}
	second, err := keys.Call(ctx, run, "second", func(_ context.Context, key string) (int, error) {
		p.ran[1].Add(1)
		p.keys.Store(key, true)
		if p.call != nil {
			return 0, p.call(key)
		}
		return 7, nil
	})
	if err != nil {
		return exactlyonce.Response{Status: http.StatusServiceUnavailable}, err
	}
	return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
		p.ran[2].Add(1)
		if err := add(ctx, tx, "third"); err != nil {
			return exactlyonce.Response{}, err
		}
		return keys.JSON(http.StatusCreated, []any{first, second})
	})
}

func (p *phases) runs() [3]int {
	return [3]int{int(p.ran[0].Load()), int(p.ran[1].Load()), int(p.ran[2].Load())}
}

func (p *phases) callKeys() (n int) {
	p.keys.Range(func(any, any) bool { n++; return true })
	return n
}

// Q12, Q18: what is finished is given again, byte for byte, and nothing runs.
func (b *bench) oneRun() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	response, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, http.StatusCreated, response.Status)
	assert.Equal(b, "[\"result of a\",7]\n", string(response.Body))
	for range 3 {
		again, err := o.Do(b.Context(), request("a", "k"))
		require.NoError(b, err)
		assert.Equal(b, response, again)
		b.clock.Add(time.Hour)
	}
	assert.Equal(b, [3]int{1, 1, 1}, p.runs())
	assert.Equal(b, 1, b.effects("first"))
	assert.Equal(b, 1, b.effects("third"))
}

// Q12, Q15, Q20: users have keys of their own; other content is refused.
func (b *bench) sameKey() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	other := b.keys.Operation("other", p.handle)
	for _, user := range []string{"a", "b"} {
		_, err := o.Do(b.Context(), request(user, "k"))
		require.NoError(b, err)
	}
	assert.Equal(b, 2, p.callKeys(), "the keys of calls differ")
	for _, change := range []func(*keys.Request){
		func(r *keys.Request) { r.Body = []byte("other") },
		func(r *keys.Request) { r.Path = "/other" },
		func(r *keys.Request) { r.Query = "x=1" },
		func(r *keys.Request) { r.Method = http.MethodPut },
		func(r *keys.Request) { r.ContentType = "text/plain" },
	} {
		req := request("a", "k")
		change(&req)
		_, err := o.Do(b.Context(), req)
		assert.ErrorIs(b, err, exactlyonce.ErrMismatch)
	}
	_, err := other.Do(b.Context(), request("a", "k"))
	assert.ErrorIs(b, err, exactlyonce.ErrMismatch)
	assert.Equal(b, [3]int{2, 2, 2}, p.runs())
}

// Q16: while a run has the lock, nothing else runs and the lock does not move.
func (b *bench) inProgress() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	p.between = func(ctx context.Context, _ *keys.Run) error {
		lockedAt := count(b.T, b.db, "SELECT locked_at FROM weir_keys")
		b.clock.Add(89 * time.Second)
		_, err := o.Do(b.Context(), request("a", "k"))
		assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
		assert.Equal(b, lockedAt, count(b.T, b.db, "SELECT locked_at FROM weir_keys"))
		_, failed, err := b.keys.Complete(b.Context())
		assert.NoError(b, err)
		assert.Zero(b, failed)
		return nil
	}
	_, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, [3]int{1, 1, 1}, p.runs())
}

// Q17: when the lock has expired the next run goes on at the recovery point, and the old one commits nothing (fencing).
func (b *bench) takeover() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	var second exactlyonce.Response
	createdAt := 0
	p.between = func(ctx context.Context, _ *keys.Run) (err error) {
		p.between = nil
		createdAt = count(b.T, b.db, "SELECT created_at FROM weir_keys")
		b.clock.Add(91 * time.Second)
		second, err = o.Do(b.Context(), request("a", "k"))
		assert.NoError(b, err)
		return nil
	}
	first, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err, "the other run's response is the response")
	assert.Equal(b, second, first)
	assert.Equal(b, 1, b.effects("first"))
	assert.Equal(b, 1, b.effects("third"))
	assert.Equal(b, 1, p.callKeys(), "both runs use one key")
	assert.Equal(b, createdAt, count(b.T, b.db, "SELECT created_at FROM weir_keys"))
	assert.Equal(b, createdAt+91_000_000, count(b.T, b.db, "SELECT last_run_at FROM weir_keys"))

	// The other run has not finished either.
	errHeld := errors.New("held")
	p.between = func(ctx context.Context, _ *keys.Run) error {
		p.between = func(context.Context, *keys.Run) error { return errHeld }
		b.clock.Add(91 * time.Second)
		_, err := o.Do(b.Context(), request("a", "k2"))
		assert.ErrorIs(b, err, errHeld)
		p.call = func(string) error { return nil }
		return nil
	}
	_, err = o.Do(b.Context(), request("a", "k2"))
	assert.ErrorIs(b, err, keys.ErrLockLost)
	assert.Equal(b, 1, b.effects("third"))
	p.between = nil
	_, err = o.Do(b.Context(), request("a", "k2"))
	require.NoError(b, err)
	assert.Equal(b, 2, b.effects("first"))
	assert.Equal(b, 2, b.effects("third"))

	// A run that is slow while no other takes over goes on.
	p.between = func(context.Context, *keys.Run) error { b.clock.Add(time.Hour); return nil }
	_, err = o.Do(b.Context(), request("a", "slow"))
	require.NoError(b, err)
	assert.Equal(b, 3, b.effects("third"))

	// The old run's lock is not its own any more when it commits late: ErrLockLost.
	p.between = func(ctx context.Context, run *keys.Run) error {
		p.between = nil
		_, err := b.db.ExecContext(ctx, "UPDATE weir_keys SET fence = fence + 1 WHERE idempotency_key = 'k3'")
		return err
	}
	_, err = o.Do(b.Context(), request("a", "k3"))
	assert.ErrorIs(b, err, keys.ErrLockLost)
	assert.Equal(b, 3, b.effects("third"))
}

// A run that renews its lock just before another one takes it keeps it.
func (b *bench) renewed() {
	p := &phases{call: func(string) error { return errors.New("broken") }}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.Error(b, err)
	holder := Watch(b.place.Driver, b.dsn, &Hooks{})
	defer func() { assert.NoError(b, holder.Close()) }()
	const lock = "UPDATE weir_keys SET locked_at = $1"
	_, err = holder.ExecContext(b.Context(), lock, b.clock.Now().UnixMicro())
	require.NoError(b, err)
	b.clock.Add(91 * time.Second)
	step := 0
	b.hooks.Step = func() {
		if step++; step == 3 { // after the taker has read, before it takes
			_, err := holder.ExecContext(b.Context(), lock, b.clock.Now().UnixMicro())
			assert.NoError(b, err)
		}
	}
	_, err = o.Do(b.Context(), request("a", "k"))
	b.hooks.Step = func() {}
	assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
	assert.Equal(b, 1, p.callKeys())
	assert.Equal(b, [3]int{1, 1, 0}, p.runs())
}

// Q18: of many that find an expired lock one runs.
func (b *bench) twoTakers() {
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	var at atomic.Int32
	release := make(chan struct{})
	p.call = func(string) error {
		at.Add(1)
		<-release
		return nil
	}
	const n = 8
	var wg sync.WaitGroup
	var refused, done atomic.Int32
	for range n {
		wg.Go(func() {
			switch _, err := o.Do(b.Context(), request("a", "k")); {
			case err == nil:
				done.Add(1)
			case errors.Is(err, exactlyonce.ErrInProgress):
				if refused.Add(1) == n-1 {
					close(release)
				}
			default:
				assert.NoError(b, err)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(b, 1, at.Load())
	assert.EqualValues(b, 1, done.Load())
	assert.EqualValues(b, 1, b.effects("third"))
}

// Q23: an error or panic unlocks and keeps the recovery point; nothing of the phase stays.
func (b *bench) failures() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	broken := errors.New("broken")
	mode := 0
	failing := b.keys.Operation("failing", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		err := run.Phase(ctx, "one", func(ctx context.Context, tx *sql.Tx) error { return add(ctx, tx, "one") })
		if err != nil {
			return exactlyonce.Response{}, err
		}
		return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
			if err := add(ctx, tx, "two"); err != nil {
				return exactlyonce.Response{}, err
			}
			switch mode {
			case 0:
				return exactlyonce.Response{}, broken
			case 1:
				panic("boom")
			case 2:
				return exactlyonce.Response{}, nil // no status
			}
			return keys.JSON(http.StatusOK, mode)
		})
	})
	do := func() error {
		_, err := failing.Do(b.Context(), request("a", "k"))
		return err
	}
	assert.ErrorIs(b, do(), broken)
	mode++
	assert.PanicsWithValue(b, "boom", func() { _ = do() })
	mode++
	assert.ErrorContains(b, do(), "status 0")
	assert.Equal(b, 0, b.effects("two"))
	mode++
	assert.NoError(b, do())
	assert.Equal(b, 1, b.effects("one"))
	assert.Equal(b, 1, b.effects("two"))

	// A context that ends is an error like any other, and the key is unlocked all the same.
	ctx, cancel := context.WithCancel(b.Context())
	p.between = func(context.Context, *keys.Run) error { cancel(); return nil }
	_, err := o.Do(ctx, request("a", "ended"))
	assert.ErrorIs(b, err, context.Canceled)
	p.between = nil
	_, err = o.Do(b.Context(), request("a", "ended"))
	require.NoError(b, err)
	assert.EqualValues(b, 1, p.ran[0].Load())
}

// Q21: a definite refusal is stored; a response with an error is sent and not stored.
func (b *bench) refusals() {
	declined, lost := errors.New("declined"), errors.New("lost")
	var outcome error
	var calls int
	o := b.keys.Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		_, err := keys.Call(ctx, run, "charge", func(context.Context, string) (int, error) {
			calls++
			return 1, outcome
		})
		switch {
		case errors.Is(err, declined):
			return keys.JSON(http.StatusPaymentRequired, "declined")
		case err != nil:
			return exactlyonce.Response{Status: http.StatusServiceUnavailable}, err
		}
		return keys.JSON(http.StatusOK, "charged")
	})
	outcome = lost
	for range 2 {
		response, err := o.Do(b.Context(), request("a", "k"))
		assert.ErrorIs(b, err, lost)
		assert.Equal(b, http.StatusServiceUnavailable, response.Status)
	}
	outcome = declined
	response, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, http.StatusPaymentRequired, response.Status)
	outcome = nil
	response, err = o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, http.StatusPaymentRequired, response.Status)
	assert.Equal(b, 3, calls)
}

// Q22: a handler whose steps are not those of the request is a bug that is reported; the key is unlocked, not finished.
func (b *bench) changedHandler() {
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	_, err := b.keys.Operation("op", p.handle).Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	for stored, handler := range map[string]keys.HandlerFunc{
		"renamed": func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
			return exactlyonce.Response{}, run.Phase(ctx, "renamed", func(context.Context, *sql.Tx) error { return nil })
		},
		"finished": func(context.Context, *keys.Run) (exactlyonce.Response, error) { return keys.JSON(http.StatusOK, 1) },
	} {
		_, err = b.server().Operation("op", handler).Do(b.Context(), request("a", "k"))
		bug, ok := errors.AsType[*keys.RecoveryPointError](err)
		require.True(b, ok, "%v", err)
		assert.Equal(b, "first", bug.Stored)
		assert.Equal(b, stored, bug.Asked)
	}
	p.call = nil
	_, err = b.server().Operation("op", p.handle).Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, [3]int{1, 2, 1}, p.runs())
	assert.Panics(b, func() { b.keys.Operation("op", p.handle) })
	assert.Panics(b, func() { b.keys.Operation("", p.handle) })
	for _, name := range []string{"", "started", "finished", strings.Repeat("x", 51)} {
		assert.Panics(b, func() {
			_, _ = b.server().Operation("bad", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
				return exactlyonce.Response{}, run.Phase(ctx, name, func(context.Context, *sql.Tx) error { return nil })
			}).Do(b.Context(), request("a", "bad "+name[:min(1, len(name))]))
		})
	}
}

// Q3, Q4: concurrent creates of one e-mail make one user and one audit row; serialization failures stay inside.
func (b *bench) conflicts() {
	_, err := b.db.ExecContext(b.Context(), "CREATE TABLE users (email TEXT NOT NULL)")
	require.NoError(b, err)
	o := keys.New(b.db, b.place.Dialect, keys.Config{}).Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM users WHERE email = 'jane@example.com'").Scan(&n); err != nil {
				return exactlyonce.Response{}, err
			}
			if n > 0 {
				return keys.JSON(http.StatusOK, "exists")
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO users (email) VALUES ('jane@example.com')"); err != nil {
				return exactlyonce.Response{}, err
			}
			return exactlyonce.Response{Status: http.StatusCreated}, add(ctx, tx, "audit")
		})
	})
	var wg sync.WaitGroup
	var created atomic.Int32
	for i := range 8 {
		wg.Go(func() {
			response, err := o.Do(b.Context(), request("a", strconv.Itoa(i)))
			if assert.NoError(b, err) && response.Status == http.StatusCreated {
				created.Add(1)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(b, 1, created.Load())
	assert.Equal(b, 1, count(b.T, b.db, "SELECT count(*) FROM users"))
	assert.Equal(b, 1, b.effects("audit"))
}

// serialization is the error of a transaction that may be tried again.
type serialization struct{}

func (serialization) Error() string    { return "serialization failure" }
func (serialization) SQLState() string { return "40001" }

// A phase is tried again a bounded number of times; what it did before is rolled back.
func (b *bench) retries() {
	tries, last := 0, 3
	o := keys.New(b.db, b.place.Dialect, keys.Config{}).Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		err := run.Phase(ctx, "one", func(ctx context.Context, tx *sql.Tx) error {
			if err := add(ctx, tx, "one"); err != nil {
				return err
			}
			if tries++; tries < last {
				return serialization{}
			}
			return nil
		})
		if err != nil {
			return exactlyonce.Response{}, err
		}
		return keys.JSON(http.StatusOK, tries)
	})
	_, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, 3, tries)
	assert.Equal(b, 1, b.effects("one"))
	tries, last = 0, 1000
	_, err = o.Do(b.Context(), request("a", "k2"))
	assert.ErrorIs(b, err, keys.ErrConflict)
	assert.Equal(b, 10, tries)
	assert.Equal(b, 1, b.effects("one"))
	last = 0
	_, err = o.Do(b.Context(), request("a", "k2"))
	require.NoError(b, err)
}

// Q24: finished requests go after their retention, and only those.
func (b *bench) reap() {
	broken := errors.New("broken")
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "done"))
	require.NoError(b, err)
	p.call = func(string) error { return broken }
	_, err = o.Do(b.Context(), request("a", "unfinished"))
	require.ErrorIs(b, err, broken)
	expect := func(removed, unfinished int) {
		b.Helper()
		gotRemoved, gotUnfinished, err := b.keys.Reap(b.Context())
		require.NoError(b, err)
		assert.Equal(b, removed, gotRemoved)
		assert.Equal(b, unfinished, gotUnfinished)
	}
	b.clock.Add(24*time.Hour - time.Second)
	expect(0, 0)
	p.call = nil
	_, err = o.Do(b.Context(), request("a", "young"))
	require.NoError(b, err)
	b.clock.Add(time.Second)
	expect(1, 1)
	expect(0, 1)
	assert.Equal(b, 3, count(b.T, b.db, "SELECT count(*) FROM weir_key_steps"), "the steps of the removed one are gone")
	other := request("a", "done")
	other.Body = []byte("the key is that of a new request")
	_, err = o.Do(b.Context(), other)
	require.NoError(b, err)
	_, err = o.Do(b.Context(), request("a", "unfinished"))
	require.NoError(b, err)
	assert.Equal(b, [3]int{4, 5, 4}, p.runs())
	expect(1, 0)
}

func (b *bench) list() {
	broken := errors.New("broken")
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	began := b.clock.Now().UTC()
	_, err := o.Do(b.Context(), request("a", "done"))
	require.NoError(b, err)
	b.clock.Add(time.Minute)
	p.call = func(string) error { return broken }
	_, err = o.Do(b.Context(), request("b", "unfinished"))
	require.ErrorIs(b, err, broken)
	expect := func(f keys.Filter, want ...string) (last keys.Info) {
		b.Helper()
		var got []string
		for i, err := range keys.List(b.Context(), b.db, f) {
			require.NoError(b, err)
			got, last = append(got, i.Key), i
		}
		assert.Equal(b, want, got)
		return last
	}
	i := expect(keys.Filter{}, "unfinished")
	assert.NotEmpty(b, i.ID)
	assert.Equal(b, keys.Info{
		ID: i.ID, User: "b", Key: "unfinished", Operation: "op", Point: "first", Runs: 1,
		Created: began.Add(time.Minute), LastRun: began.Add(time.Minute), Expires: began.Add(24*time.Hour + time.Minute),
	}, i)
	expect(keys.Filter{Finished: true}, "done", "unfinished")
	i = expect(keys.Filter{Finished: true, User: "a"}, "done")
	assert.True(b, i.Finished)
	expect(keys.Filter{Key: "unfinished", User: "b", Operation: "op"}, "unfinished")
	expect(keys.Filter{Finished: true, User: "a", Key: "unfinished"})
	expect(keys.Filter{Operation: "another"})
	for _, err := range keys.List(b.Context(), b.db, keys.Filter{Finished: true}) {
		require.NoError(b, err)
		break
	}
	ctx, cancel := context.WithCancel(b.Context())
	cancel()
	for _, err := range keys.List(ctx, b.db, keys.Filter{}) {
		assert.ErrorIs(b, err, context.Canceled)
	}
}

// A request that no client repeats is completed, once.
func (b *bench) complete() {
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	_, err = b.keys.Operation("unknown elsewhere", p.handle).Do(b.Context(), request("a", "unknown"))
	require.ErrorIs(b, err, broken)
	expect := func(k *keys.Keys, completed, failed int) {
		b.Helper()
		gotCompleted, gotFailed, err := k.Complete(b.Context())
		require.NoError(b, err)
		assert.Equal(b, completed, gotCompleted)
		assert.Equal(b, failed, gotFailed)
	}
	b.clock.Add(5*time.Minute - time.Second)
	expect(b.keys, 0, 0)
	b.clock.Add(time.Second)
	expect(b.keys, 0, 2) // still broken
	expect(b.keys, 0, 0) // they rest again
	b.clock.Add(5 * time.Minute)
	p.call = func(string) error { panic("boom") }
	expect(b.keys, 0, 2)
	b.clock.Add(5 * time.Minute)
	p.call = nil
	other := b.server()
	other.Operation("op", p.handle)
	var wg sync.WaitGroup
	var completed, failed atomic.Int32
	for range 3 {
		wg.Go(func() {
			c, f, err := other.Complete(b.Context())
			assert.NoError(b, err)
			completed.Add(int32(c))
			failed.Add(int32(f))
		})
	}
	wg.Wait()
	assert.EqualValues(b, 1, completed.Load())
	assert.EqualValues(b, 3, failed.Load(), "an operation that is not there is reported")
	assert.Equal(b, 1, b.effects("third"))
	response, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, http.StatusCreated, response.Status)
	expect(b.keys, 1, 0)
	assert.Equal(b, 2, p.callKeys())
}

// A lost answer to COMMIT is resolved by reading what is stored.
func (b *bench) lostCommit() {
	lost := errors.New("lost")
	for _, point := range []int{1, 2, 3} {
		for _, before := range []bool{false, true} {
			p := &phases{}
			o := b.server().Operation("op", p.handle)
			req := request("a", strconv.Itoa(point)+strconv.FormatBool(before))
			commits := 0
			b.hooks.Commit = func(commit, rollback func() error) error {
				if commits++; commits != point {
					return commit()
				}
				if before {
					return errors.Join(rollback(), lost) // as the server does when the connection breaks
				}
				return errors.Join(commit(), lost)
			}
			_, err := o.Do(b.Context(), req)
			b.hooks.Commit = nil
			if before {
				assert.ErrorIs(b, err, lost)
			} else {
				require.NoError(b, err)
				assert.Equal(b, [3]int{1, 1, 1}, p.runs())
			}
			response, err := o.Do(b.Context(), req)
			require.NoError(b, err)
			assert.Equal(b, http.StatusCreated, response.Status)
		}
	}
	assert.Equal(b, 6, b.effects("first"))
	assert.Equal(b, 6, b.effects("third"))
}

func post(url, key, body string) (*http.Response, string, error) {
	req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	if key != "" {
		req.Header.Set(keys.Header, key)
	}
	req.Header.Set("User", "a")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), errors.Join(err, resp.Body.Close())
}

// The middleware: Q13, Q15, Q16, Q18, Q21, Q23 as a client sees them.
func (b *bench) http() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	config := keys.HandlerConfig{
		User:    func(req *http.Request) (string, bool) { return req.Header.Get("User"), req.Header.Get("User") != "" },
		MaxBody: 50,
	}
	server := httptest.NewServer(o.Handler(config))
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	expect := func(url, key, body string, status int, result string) string {
		b.Helper()
		resp, text, err := post(url, key, body)
		require.NoError(b, err)
		assert.Equal(b, status, resp.StatusCode, text)
		assert.Equal(b, result, resp.Header.Get("Exactly-Once-Result"))
		if status == http.StatusConflict && result == "in-progress" {
			assert.Equal(b, "1", resp.Header.Get("Retry-After"))
		}
		return text
	}
	first := expect(server.URL, "k", "body", http.StatusCreated, "")
	assert.Equal(b, first, expect(server.URL, "k", "body", http.StatusCreated, "replayed"))
	assert.Equal(b, first, expect(server.URL, `"k"`, "body", http.StatusCreated, "replayed"))
	assert.Contains(b, expect(server.URL, "k", "other", http.StatusConflict, "mismatch"), "urn:weir:exactly-once:mismatch")
	expect(server.URL, "", "body", http.StatusBadRequest, "invalid")
	expect(server.URL, `"k`, "body", http.StatusBadRequest, "invalid")
	expect(server.URL, "a b", "body", http.StatusBadRequest, "invalid")
	expect(server.URL, strings.Repeat("k", 101), "body", http.StatusBadRequest, "invalid")
	expect(server.URL+"/"+strings.Repeat("p", 100), "k2", "body", http.StatusBadRequest, "invalid")
	expect(server.URL, "k3", strings.Repeat("b", 51), http.StatusRequestEntityTooLarge, "")
	expect(server.URL, strings.Repeat("k", 100), "body", http.StatusCreated, "")

	p.call = func(string) error { return errors.New("lost") }
	expect(server.URL, "k4", "body", http.StatusServiceUnavailable, "")
	p.between = func(context.Context, *keys.Run) error { return errors.New("secret") }
	assert.NotContains(b, expect(server.URL, "k5", "body", http.StatusInternalServerError, ""), "secret")
	p.between = func(context.Context, *keys.Run) error {
		expect(server.URL, "k6", "body", http.StatusConflict, "in-progress")
		return nil
	}
	p.call = nil
	expect(server.URL, "k6", "body", http.StatusCreated, "")

	// A client that goes away does not end the run.
	gone, cancel := context.WithCancel(b.Context())
	p.between = func(context.Context, *keys.Run) error { cancel(); return nil }
	req := httptest.NewRequestWithContext(gone, http.MethodPost, "/", strings.NewReader("body"))
	req.Header.Set(keys.Header, "k7")
	req.Header.Set("User", "a")
	recorder := httptest.NewRecorder()
	o.Handler(config).ServeHTTP(recorder, req)
	assert.Equal(b, http.StatusCreated, recorder.Code)

	req.Header.Del("User")
	recorder = httptest.NewRecorder()
	o.Handler(config).ServeHTTP(recorder, req)
	assert.Equal(b, http.StatusForbidden, recorder.Code)

	config.MismatchStatus = http.StatusUnprocessableEntity
	other := httptest.NewServer(o.Handler(config))
	defer other.Close()
	expect(other.URL, "k", "other", http.StatusUnprocessableEntity, "mismatch")
	config.MismatchStatus = http.StatusTeapot
	assert.Panics(b, func() { o.Handler(config) })
}

// Q14: two refunds of one payment are one request; payments with keys of their own are two.
func (b *bench) entity() {
	p := &phases{}
	refund := b.keys.Operation("refund", p.handle).Handler(keys.HandlerConfig{Key: func(_ *http.Request, body []byte) (string, error) {
		if len(body) == 0 {
			return "", errors.New("no payment")
		}
		return "payment-" + string(body) + "-refund", nil
	}})
	server := httptest.NewServer(refund)
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	for i, payment := range []string{"1234", "1234", "1235"} {
		resp, _, err := post(server.URL, "random "+strconv.Itoa(i), payment)
		require.NoError(b, err)
		assert.Equal(b, http.StatusCreated, resp.StatusCode)
	}
	assert.Equal(b, [3]int{2, 2, 2}, p.runs())
	resp, _, err := post(server.URL, "k", "")
	require.NoError(b, err)
	assert.Equal(b, http.StatusBadRequest, resp.StatusCode)
}

func (b *bench) limits() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	for field, change := range map[string]func(*keys.Request){
		"key":    func(r *keys.Request) { r.Key = strings.Repeat("k", 101) },
		"no ide": func(r *keys.Request) { r.Key = "" },
		"method": func(r *keys.Request) { r.Method = strings.Repeat("M", 11) },
		"path":   func(r *keys.Request) { r.Path = strings.Repeat("p", 101) },
	} {
		req := request("a", "k")
		change(&req)
		_, err := o.Do(b.Context(), req)
		assert.ErrorIs(b, err, keys.ErrInvalid)
		assert.ErrorContains(b, err, field)
	}
	assert.Zero(b, count(b.T, b.db, "SELECT count(*) FROM weir_keys"))
	_, err := o.Do(b.Context(), keys.Request{Key: "k"}) // a request without content
	require.NoError(b, err)
}

// Maintain completes and reaps until its context ends.
func (b *bench) maintain() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	b.clock.Add(25 * time.Hour)
	ctx, cancel := context.WithCancelCause(b.Context())
	stop := errors.New("stop")
	result := make(chan error)
	go func() { result <- b.keys.Maintain(ctx, time.Hour) }()
	none := func() bool { return count(b.T, b.db, "SELECT count(*) FROM weir_keys") == 0 }
	require.Eventually(b, none, time.Minute, time.Millisecond)
	_, err = o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	require.Eventually(b, func() bool {
		b.clock.Add(time.Hour)
		return none()
	}, time.Minute, time.Millisecond)
	cancel(stop)
	assert.ErrorIs(b, <-result, stop)
}

// Q27, Q28: the provider is stored before it is called, later calls go to it, and another one is asked after a definite
// refusal only.
func (b *bench) provider() {
	lost := errors.New("no answer")
	var outcome map[string]error // of each provider
	var calls []string           // the provider and its key
	charges := map[string]bool{}
	favourite := "A"
	handle := func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		charge, err := keys.CallProvider(ctx, run, "charge", func(refused []keys.Refusal) (string, bool) {
			for _, provider := range []string{favourite, "A", "B"} {
				if !strings.Contains(fmt.Sprint(refused), provider+" ") {
					return provider, true
				}
			}
			return "", false
		}, func(_ context.Context, provider, key string) (string, error) {
			calls = append(calls, provider+" "+key)
			assert.Equal(b, 1, count(b.T, b.db, "SELECT count(*) FROM weir_keys WHERE id = $1 AND recovery_point LIKE 'charge-provider-%'", run.ID()),
				"the provider is not stored before the call")
			if err := outcome[provider]; err != nil {
				if errors.Is(err, lost) {
					charges[provider+" "+key] = true
				}
				return "", err
			}
			charges[provider+" "+key] = true
			return "charge of " + provider, nil
		})
		switch {
		case errors.Is(err, keys.ErrRefused):
			return keys.JSON(http.StatusPaymentRequired, err.Error())
		case err != nil:
			return exactlyonce.Response{Status: http.StatusServiceUnavailable}, err
		}
		return keys.JSON(http.StatusOK, charge)
	}
	do := func(key string) (string, error) {
		response, err := b.server().Operation("op", handle).Do(b.Context(), request("a", key)) // another worker each time
		return strings.TrimSpace(string(response.Body)), err
	}

	// A charges, its answer is lost, and everybody prefers B from now on.
	outcome = map[string]error{"A": lost}
	_, err := do("k")
	require.ErrorIs(b, err, lost)
	favourite = "B"
	_, err = do("k")
	require.ErrorIs(b, err, lost)
	outcome = nil
	answer, err := do("k")
	require.NoError(b, err)
	assert.Equal(b, `"charge of A"`, answer)
	assert.Len(b, charges, 1)
	require.Len(b, calls, 3)
	assert.Equal(b, calls[0], calls[1])
	assert.Equal(b, calls[0], calls[2])

	// B refuses: then A is asked, with a key of its own, and its answer may be lost, too.
	clear(charges)
	calls = nil
	outcome = map[string]error{"B": fmt.Errorf("%w: declined", keys.ErrRefused), "A": lost}
	_, err = do("k2")
	require.ErrorIs(b, err, lost)
	outcome = nil // B would take it now
	answer, err = do("k2")
	require.NoError(b, err)
	assert.Equal(b, `"charge of A"`, answer)
	assert.Len(b, charges, 1)
	require.Len(b, calls, 3)
	assert.Equal(b, calls[1], calls[2])
	assert.NotEqual(b, strings.TrimPrefix(calls[0], "B "), strings.TrimPrefix(calls[1], "A "))

	// All refuse: definite.
	clear(charges)
	refusal := fmt.Errorf("%w: declined", keys.ErrRefused)
	outcome = map[string]error{"A": refusal, "B": refusal}
	answer, err = do("k3")
	require.NoError(b, err)
	assert.Contains(b, answer, "refused by 2 providers: B: keys: refused: declined; A: keys: refused: declined")
	outcome = nil
	again, err := do("k3")
	require.NoError(b, err)
	assert.Equal(b, answer, again)
	assert.Empty(b, charges)
}
