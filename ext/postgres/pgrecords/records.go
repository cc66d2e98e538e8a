package pgrecords

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math"
	"sync"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/internal/group"
	"github.com/weirflow/weir/ext/internal/recordsql"
	"github.com/weirflow/weir/ext/postgres/internal/failover"
	"github.com/weirflow/weir/internal/sqlmigrate"
)

// lockNotAvailable is the SQLSTATE of a lock_timeout.
const lockNotAvailable = "55P03"

// maxMarkTries bounds how often one Acknowledge waits for open transactions, 100 ms each.
const maxMarkTries = 20

// resolveWait is how long a failed attempt's record is looked for, even after the
// caller's context has ended.
const resolveWait = 5 * time.Second

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the SQL files that make the tables: "0001_records.sql" and so on.
func (*Records) Migrations() fs.FS {
	files, _ := fs.Sub(migrations, "migrations") // the name is valid
	return files
}

// Records are answers in a PostgreSQL database. They are safe for concurrent use.
type Records struct {
	pool  *pgxpool.Pool
	clock clock.Clock // sets the times of answers; replaced in tests
	group group.Group[*call]

	patience time.Duration // resolveWait; replaced in tests

	// Owned by the goroutine of the group's batch: known clients of the table.
	ids map[clientKey]int64 // of clients that are known to be in the table

	mu sync.Mutex // see call and running
}

var _ exactlyonce.Store[pgx.Tx] = (*Records)(nil)

// New returns the records in the database of pool.
func New(pool *pgxpool.Pool) *Records {
	if pool == nil {
		panic("pgrecords.New: the pool is nil")
	}
	r := &Records{pool: pool, clock: clock.New(), patience: resolveWait}
	r.group = group.Group[*call]{Run: r.runAll, Max: maxShared}
	return r
}

// Migrate makes the tables, or updates them to this version. It can be called at each
// start.
func (r *Records) Migrate(ctx context.Context) error {
	db := stdlib.OpenDBFromPool(r.pool)
	return errors.Join(sqlmigrate.Apply(ctx, db, sqlmigrate.PostgreSQL, "pgrecords", r.Migrations()), db.Close())
}

