//go:build unix

package keystest

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
)

// An error or panic unlocks the request, keeps the recovery point, and rolls the phase
// back.
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
				return exactlyonce.Response{}, nil // without a status
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

	// The end of a context is an error like any other.
	ctx, cancel := context.WithCancel(b.Context())
	p.between = func(context.Context, *keys.Run) error { cancel(); return nil }
	_, err := o.Do(ctx, request("a", "ended"))
	assert.ErrorIs(b, err, context.Canceled)
	p.between = nil
	_, err = o.Do(b.Context(), request("a", "ended"))
	require.NoError(b, err)
	assert.EqualValues(b, 1, p.ran[0].Load())
}

// A definite refusal is stored. A response with an error is sent but not stored.
func (b *bench) refusals() {
	declined, lost := errors.New("declined"), errors.New("lost")
	var failure error
	var calls int
	o := b.keys.Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		_, err := keys.Call(ctx, run, "charge", func(context.Context, string) (int, error) {
			calls++
			return 1, failure
		})
		switch {
		case errors.Is(err, declined):
			return keys.JSON(http.StatusPaymentRequired, "declined")
		case err != nil:
			return exactlyonce.Response{Status: http.StatusServiceUnavailable}, err
		}
		return keys.JSON(http.StatusOK, "charged")
	})
	failure = lost
	for range 2 {
		response, err := o.Do(b.Context(), request("a", "k"))
		assert.ErrorIs(b, err, lost)
		assert.Equal(b, http.StatusServiceUnavailable, response.Status)
	}
	failure = declined
	response, err := o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, http.StatusPaymentRequired, response.Status)
	failure = nil
	response, err = o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
	assert.Equal(b, http.StatusPaymentRequired, response.Status)
	assert.Equal(b, 3, calls)
}

// A handler whose steps differ from the request's steps is reported as a bug. The key is
// unlocked, and the request stays unfinished.
func (b *bench) changedHandler() {
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	_, err := b.keys.Operation("op", p.handle).Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	for asked, handler := range map[string]func(context.Context, *keys.Run) (exactlyonce.Response, error){
		"renamed": func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
			return exactlyonce.Response{}, run.Phase(ctx, "renamed", func(context.Context, *sql.Tx) error { return nil })
		},
		"finished": func(context.Context, *keys.Run) (exactlyonce.Response, error) { return keys.JSON(http.StatusOK, 1) },
	} {
		_, err = b.server().Operation("op", handler).Do(b.Context(), request("a", "k"))
		require.ErrorContains(b, err, `has done "first" as its step 1, the handler asks for "`+asked+`"`)
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
	b.sameName()
}

// sameName checks that a handler cannot use a step name twice. Two calls would have the
// same key, and the other service would take them for one call.
func (b *bench) sameName() {
	var asked []string
	lost := errors.New("lost")
	pay := func(ctx context.Context, run *keys.Run) error {
		_, err := keys.Call(ctx, run, "pay", func(_ context.Context, key string) (int, error) {
			asked = append(asked, key)
			if len(asked) == 1 {
				return 0, lost
			}
			return 1, nil
		})
		return err
	}
	o := b.server().Operation("twice", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		assert.ErrorIs(b, pay(ctx, run), lost)
		require.NoError(b, pay(ctx, run), "a call that has failed may be made again")
		return exactlyonce.Response{}, pay(ctx, run)
	})
	assert.PanicsWithValue(b, `keys: there are two steps "pay"`, func() { _, _ = o.Do(b.Context(), request("a", "twice")) })
	assert.Len(b, asked, 2)
}

// A finished request takes no further steps and keeps its response.
func (b *bench) afterFinish() {
	ran := 0
	o := b.keys.Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		finish := func() error {
			_, err := run.Finish(ctx, func(context.Context, *sql.Tx) (exactlyonce.Response, error) {
				ran++
				return keys.JSON(http.StatusCreated, ran)
			})
			return err
		}
		require.NoError(b, finish())
		for asked, step := range map[string]func() error{
			"phase": func() error {
				return run.Phase(ctx, "phase", func(context.Context, *sql.Tx) error { ran++; return nil })
			},
			"call": func() error {
				_, err := keys.Call(ctx, run, "call", func(context.Context, string) (int, error) { ran++; return 0, nil })
				return err
			},
			"finished": finish,
		} {
			err := step()
			require.ErrorContains(b, err, `has done "finished" as its step`)
			require.ErrorContains(b, err, `the handler asks for "`+asked+`"`)
		}
		return exactlyonce.Response{Status: http.StatusTeapot}, errors.New("this changes nothing")
	})
	for range 2 {
		response, err := o.Do(b.Context(), request("a", "k"))
		require.NoError(b, err)
		assert.Equal(b, http.StatusCreated, response.Status)
		assert.Equal(b, "1\n", string(response.Body))
	}
	assert.Equal(b, 1, ran)
}

