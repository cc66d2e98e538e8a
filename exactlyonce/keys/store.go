package keys

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/exactlyonce"
)

// Recovery points that are not step names.
const (
	started  = "started"
	finished = "finished"
)

type row struct {
	id          string
	request     Request
	operation   string
	fingerprint []byte
	lastRunAt   int64
	lockedAt    sql.NullInt64
	fence       int64
	point       string
	expiresAt   int64
	response    []byte
	done        bool // response is not null
}

// Parameters are numbered in order, because some SQLite drivers ignore their numbers.
const (
	columns = `id, principal, idempotency_key, request_method, request_path, request_query, request_type, request_body,
	operation, fingerprint, last_run_at, locked_at, fence, recovery_point, expires_at, response, response IS NOT NULL`

	byKeySQL = `SELECT ` + columns + ` FROM weir_keys WHERE principal = $1 AND idempotency_key = $2`
	byIDSQL  = `SELECT ` + columns + ` FROM weir_keys WHERE id = $1`

	stepsSQL = `SELECT name, result FROM weir_key_steps WHERE key_id = $1 ORDER BY position`

	insertSQL = `INSERT INTO weir_keys (id, principal, idempotency_key, request_method, request_path, request_query, request_type,
	request_body, operation, fingerprint, created_at, last_run_at, locked_at, expires_at, fence, recovery_point)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, 1, '` + started + `') ON CONFLICT DO NOTHING`

	// Only one of two takers finds the old state and changes the row.
	takeSQL = `UPDATE weir_keys SET locked_at = $1, last_run_at = $2, fence = fence + 1
WHERE id IN (` + takenSQL + `)`
	takenSQL = `SELECT id FROM weir_keys WHERE id = $3 AND fence = $4 AND coalesce(locked_at, 0) = $5 AND response IS NULL`

	// Do not wait for a frozen transaction of the previous run. (SQLite has one writer.)
	takePostgreSQL = `UPDATE weir_keys SET locked_at = $1, last_run_at = $2, fence = fence + 1
WHERE id IN (` + takenSQL + ` FOR UPDATE SKIP LOCKED)`

	renewSQL = `UPDATE weir_keys SET locked_at = $1 WHERE id = $2 AND fence = $3 AND response IS NULL`

	unlockSQL = `UPDATE weir_keys SET locked_at = NULL WHERE id = $1 AND fence = $2 AND response IS NULL`

	// The first statement of each transaction locks out other runs, and detects whether
	// this run is locked out.
	advanceSQL = `UPDATE weir_keys SET recovery_point = $1, locked_at = $2
WHERE id = $3 AND fence = $4 AND recovery_point = $5 AND response IS NULL`

	// The timeout ends the transaction of a frozen process, so that another run can take
	// over.
	advancePostgreSQL = advanceSQL + ` RETURNING set_config('idle_in_transaction_session_timeout', $6, true)`

	endSQL = `UPDATE weir_keys SET response = $1, locked_at = NULL, fence = fence + 1, expires_at = $2 + expires_at - created_at
WHERE id = $3 AND response IS NULL`

	stepSQL = `INSERT INTO weir_key_steps (key_id, position, name, result) VALUES ($1, $2, $3, $4)`

	// The retention starts again, for a client that missed the answer.
	finishSQL = `UPDATE weir_keys SET response = $1, locked_at = NULL, expires_at = $2 + expires_at - created_at WHERE id = $3`

	// Each run lengthens the next pause.
	unfinishedSQL = `SELECT id FROM weir_keys WHERE response IS NULL AND id > $1 AND last_run_at <= $2 - $3 * (fence - 1)
AND coalesce(locked_at, 0) <= $4 AND expires_at > $5 ORDER BY id LIMIT $6`

	// Filter.query adds conditions and the order. The first bytes of a response hold its
	// status.
	listSQL = `SELECT id, principal, idempotency_key, operation, recovery_point, fence, created_at, last_run_at, locked_at, expires_at,
	substr(response, 1, 4) FROM weir_keys WHERE true`

	countSQL           = `SELECT count(*), count(DISTINCT principal) FROM weir_keys`
	countUnfinishedSQL = `SELECT count(*) FROM weir_keys WHERE response IS NULL`

	overdueSQL = `SELECT count(*) FROM weir_keys WHERE response IS NULL AND expires_at <= $1`

	expired      = `SELECT id FROM weir_keys WHERE response IS NOT NULL AND expires_at <= $1 ORDER BY expires_at, id LIMIT $2`
	reapStepsSQL = `DELETE FROM weir_key_steps WHERE key_id IN (` + expired + `)`
	reapSQL      = `DELETE FROM weir_keys WHERE id IN (` + expired + `)`

	expiredOne     = `SELECT id FROM weir_keys WHERE response IS NOT NULL AND expires_at <= $1 AND id = $2`
	removeStepsSQL = `DELETE FROM weir_key_steps WHERE key_id IN (` + expiredOne + `)`
	removeSQL      = `DELETE FROM weir_keys WHERE id IN (` + expiredOne + `)`
)