const (
	findSQL = `SELECT c.mark, r.client_id IS NOT NULL, r.fingerprint, r.answer IS NOT NULL, r.answer
FROM weir_clients c LEFT JOIN weir_answers r ON r.client_id = c.id AND r.sequence = $3 AND r.step = $4
WHERE c.scope = $1 AND c.client = $2`

	// A separate statement: the next one's snapshot must be younger than the lock.
	lockSQL = `SELECT pg_advisory_xact_lock_shared($1), current_setting('transaction_isolation')`

	// A transaction's single snapshot may be older than the lock: then this fails if the
	// mark has moved since.
	currentSQL = `SELECT mark FROM weir_clients WHERE scope = $1 AND client = $2 FOR SHARE`

	putSQL = `INSERT INTO weir_answers (client_id, sequence, step, fingerprint, answer, stored_at)
SELECT id, $3, $4, $5, $6, $7 FROM weir_clients WHERE scope = $1 AND client = $2 AND mark <= $3
ON CONFLICT DO NOTHING`

	clientSQL = `INSERT INTO weir_clients (scope, client, mark, heard_at, phase_at) VALUES ($1, $2, 0, $3, $3) ON CONFLICT DO NOTHING`

	lockAloneSQL = `SELECT pg_advisory_xact_lock($1)`

	// A client that cannot be locked is active: it is storing an answer, or marking.
	tryLockAloneSQL = `SELECT id FROM unnest($1::bigint[], $2::bigint[]) AS u (id, lock) WHERE pg_try_advisory_xact_lock(lock)`

	markSQL = `INSERT INTO weir_clients AS c (scope, client, mark, heard_at, phase_at) VALUES ($1, $2, $3, $4, $4)
ON CONFLICT (scope, client) DO UPDATE SET mark = greatest(c.mark, excluded.mark), heard_at = greatest(c.heard_at, excluded.heard_at),
	phase = 0, phase_at = CASE c.phase WHEN 0 THEN c.phase_at ELSE excluded.phase_at END
RETURNING id`

	touchSQL = `WITH asked AS MATERIALIZED (
	SELECT r.client_id, r.sequence, r.step FROM unnest($1::text[], $2::uuid[], $3::bigint[], $4::text[]) AS u (scope, client, sequence, step)
	JOIN weir_clients c ON c.scope = u.scope AND c.client = u.client
	JOIN weir_answers r ON r.client_id = c.id AND r.sequence = u.sequence AND r.step = u.step
	WHERE r.answer IS NOT NULL FOR UPDATE OF r SKIP LOCKED
)
UPDATE weir_answers r SET stored_at = greatest(r.stored_at, $5) FROM asked a
WHERE r.client_id = a.client_id AND r.sequence = a.sequence AND r.step = a.step`

	trimSQL = `DELETE FROM weir_answers WHERE client_id = $1 AND sequence < $2 AND sequence <= coalesce(
	(SELECT sequence FROM weir_answers WHERE client_id = $1 ORDER BY sequence LIMIT 1 OFFSET $3), $2)`

	dueSQL = `SELECT c.id, c.scope, c.client, (SELECT count(*) FROM (SELECT FROM weir_answers WHERE client_id = c.id LIMIT $4) AS few) < $4,
	c.phase_at FROM weir_clients c WHERE c.phase = $1 AND c.phase_at < $2 AND (c.phase_at, c.id) > ($5, $6) ORDER BY c.phase_at, c.id LIMIT $3`

	// The age of answers has no index: it would cost each Put a fifth. A collection reads
	// a client's rows in steps.
	boundarySQL = `SELECT sequence FROM weir_answers WHERE client_id = $1 AND sequence > $2 ORDER BY sequence LIMIT 1 OFFSET $3`

	old = `client_id = $1 AND sequence >= $3 AND sequence < $4 AND answer IS NOT NULL AND stored_at < $2`

	oldSQL = `SELECT EXISTS (SELECT 1 FROM weir_answers WHERE ` + old + `)`

	// Skips rows that another server is collecting. The client keeps the time of the
	// youngest removed answer.
	forgetSQL = `WITH old AS MATERIALIZED (
	SELECT sequence, step, stored_at FROM weir_answers WHERE ` + old + ` FOR UPDATE SKIP LOCKED
), heard AS (
	UPDATE weir_clients SET heard_at = greatest(heard_at, (SELECT max(stored_at) FROM old))
	WHERE id = $1 AND heard_at < (SELECT max(stored_at) FROM old)
)
UPDATE weir_answers r SET answer = NULL FROM old WHERE r.client_id = $1 AND r.sequence = old.sequence AND r.step = old.step`

	// The same for clients with few rows.
	forgetAllSQL = `WITH old AS MATERIALIZED (
	SELECT client_id, sequence, step, stored_at FROM weir_answers
	WHERE client_id = ANY ($1) AND answer IS NOT NULL AND stored_at < $2 FOR UPDATE SKIP LOCKED
), heard AS (
	UPDATE weir_clients c SET heard_at = greatest(c.heard_at, o.stored_at)
	FROM (SELECT client_id, max(stored_at) AS stored_at FROM old GROUP BY client_id) AS o WHERE c.id = o.client_id
)
UPDATE weir_answers r SET answer = NULL FROM old
WHERE r.client_id = old.client_id AND r.sequence = old.sequence AND r.step = old.step`

	// A silent client's mark becomes one above its highest sequence: earlier requests are
	// stale, later ones new.
	phaseSQL = `UPDATE weir_clients c SET
	phase    = CASE WHEN answered THEN 0 WHEN heard_at < $3 THEN 2 ELSE 1 END,
	phase_at = CASE WHEN answered THEN $2 ELSE heard_at END,
	mark     = CASE WHEN answered OR heard_at >= $3 THEN mark ELSE greatest(mark, highest + 1) END
FROM (SELECT u.id, EXISTS (SELECT FROM weir_answers WHERE client_id = u.id AND answer IS NOT NULL) AS answered,
	(SELECT coalesce(max(sequence), 0) FROM weir_answers WHERE client_id = u.id) AS highest FROM unnest($1::bigint[]) AS u (id)) AS n
WHERE c.id = n.id RETURNING c.id, c.phase, c.mark`

	trimAllSQL = `DELETE FROM weir_answers r USING unnest($1::bigint[], $2::bigint[]) AS u (id, mark) WHERE r.client_id = u.id AND r.sequence < u.mark`

	dropSQL = `DELETE FROM weir_clients c WHERE c.id = ANY ($1) AND c.heard_at < $2
AND NOT EXISTS (SELECT FROM weir_answers WHERE client_id = c.id)`
)

var (
	patient   = beginning("100ms")
	impatient = beginning("1ms")
)