// Concurrent requests to create a user with the same e-mail create one user and one audit
// row. Serialization failures are handled internally.
func (b *bench) conflicts() {
	_, err := b.db.ExecContext(b.Context(), "CREATE TABLE users (email TEXT NOT NULL)")
	require.NoError(b, err)
	o := keys.New(b.db, b.setup.Dialect, keys.Config{}).Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
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

type serialization struct{}

func (serialization) Error() string { return "serialization failure" }

func (serialization) SQLState() string { return "40001" }

// A phase is retried a limited number of times, with its effects rolled back.
func (b *bench) retries() {
	tries, last := 0, 3
	o := keys.New(b.db, b.setup.Dialect, keys.Config{}).Operation("op", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
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
	assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
	assert.Equal(b, 10, tries)
	assert.Equal(b, 1, b.effects("one"))
	last = 0
	_, err = o.Do(b.Context(), request("a", "k2"))
	require.NoError(b, err)
}

// If the answer to a COMMIT is lost, the stored state decides.
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

// A holder frozen in a phase's transaction, with the row locked, blocks neither other
// attempts nor the completer. In SQLite all others wait for its one writer.
func (b *bench) frozenHolder() {
	if b.setup.Dialect == keys.SQLite {
		b.otherWriter()
		return
	}
	broken := errors.New("broken")
	p := &phases{call: func(string) error { return broken }}
	o := b.keys.Operation("op", p.handle)
	_, err := o.Do(b.Context(), request("a", "k"))
	require.ErrorIs(b, err, broken)
	holder := watch(b.setup.Driver, b.dsn, &Hooks{})
	defer func() { assert.NoError(b, holder.Close()) }()
	tx, err := holder.BeginTx(b.Context(), nil)
	require.NoError(b, err)
	defer tx.Rollback() //nolint:errcheck // committed, or the test has failed
	_, err = tx.ExecContext(b.Context(), "UPDATE weir_keys SET recovery_point = 'held'")
	require.NoError(b, err)
	b.clock.Add(10 * time.Minute)
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for range 5 * b.setup.Conns {
		wg.Go(func() {
			_, err := o.Do(ctx, request("a", "k"))
			assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
		})
	}
	wg.Wait()
	_, failed, err := b.keys.Complete(ctx)
	require.NoError(b, err)
	assert.Zero(b, failed)
	p.call = nil
	_, err = o.Do(ctx, request("a", "another key"))
	require.NoError(b, err)
	require.NoError(b, tx.Rollback())
	_, err = o.Do(ctx, request("a", "k"))
	require.NoError(b, err)

	// The server ends a transaction that is frozen for the lock's timeout.
	timeout := ""
	_, err = b.keys.Operation("timeout", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		err := run.Phase(ctx, "one", func(ctx context.Context, tx *sql.Tx) error {
			return tx.QueryRowContext(ctx, "SHOW idle_in_transaction_session_timeout").Scan(&timeout)
		})
		if err != nil {
			return exactlyonce.Response{}, err
		}
		return keys.JSON(http.StatusOK, 1)
	}).Do(ctx, request("a", "timeout"))
	require.NoError(b, err)
	assert.Equal(b, "90s", timeout)
}

// While another process writes to SQLite, an attempt waits for a limited time. It may be
// repeated.
func (b *bench) otherWriter() {
	holder := watch(b.setup.Driver, b.dsn, &Hooks{})
	defer func() { assert.NoError(b, holder.Close()) }()
	tx, err := holder.BeginTx(b.Context(), nil)
	require.NoError(b, err)
	_, err = tx.ExecContext(b.Context(), "INSERT INTO effects (name) VALUES ('of another process')")
	require.NoError(b, err)
	o := b.keys.Operation("op", (&phases{}).handle)
	result := make(chan error, 1)
	go func() {
		_, err := o.Do(b.Context(), request("a", "k"))
		result <- err
	}()
	require.Eventually(b, func() bool {
		b.clock.Add(time.Second)
		return len(result) > 0
	}, time.Minute, time.Millisecond)
	err = <-result
	assert.ErrorIs(b, err, exactlyonce.ErrInProgress)
	assert.ErrorContains(b, err, "the database has not answered within 10s")
	require.NoError(b, tx.Rollback())
	_, err = o.Do(b.Context(), request("a", "k"))
	require.NoError(b, err)
}

// A database that hangs after losing a COMMIT's answer blocks the caller only for
// seconds.
func (b *bench) lostCommitThenHangs() {
	lost := errors.New("lost")
	o := b.server().Operation("op", (&phases{}).handle)
	ctx, end := context.WithCancel(b.Context())
	defer end()
	conns := make(chan *sql.Conn, b.setup.Conns)
	hangs := make(chan struct{})
	b.hooks.Commit = func(commit, _ func() error) error {
		b.hooks.Commit = nil
		before := b.db.Stats().WaitCount
		for range b.setup.Conns { // the last one gets this transaction's connection
			go func() {
				c, err := b.db.Conn(ctx)
				assert.NoError(b, err)
				conns <- c
			}()
		}
		assert.Eventually(b, func() bool { return b.db.Stats().WaitCount > before }, time.Minute, time.Millisecond)
		close(hangs)
		return errors.Join(commit(), lost)
	}
	done := make(chan error, 1)
	go func() {
		_, err := o.Do(b.Context(), request("a", "k"))
		done <- err
	}()
	<-hangs // otherwise the call could end before its commit if the clock ran ahead of a busy machine
	var err error
	assert.Eventually(b, func() bool {
		b.clock.Add(time.Second)
		select {
		case err = <-done:
			return true
		default:
			return false
		}
	}, time.Minute, 10*time.Millisecond)
	for range b.setup.Conns {
		assert.NoError(b, (<-conns).Close())
	}
	if err == nil {
		err = <-done
	}
	assert.ErrorIs(b, err, lost)
}