// scan returns nil if there is no row.
func scan(r *sql.Row) (*row, error) {
	var k row
	err := r.Scan(&k.id, &k.request.User, &k.request.Key, &k.request.Method, &k.request.Path, &k.request.Query, &k.request.ContentType,
		&k.request.Body, &k.operation, &k.fingerprint, &k.lastRunAt, &k.lockedAt, &k.fence, &k.point, &k.expiresAt, &k.response, &k.done)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &k, nil
}

type step struct {
	name   string
	result []byte
}

func (k *Keys) steps(ctx context.Context, id string) (steps []step, err error) {
	rows, err := k.db.QueryContext(ctx, stepsSQL, id)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var s step
		if err := rows.Scan(&s.name, &s.result); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		steps = append(steps, s)
	}
	return steps, errors.Join(rows.Err(), rows.Close())
}

// within returns a context that ends after d. (The mock clock's contexts have a data
// race.)
func (k *Keys) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if d <= 0 { // a mock clock would wait for its next step
		cancel(context.DeadlineExceeded)
	}
	timer := k.config.Clock.AfterFunc(d, func() { cancel(context.DeadlineExceeded) })
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

func (k *Keys) now() int64 { return k.config.Clock.Now().UnixMicro() }

// claimWait bounds how long the database may take to lock a request.
const claimWait = 10 * time.Second

// claim returns a run that has the lock, or the response of a finished request.
func (k *Keys) claim(ctx context.Context, o *Operation, req Request) (*Run, *exactlyonce.Response, error) {
	waiting, cancel := k.within(ctx, claimWait)
	defer cancel()
	run, response, err := k.claimNow(waiting, o, req)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: the database has not answered within %v: %w", errConflict, claimWait, err) // another one writes, or the database hangs
	}
	return run, response, err
}

func (k *Keys) claimNow(ctx context.Context, o *Operation, req Request) (*Run, *exactlyonce.Response, error) {
	var held *row // the last state that could not be taken
	for {
		known, err := scan(k.db.QueryRowContext(ctx, byKeySQL, req.User, req.Key))
		if err != nil {
			return nil, nil, err
		}
		if known != nil && k.isExpired(known) {
			if err := k.removeExpired(ctx, known); err != nil {
				return nil, nil, err
			}
			continue // the key means a new request
		}
		switch {
		case known == nil:
			run, err := k.insert(ctx, o, req, req.fingerprint(o.name))
			if run != nil || err != nil {
				return run, nil, err
			}
		case !req.isAsked(o.name, known.fingerprint):
			return nil, nil, exactlyonce.ErrMismatch
		case known.done:
			response := &exactlyonce.Response{}
			return nil, response, response.Decode(known.response)
		case k.isLocked(known), held != nil && held.fence == known.fence && held.lockedAt == known.lockedAt:
			return nil, nil, exactlyonce.ErrInProgress
		default:
			run, err := k.take(ctx, o, known)
			if run != nil || err != nil {
				return run, nil, err
			}
			held = known
		}
		// Another run was faster: look again.
	}
}