// beginning returns the options of a transaction that waits for a lock for at most
// lockTimeout. Each statement has its own snapshot, whatever the database's default is: a
// snapshot from before a lock lacks records stored meanwhile (law X1). The server ends
// the transaction of a frozen process.
func beginning(lockTimeout string) pgx.TxOptions {
	return pgx.TxOptions{BeginQuery: "begin isolation level read committed; set local lock_timeout = '" + lockTimeout + "'; set local idle_in_transaction_session_timeout = '30s'"}
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Find implements exactlyonce.Records.
func (r *Records) Find(ctx context.Context, req exactlyonce.Request) (answer []byte, found bool, err error) {
	if err := req.Validate(); err != nil {
		return nil, false, err
	}
	answer, found, err = find(ctx, r.pool, req)
	if err != nil {
		return nil, false, describe("find", req, err)
	}
	return answer, found, nil
}

func find(ctx context.Context, q querier, req exactlyonce.Request) (answer []byte, found bool, err error) {
	return scanFound(q.QueryRow(ctx, findSQL, req.Scope, uuid(req.Client), req.Sequence, req.Step), req)
}

func scanFound(row pgx.Row, req exactlyonce.Request) (answer []byte, found bool, err error) {
	var f recordsql.Found
	err = row.Scan(&f.Mark, &f.Present, &f.Fingerprint, &f.Answered, &f.Answer)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, false, nil
	}
	if err == nil {
		answer, found, err = f.Find(&req)
	}
	return answer, found, err
}

// Put implements exactlyonce.Store.
func (r *Records) Put(ctx context.Context, tx pgx.Tx, req exactlyonce.Request, answer []byte) error {
	if err := req.Validate(); err != nil {
		return err
	}
	if err := r.put(ctx, tx, req, answer); err != nil {
		return describe("put", req, err)
	}
	return nil
}

func (r *Records) put(ctx context.Context, tx pgx.Tx, req exactlyonce.Request, answer []byte) error {
	now := r.clock.Now().UnixMicro()
	args := []any{req.Scope, uuid(req.Client), req.Sequence, req.Step, recordsql.Fingerprint(&req), recordsql.Answer(answer), now}
	for created := false; ; created = true {
		var isolation string
		var n int64
		batch := &pgx.Batch{} // one round trip
		batch.Queue(lockSQL, lockOf(req.Scope, req.Client)).QueryRow(func(row pgx.Row) error { return row.Scan(nil, &isolation) })
		batch.Queue(putSQL, args...).Exec(func(tag pgconn.CommandTag) error {
			n = tag.RowsAffected()
			return nil
		})
		if err := tx.SendBatch(ctx, batch).Close(); err != nil {
			return err
		}
		if isolation != "read committed" {
			if _, err := tx.Exec(ctx, currentSQL, req.Scope, uuid(req.Client)); err != nil {
				return err
			}
		}
		if n == 1 {
			return nil
		}
		_, found, err := find(ctx, tx, req)
		switch {
		case err != nil:
			return err
		case found:
			return exactlyonce.ErrInProgress
		case created:
			return errors.New("the record was not stored")
		}
		if _, err := tx.Exec(ctx, clientSQL, req.Scope, uuid(req.Client), now); err != nil {
			return err
		}
	}
}

// Run calls effect in a transaction, stores the answer that it returns, commits, and
// returns that answer. If another attempt has completed the request, Run returns its
// answer, and this effect is rolled back. If the answer to COMMIT is lost, Run looks for
// the record. If the database cannot be asked, or has not ended the transaction yet, Run
// returns the error of COMMIT and the request is in doubt: it may be repeated with the
// same id. Run also returns errors of effect, of Put and of the database.
func (r *Records) Run(ctx context.Context, req exactlyonce.Request, effect func(ctx context.Context, tx pgx.Tx) ([]byte, error)) ([]byte, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	var answer []byte
	err := pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		var err error
		answer, err = effect(ctx, tx)
		if err != nil {
			return err
		}
		return r.Put(ctx, tx, req, answer)
	})
	if err == nil {
		return answer, nil
	}
	return r.resolve(ctx, req, err)
}

// resolve returns the stored answer of a failed attempt's request, or err. Law X2: after
// any failure, the record shows whether an attempt took effect. The caller's context may
// have ended.
func (r *Records) resolve(ctx context.Context, req exactlyonce.Request, err error) ([]byte, error) {
	failover.Reset(r.pool, err)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.patience)
	defer cancel()
	answer, found, findErr := r.Find(ctx, req)
	if findErr == nil && found {
		return answer, nil
	}
	return nil, err
}

// Acknowledge implements exactlyonce.Records.
func (r *Records) Acknowledge(ctx context.Context, marks []exactlyonce.Request) error {
	if err := r.acknowledge(ctx, marks); err != nil {
		failover.Reset(r.pool, err)
		return fmt.Errorf("pgrecords: acknowledge %d marks: %w", len(marks), explain(err))
	}
	return nil
}

