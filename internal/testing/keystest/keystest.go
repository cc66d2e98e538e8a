//go:build unix

// Package keystest tests package exactlyonce/keys on a database, for modules of ext: the
// core has no driver.
package keystest

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"log/slog"
	"net/http"
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

// Setup creates databases for tests.
type Setup struct {
	Driver  driver.Driver
	Dialect keys.Dialect
	New     func(t *testing.T) (dsn string) // the DSN of an empty database
	Conns   int                             // maximum number of connections
}

// Run runs all tests except the kills of [RunKilled].
func Run(t *testing.T, p Setup) {
	for name, test := range map[string]func(*bench){
		"one run": (*bench).oneRun, "same key": (*bench).sameKey, "in progress": (*bench).inProgress, "takeover": (*bench).takeover,
		"two takers": (*bench).twoTakers, "renewed": (*bench).renewed, "failures": (*bench).failures, "refusals": (*bench).refusals, "changed handler": (*bench).changedHandler,
		"after finish": (*bench).afterFinish, "format": (*bench).format,
		"conflicts": (*bench).conflicts, "retries": (*bench).retries, "reap": (*bench).reap, "complete": (*bench).complete,
		"lost commit": (*bench).lostCommit, "lost commit, then hangs": (*bench).lostCommitThenHangs, "http": (*bench).http, "entity": (*bench).entity, "limits": (*bench).limits, "maintain": (*bench).maintain, "provider": (*bench).provider,
		"frozen holder": (*bench).frozenHolder, "gives up": (*bench).givesUp, "end": (*bench).end,
		"list": (*bench).list, "not migrated": (*bench).notMigrated, "time of a step": (*bench).timeOfAStep,
		"end while listing": (*bench).endWhileListing, "list many pages": (*bench).listManyPages,
		"refusals of others": (*bench).refusalsOfOthers, "own refusal, wrapped": (*bench).ownRefusalWrapped,
		"expired key": (*bench).expiredKey, "long key": (*bench).longKey,
	} {
		t.Run(name, func(t *testing.T) {
			mock := clock.NewMock()
			mock.Set(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
			b := &bench{T: t, setup: p, hooks: &Hooks{}, clock: mock}
			b.dsn = p.New(t)
			b.db = watch(p.Driver, b.dsn, b.hooks)
			b.db.SetMaxOpenConns(p.Conns)
			b.db.SetMaxIdleConns(p.Conns)
			t.Cleanup(func() { assert.NoError(t, b.db.Close()) })
			require.NoError(t, keys.New(b.db, p.Dialect, keys.Config{}).Migrate(t.Context()))
			require.NoError(t, keys.New(b.db, p.Dialect, keys.Config{}).Migrate(t.Context()))
			_, err := b.db.ExecContext(t.Context(), "CREATE TABLE effects (name TEXT NOT NULL)")
			require.NoError(t, err)
			b.keys = b.server()
			test(b)
		})
	}
}

// notMigrated checks that errors name the remedy for missing tables.
func (b *bench) notMigrated() {
	db := watch(b.setup.Driver, b.setup.New(b.T), &Hooks{})
	defer func() { assert.NoError(b, db.Close()) }()
	k := keys.New(db, b.setup.Dialect, keys.Config{Clock: b.clock})
	o := k.Operation("order", func(context.Context, *keys.Run) (exactlyonce.Response, error) {
		return exactlyonce.Response{Status: 200}, nil
	})
	for name, call := range map[string]func() error{
		"do":       func() error { _, err := o.Do(b.Context(), request("ann", "1")); return err },
		"complete": func() error { _, _, err := k.Complete(b.Context()); return err },
		"reap":     func() error { _, _, err := k.Reap(b.Context()); return err },
		"count":    func() error { _, err := k.Count(b.Context()); return err },
		"list": func() error {
			for _, err := range k.List(b.Context(), keys.Filter{}) {
				return err
			}
			return nil
		},
	} {
		assert.ErrorContains(b, call(), "call keys.Keys.Migrate", name)
	}
}

type bench struct {
	*testing.T
	setup Setup
	hooks *Hooks
	dsn   string
	db    *sql.DB
	clock *clock.Mock
	keys  *keys.Keys
}

func (b *bench) server() *keys.Keys {
	return keys.New(b.db, b.setup.Dialect, keys.Config{Clock: b.clock, Logger: slog.New(slog.DiscardHandler)})
}

func (b *bench) effects(name string) int {
	b.Helper()
	return count(b.T, b.db, "SELECT count(*) FROM effects WHERE name = $1", name)
}

func add(ctx context.Context, tx *sql.Tx, name string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO effects (name) VALUES ($1)", name)
	return err
}

// timeOfAStep checks that each step restarts the lock's timeout, so a step may take the
// full time.
func (b *bench) timeOfAStep() {
	o := b.keys.Operation("timed", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		b.clock.Add(time.Minute)
		err := run.Phase(ctx, "first", func(ctx context.Context, tx *sql.Tx) error { return add(ctx, tx, "first") })
		if err != nil {
			return exactlyonce.Response{}, err
		}
		_, err = keys.Call(ctx, run, "second", func(ctx context.Context, _ string) (int, error) {
			b.clock.Add(50 * time.Second) // 110 s after the request's arrival
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

// phases is an operation with two phases and a call, which tests make fail.
type phases struct {
	between func(ctx context.Context, run *keys.Run) error // called after the first phase; may be nil
	call    func(key string) error
	ran     [3]atomic.Int32
	keys    sync.Map
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

// A finished request returns the stored response, byte for byte, without a run.
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

// Users have separate keys. A key with different content is refused.
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

	// JSON is compared as JSON. A given fingerprint replaces the comparison.
	json := func(contentType, body string, fingerprint byte) error {
		req := request("a", "json")
		req.ContentType, req.Body = contentType, []byte(body)
		if fingerprint != 0 {
			req.Key, req.Fingerprint = "given", [32]byte{fingerprint}
		}
		_, err := o.Do(b.Context(), req)
		return err
	}
	require.NoError(b, json("application/json", `{"to":"harbour","seats":2}`, 0))
	assert.NoError(b, json("application/json; charset=utf-8", `{ "seats": 2, "to": "harbour" }`, 0))
	assert.ErrorIs(b, json("application/json", `{"to":"harbour","seats":3}`, 0), exactlyonce.ErrMismatch)
	require.NoError(b, json("text/plain", "one", 1))
	assert.NoError(b, json("text/html", "another", 1))
	assert.ErrorIs(b, json("text/plain", "one", 2), exactlyonce.ErrMismatch)
	assert.Equal(b, [3]int{4, 4, 4}, p.runs())

	// Earlier versions compared bytes.
	old := sha256.New()
	for _, part := range []string{"op", http.MethodPost, "/rides", "", "application/json"} {
		_, _ = old.Write(append(binary.AppendUvarint(nil, uint64(len(part))), part...))
	}
	const body = `{"to":"harbour","seats":2}`
	_, _ = old.Write([]byte(body))
	_, err = b.db.ExecContext(b.Context(), "UPDATE weir_keys SET fingerprint = $1 WHERE idempotency_key = 'json'", old.Sum(nil))
	require.NoError(b, err)
	assert.NoError(b, json("application/json", body, 0))
}

// While a run holds the lock, other runs are refused and the lock does not move.
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

// After the lock has expired, the next run continues at the recovery point, and the old
// run can no longer commit (fencing).
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
	assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
	assert.Equal(b, 1, b.effects("third"))
	p.between = nil
	_, err = o.Do(b.Context(), request("a", "k2"))
	require.NoError(b, err)
	assert.Equal(b, 2, b.effects("first"))
	assert.Equal(b, 2, b.effects("third"))

	// A slow run continues if no other run takes over.
	p.between = func(context.Context, *keys.Run) error { b.clock.Add(time.Hour); return nil }
	_, err = o.Do(b.Context(), request("a", "slow"))
	require.NoError(b, err)
	assert.Equal(b, 3, b.effects("third"))

	// The old run has lost its lock when it commits.
	p.between = func(ctx context.Context, run *keys.Run) error {
		p.between = nil
		_, err := b.db.ExecContext(ctx, "UPDATE weir_keys SET fence = fence + 1 WHERE idempotency_key = 'k3'")
		return err
	}
	_, err = o.Do(b.Context(), request("a", "k3"))
	assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
	assert.Equal(b, keys.Stats{New: 4, Resumed: 3, Stale: 2}, b.keys.Stats())
	assert.Equal(b, 3, b.effects("third"))
}

// A run that renews its lock just before another run takes it keeps the lock.
func (b *bench) renewed() {
	p := &phases{call: func(string) error { return errors.New("broken") }}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.Error(b, err)
	holder := watch(b.setup.Driver, b.dsn, &Hooks{})
	defer func() { assert.NoError(b, holder.Close()) }()
	const lock = "UPDATE weir_keys SET locked_at = $1"
	_, err = holder.ExecContext(b.Context(), lock, b.clock.Now().UnixMicro())
	require.NoError(b, err)
	b.clock.Add(91 * time.Second)
	step := 0
	b.hooks.Step = func() {
		if step++; step == 3 { // the taker has read the lock, and not taken it
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

// Of many runs that find an expired lock, one continues.
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

func (b *bench) limits() {
	p := &phases{}
	o := b.keys.Operation("op", p.handle)
	for field, change := range map[string]func(*keys.Request){
		"key":                func(r *keys.Request) { r.Key = strings.Repeat("k", 256) },
		"an idempotency key": func(r *keys.Request) { r.Key = "" },
		"method":             func(r *keys.Request) { r.Method = strings.Repeat("M", 11) },
		"path":               func(r *keys.Request) { r.Path = strings.Repeat("p", 101) },

		// Not valid as text in PostgreSQL.
		`user "\xff"`: func(r *keys.Request) { r.User = "\xff" }, `idempotency key "\x00"`: func(r *keys.Request) { r.Key = "\x00" },
		`path "/\x00"`: func(r *keys.Request) { r.Path = "/\x00" }, `query "q=\xc3("`: func(r *keys.Request) { r.Query = "q=\xc3\x28" },
		`content type "\xff"`: func(r *keys.Request) { r.ContentType = "\xff" },
	} {
		req := request("a", "k")
		change(&req)
		_, err := o.Do(b.Context(), req)
		assert.ErrorIs(b, err, exactlyonce.ErrInvalid)
		assert.ErrorContains(b, err, field)
	}
	assert.Zero(b, count(b.T, b.db, "SELECT count(*) FROM weir_keys"))
	_, err := o.Do(b.Context(), keys.Request{Key: "k"})
	require.NoError(b, err)
}