// isExpired reports whether the retention of a finished request is over.
func (k *Keys) isExpired(known *row) bool { return known.done && known.expiresAt <= k.now() }

func (k *Keys) isLocked(known *row) bool {
	return known.lockedAt.Valid && k.config.Clock.Now().Before(time.UnixMicro(known.lockedAt.Int64).Add(k.config.LockTimeout))
}

// insert returns nil if the key has been inserted meanwhile.
func (k *Keys) insert(ctx context.Context, o *Operation, req Request, fingerprint [32]byte) (*Run, error) {
	var random [16]byte
	_, _ = rand.Read(random[:]) // never fails
	id := hex.EncodeToString(random[:])
	if req.Body == nil {
		req.Body = []byte{}
	}
	now := k.config.Clock.Now()
	at := now.UnixMicro()
	result, err := k.db.ExecContext(ctx, insertSQL, id, req.User, req.Key, req.Method, req.Path, req.Query, req.ContentType, req.Body,
		o.name, fingerprint[:], at, at, at, now.Add(k.config.Retention).UnixMicro())
	if n, err := affected(result, err); err != nil || n == 0 {
		return nil, err
	}
	return &Run{Request: req, id: id, operation: o, fence: 1, lockedAt: at, point: started}, nil
}

// take returns nil if another run was faster.
func (k *Keys) take(ctx context.Context, o *Operation, known *row) (*Run, error) {
	now := k.now()
	result, err := k.db.ExecContext(ctx, k.in(takeSQL, takePostgreSQL), now, now, known.id, known.fence, known.lockedAt.Int64)
	if n, err := affected(result, err); err != nil || n == 0 {
		return nil, err
	}
	run := &Run{Request: known.request, id: known.id, operation: o, fence: known.fence + 1, lockedAt: now}
	// Only now, because the previous run could commit until then.
	if err := run.load(ctx); err != nil {
		run.unlock(ctx)
		return nil, err
	}
	return run, nil
}

func (k *Keys) in(sqlite, postgresql string) string {
	if k.dialect == PostgreSQL {
		return postgresql
	}
	return sqlite
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// load reads the state of the request, or refuses with errLockLost.
func (r *Run) load(ctx context.Context) error {
	k := r.operation.keys
	steps, err := k.steps(ctx, r.id)
	if err != nil {
		return err
	}
	known, err := scan(k.db.QueryRowContext(ctx, byIDSQL, r.id))
	if err != nil {
		return err
	}
	if known == nil {
		return fmt.Errorf("keys: request %s has been removed", r.id)
	}
	if known.done { // by any run
		response := &exactlyonce.Response{}
		if err := response.Decode(known.response); err != nil {
			return err
		}
		r.response = response
		return nil
	}
	if known.fence != r.fence {
		return r.refuse(errLockLost)
	}
	r.steps, r.point = steps, known.point
	return nil
}

// renew renews an expired lock, unless another run has it.
func (r *Run) renew(ctx context.Context) error {
	k := r.operation.keys
	now := k.config.Clock.Now()
	if now.Before(time.UnixMicro(r.lockedAt).Add(k.config.LockTimeout)) {
		return nil
	}
	ctx, cancel := k.within(ctx, claimWait)
	defer cancel()
	result, err := k.db.ExecContext(ctx, renewSQL, now.UnixMicro(), r.id, r.fence)
	n, err := affected(result, err)
	switch {
	case err != nil:
		return err
	case n == 0:
		if err := r.load(ctx); err != nil {
			return err
		}
		return r.refuse(errLockLost) // to a run that has finished the request
	}
	r.lockedAt = now.UnixMicro()
	return nil
}

func (r *Run) unlock(ctx context.Context) {
	k := r.operation.keys
	ctx, cancel := k.within(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := k.db.ExecContext(ctx, unlockSQL, r.id, r.fence); err != nil {
		k.config.Logger.Warn("a request stays locked until its lock expires", "operation", r.operation.name, "request", r.id, "error", err)
	}
}