func (r *Records) acknowledge(ctx context.Context, marks []exactlyonce.Request) error {
	for _, m := range marks {
		if m.Client.IsZero() {
			return fmt.Errorf("%w: the mark %d lacks a client", exactlyonce.ErrInvalid, m.First)
		}
	}
	var held error
	tries := maxMarkTries
	for _, m := range marks {
		// One transaction each: a client's open transaction must not delay the marks of
		// others.
		begin := patient
		if tries == 0 {
			begin = impatient
		}
		id, err := r.mark(ctx, m, begin)
		for ; tries > 0 && ctx.Err() == nil && sqlState(err) == lockNotAvailable; tries-- {
			id, err = r.mark(ctx, m, patient)
		}
		if sqlState(err) == lockNotAvailable {
			held = fmt.Errorf("a transaction that has put for client %s of scope %q stays open: %w", m.Client, m.Scope, err)
			continue
		}
		if err != nil {
			return err
		}
		if _, err := r.trim(ctx, id, m.First); err != nil { // these rows are stale already
			return err
		}
	}
	return held
}

var _ exactlyonce.Toucher = (*Records)(nil)

// Touch implements [exactlyonce.Toucher]. Answers whose rows are locked keep their age.
func (r *Records) Touch(ctx context.Context, requests []exactlyonce.Request) error {
	n := len(requests)
	scopes := make([]string, n)
	clients := make([]pgtype.UUID, n)
	sequences := make([]int64, n)
	steps := make([]string, n)
	for i, req := range requests {
		scopes[i] = req.Scope
		clients[i] = uuid(req.Client)
		sequences[i] = req.Sequence
		steps[i] = req.Step
	}
	_, err := r.pool.Exec(ctx, touchSQL, scopes, clients, sequences, steps, r.clock.Now().UnixMicro())
	if err != nil {
		failover.Reset(r.pool, err)
		return fmt.Errorf("pgrecords: touch %d answers: %w", n, explain(err))
	}
	return nil
}

// mark raises one mark. While it waits for its lock, requests of the client wait, too, so
// it gives up after 100 ms, or at once. A mark of 0 only notes that the client is active,
// and takes no lock.
func (r *Records) mark(ctx context.Context, m exactlyonce.Request, begin pgx.TxOptions) (id int64, err error) {
	err = pgx.BeginTxFunc(ctx, r.pool, begin, func(tx pgx.Tx) error {
		if m.First > 0 {
			if _, err := tx.Exec(ctx, lockAloneSQL, lockOf(m.Scope, m.Client)); err != nil {
				return err
			}
		}
		return tx.QueryRow(ctx, markSQL, m.Scope, uuid(m.Client), min(m.First, recordsql.Collected), r.clock.Now().UnixMicro()).Scan(&id)
	})
	return id, err
}

// trim removes a client's rows below its mark.
func (r *Records) trim(ctx context.Context, client, mark int64) (removed int64, err error) {
	for {
		tag, err := r.pool.Exec(ctx, trimSQL, client, mark, recordsql.Step-1)
		removed += tag.RowsAffected()
		if err != nil || tag.RowsAffected() < recordsql.Step {
			return removed, err
		}
	}
}

// Collect implements exactlyonce.Records.
func (r *Records) Collect(ctx context.Context, answers, clients time.Time) (removedAnswers, removedClients int, err error) {
	times := recordsql.TimesOf(r.clock.Now(), answers, clients)
	for phase := range recordsql.Phases {
		n, clients, err := r.collectPhase(ctx, phase, times)
		removedAnswers, removedClients = removedAnswers+n, removedClients+clients
		if err != nil {
			failover.Reset(r.pool, err)
			return removedAnswers, removedClients, fmt.Errorf("pgrecords: collect: %w", explain(err))
		}
	}
	return removedAnswers, removedClients, nil
}

// collectPhase collects the clients that are due in a phase, except locked ones.
func (r *Records) collectPhase(ctx context.Context, phase int, times recordsql.Times) (removed, clients int, err error) {
	lastAt, lastID := int64(math.MinInt64), int64(0)
	for {
		rows, err := r.pool.Query(ctx, dueSQL, phase, times.Due(phase), recordsql.Step, recordsql.Few+1, lastAt, lastID)
		if err != nil {
			return removed, clients, err
		}
		due, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c recordsql.Client, err error) {
			err = row.Scan(&c.ID, &c.Scope, &c.Client, &c.Few, &lastAt)
			lastID = c.ID
			return c, err
		})
		if err != nil {
			return removed, clients, err
		}
		more := len(due) == recordsql.Step
		for len(due) > 0 {
			var chunk []recordsql.Client
			chunk, due = recordsql.Chunk(due)
			n, m, err := r.collect(ctx, chunk, times)
			removed, clients = removed+n, clients+m
			if err != nil {
				return removed, clients, err
			}
		}
		if !more {
			return removed, clients, nil
		}
	}
}

