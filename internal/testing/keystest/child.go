//go:build unix

package keystest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
)

const (
	envDSN    = "WEIR_KEYS_DSN"
	envLedger = "WEIR_KEYS_LEDGER"
	envKey    = "WEIR_KEYS_KEY"
	envKill   = "WEIR_KEYS_KILL"
)

// Child runs a request that is killed in the middle, and does not return, if [RunKilled]
// started this process. TestMain must call it first.
func Child(p Setup) {
	dsn := os.Getenv(envDSN)
	if dsn == "" {
		return
	}
	steps, killAt := 0, must(strconv.Atoi(os.Getenv(envKill)))
	step := func() {
		if steps++; steps == killAt {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	db := watch(p.Driver, dsn, &Hooks{Step: step})
	db.SetMaxOpenConns(1)
	rides := &rides{ledger: os.Getenv(envLedger), step: step, dialect: p.Dialect}
	o := keys.New(db, p.Dialect, keys.Config{}).Operation("create_ride", rides.create)
	response, err := o.Do(context.Background(), request("rider", os.Getenv(envKey)))
	if err != nil || response.Status != http.StatusCreated {
		fmt.Println("FAILED", response.Status, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

type rides struct {
	ledger  string // file of the payment provider: a line with the key for each call, and a line for each phase that ran
	step    func()
	dialect keys.Dialect
}

const rideTables = `CREATE TABLE rides (id TEXT PRIMARY KEY, rider TEXT NOT NULL, charge TEXT);
CREATE TABLE audits (ride TEXT NOT NULL, action TEXT NOT NULL);`

func (s *rides) write(line string) error {
	f, err := os.OpenFile(s.ledger, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line + "\n")
	return errors.Join(err, f.Close())
}

func (s *rides) create(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
	ride, err := keys.Phase(ctx, run, "ride_created", func(ctx context.Context, tx *sql.Tx) (string, error) {
		if err := s.write("phase ride_created " + run.Key); err != nil {
			return "", err
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO rides (id, rider) VALUES ($1, $2)", "ride-"+run.ID(), run.User); err != nil {
			return "", err
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO audits (ride, action) VALUES ($1, 'created')", "ride-"+run.ID())
		return "ride-" + run.ID(), err
	})
	if err != nil {
		return exactlyonce.Response{}, err
	}
	charge, err := keys.Call(ctx, run, "charge_created", func(_ context.Context, key string) (string, error) {
		s.step()
		defer s.step()
		return "charge-" + key, s.write("call " + key)
	})
	if err != nil {
		return exactlyonce.Response{}, err
	}
	err = run.Phase(ctx, "charge_stored", func(ctx context.Context, tx *sql.Tx) error {
		if err := s.write("phase charge_stored " + run.Key); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE rides SET charge = $1 WHERE id = $2", charge, ride)
		return err
	})
	if err != nil {
		return exactlyonce.Response{}, err
	}
	return run.Finish(ctx, func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO audits (ride, action) VALUES ($1, 'finished')", ride); err != nil {
			return exactlyonce.Response{}, err
		}
		return keys.JSON(http.StatusCreated, map[string]string{"ride": ride, "charge": charge})
	})
}

func request(user, key string) keys.Request {
	return keys.Request{User: user, Key: key, Method: http.MethodPost, Path: "/rides", Body: []byte(`{"to":"harbour"}`)}
}

// RunKilled kills a process by SIGKILL at each boundary of a statement and of the
// provider's call, and finishes the request by the next attempt or by the completer (law
// X2). stride 1 uses each boundary, 2 every second one.
func RunKilled(t *testing.T, p Setup, stride int) {
	dsn := p.New(t)
	db := watch(p.Driver, dsn, &Hooks{})
	db.SetMaxOpenConns(1)
	defer func() { assert.NoError(t, db.Close()) }()
	require.NoError(t, keys.New(db, p.Dialect, keys.Config{}).Migrate(t.Context()))
	_, err := db.ExecContext(t.Context(), rideTables)
	require.NoError(t, err)
	ledger := t.TempDir() + "/ledger"
	// After a dead run's lock has expired.
	late := clock.NewMock()
	late.Set(time.Now().Add(10 * time.Minute))
	service := &rides{ledger: ledger, step: func() {}, dialect: p.Dialect}
	store := keys.New(db, p.Dialect, keys.Config{Clock: late, Logger: slog.New(slog.DiscardHandler)})
	o := store.Operation("create_ride", service.create)

	for killAt := 1; ; killAt += stride {
		key := fmt.Sprint("key ", killAt)
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), envDSN+"="+dsn, envLedger+"="+ledger, envKey+"="+key, fmt.Sprintf("%s=%d", envKill, killAt))
		out, err := cmd.CombinedOutput()
		finished := err == nil
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !finished && !(ok && status.Signal() == syscall.SIGKILL) {
			t.Fatalf("the child was not killed: %v %s", err, out)
		}
		done := committed(t, db, key)
		before := lines(t, ledger)
		late.Add(10 * time.Minute)
		if killAt/stride%2 == 0 {
			_, failed, err := store.Complete(t.Context())
			require.NoError(t, err)
			assert.Zero(t, failed)
		}
		var response exactlyonce.Response
		require.Eventually(t, func() bool { // until the database notices the broken connection
			response, err = o.Do(t.Context(), request("rider", key))
			return !errors.Is(err, exactlyonce.ErrInProgress)
		}, time.Minute, time.Millisecond)
		require.NoError(t, err)
		again, err := o.Do(t.Context(), request("rider", key))
		require.NoError(t, err)
		assert.Equal(t, response, again)

		for _, line := range lines(t, ledger)[len(before):] {
			if phase, ok := strings.CutPrefix(line, "phase "); ok {
				name, _, _ := strings.Cut(phase, " ")
				assert.NotContains(t, done, name, "killed at %d: a phase that had committed ran again", killAt)
			} else {
				assert.NotContains(t, done, "charge_created", "killed at %d: the call was repeated", killAt)
			}
		}
		if finished {
			require.Greater(t, killAt, 30, "the child has fewer boundaries than statements")
			break
		}
	}
	requests := count(t, db, "SELECT count(*) FROM weir_keys WHERE response IS NOT NULL")
	assert.Equal(t, requests, count(t, db, "SELECT count(*) FROM weir_keys"))
	assert.Equal(t, requests, count(t, db, "SELECT count(*) FROM rides WHERE charge IS NOT NULL"))
	assert.Equal(t, requests, count(t, db, "SELECT count(*) FROM rides"))
	assert.Equal(t, requests, count(t, db, "SELECT count(*) FROM audits WHERE action = 'created'"))
	assert.Equal(t, requests, count(t, db, "SELECT count(*) FROM audits WHERE action = 'finished'"))
	assert.Equal(t, 3*requests, count(t, db, "SELECT count(*) FROM weir_key_steps"))
	charges := map[string]bool{} // the provider charges once for each key
	for _, line := range lines(t, ledger) {
		if key, ok := strings.CutPrefix(line, "call "); ok {
			charges[key] = true
		}
	}
	assert.Len(t, charges, requests)
}

func committed(t *testing.T, db *sql.DB, key string) (names []string) {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), `SELECT name FROM weir_key_steps WHERE key_id IN (SELECT id FROM weir_keys WHERE idempotency_key = $1)`, key)
	require.NoError(t, err)
	defer func() { assert.NoError(t, rows.Close()) }()
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, rows.Err())
	return names
}

func lines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func count(t *testing.T, db *sql.DB, query string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, db.QueryRowContext(t.Context(), query, args...).Scan(&n))
	return n
}