// collect removes old answers of clients. Of a silent client it keeps only the mark, and
// after a long silence it removes the client.
func (r *Records) collect(ctx context.Context, chunk []recordsql.Client, times recordsql.Times) (removed, clients int, err error) {
	few := chunk[0].Few
	if !few { // one client
		removed, err = r.forget(ctx, chunk[0].ID, times.Answers)
		if err != nil {
			return removed, 0, err
		}
	}
	ids, locks := make([]int64, len(chunk)), make([]int64, len(chunk))
	for i, c := range chunk {
		ids[i], locks[i] = c.ID, lockOf(c.Scope, c.Client)
	}
	for { // until a client with many rows is trimmed
		var silent, marks []int64
		n := 0
		done, err := r.briefly(ctx, func(tx pgx.Tx) error {
			locked, err := collectIDs(tx.Query(ctx, tryLockAloneSQL, ids, locks))
			if err != nil {
				return err
			}
			if few {
				tag, err := tx.Exec(ctx, forgetAllSQL, locked, times.Answers)
				if err != nil {
					return err
				}
				n = int(tag.RowsAffected())
			}
			rows, err := tx.Query(ctx, phaseSQL, locked, times.Now, times.Clients)
			if err != nil {
				return err
			}
			var id, mark int64
			var phase int
			_, err = pgx.ForEachRow(rows, []any{&id, &phase, &mark}, func() error {
				if phase == recordsql.Silent {
					silent, marks = append(silent, id), append(marks, mark)
				}
				return nil
			})
			if err != nil || len(silent) == 0 {
				return err
			}
			if few {
				if _, err := tx.Exec(ctx, trimAllSQL, silent, marks); err != nil {
					return err
				}
			}
			tag, err := tx.Exec(ctx, dropSQL, silent, times.Marks)
			clients = int(tag.RowsAffected())
			return err
		})
		if !done {
			return removed, 0, err
		}
		removed += n
		if few || clients > 0 || len(silent) == 0 {
			return removed, clients, nil
		}
		trimmed, err := r.trim(ctx, silent[0], marks[0])
		if err != nil || trimmed == 0 {
			return removed, clients, err
		}
	}
}

func collectIDs(rows pgx.Rows, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int64])
}

// briefly runs a transaction that does not wait long for a lock. done is false if it
// could not lock: a later collection makes the change.
func (r *Records) briefly(ctx context.Context, work func(tx pgx.Tx) error) (done bool, err error) {
	err = pgx.BeginTxFunc(ctx, r.pool, patient, work)
	if sqlState(err) == lockNotAvailable {
		return false, nil
	}
	return err == nil, err
}

// forget removes a client's old answers. Their rows stay.
func (r *Records) forget(ctx context.Context, id, at int64) (removed int, err error) {
	for from := int64(0); from < recordsql.Collected; {
		to := recordsql.Collected
		err := r.pool.QueryRow(ctx, boundarySQL, id, from, recordsql.Step).Scan(&to)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return removed, err
		}
		var some bool // a look without locks
		if err := r.pool.QueryRow(ctx, oldSQL, id, at, from, to).Scan(&some); err != nil {
			return removed, err
		}
		if some {
			n := 0
			done, err := r.briefly(ctx, func(tx pgx.Tx) error {
				tag, err := tx.Exec(ctx, forgetSQL, id, at, from, to)
				n = int(tag.RowsAffected())
				return err
			})
			if !done {
				return removed, err
			}
			removed += n
		}
		from = to
	}
	return removed, nil
}

func uuid(c exactlyonce.Client) pgtype.UUID { return pgtype.UUID{Bytes: c, Valid: true} }

// lockOf is the number of a client's advisory lock. Clients with the same number wait for
// each other's marks.
func lockOf(scope string, client [16]byte) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte("weir_clients\x00"))
	_, _ = h.Write(client[:])
	_, _ = h.Write([]byte(scope))
	return int64(h.Sum64())
}

func sqlState(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

func describe(what string, req exactlyonce.Request, err error) error {
	return fmt.Errorf("pgrecords: %s %s of scope %q: %w", what, req.ID, req.Scope, explain(err))
}

func explain(err error) error {
	return sqlmigrate.Explain(err, "pgrecords.Records.Migrate", "weir_clients", "weir_answers")
}
