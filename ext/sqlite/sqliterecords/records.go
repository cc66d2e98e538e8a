package sqliterecords

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/internal/group"
	"github.com/weirflow/weir/ext/internal/recordsql"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/sqlmigrate"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migrations returns the SQL files that make the tables: "0001_records.sql" and so on.
func (*Records) Migrations() fs.FS {
	files, _ := fs.Sub(migrations, "migrations") // the name is valid
	return files
}

// Tx is the part of a transaction that Put uses: *sql.Tx and *sqlite.Tx have it.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Records are answers in an SQLite database. They are safe for concurrent use.
type Records struct {
	db    *sqlite.DB
	clock clock.Clock // sets the times of answers; replaced in tests
	group group.Group[*call]
}

var _ exactlyonce.Store[Tx] = (*Records)(nil)

// New returns the records in db.
func New(db *sqlite.DB) *Records {
	if db == nil {
		panic("sqliterecords.New: the database is nil")
	}
	r := &Records{db: db, clock: clock.New()}
	r.group = group.Group[*call]{Run: r.runAll, Max: maxShared}
	return r
}

// Migrate makes the tables, or updates them to this version. It can be called at each
// start.
func (r *Records) Migrate(ctx context.Context) error {
	return sqlmigrate.Apply(ctx, r.db.Writer(), sqlmigrate.SQLite, "sqliterecords", r.Migrations())
}

const (
	findSQL = `SELECT c.mark, r.client_id IS NOT NULL, r.fingerprint, r.answer IS NOT NULL, r.answer
FROM weir_clients c LEFT JOIN weir_answers r ON r.client_id = c.id AND r.sequence = ?3 AND r.step = ?4
WHERE c.scope = ?1 AND c.client = ?2`

	// OR IGNORE rather than ON CONFLICT DO NOTHING, and no foreign key: a statement that
	// cannot abort needs no statement journal, which would take longer than all the rest.
	putSQL = `INSERT OR IGNORE INTO weir_answers (client_id, sequence, step, fingerprint, answer, stored_at)
SELECT id, ?3, ?4, ?5, ?6, ?7 FROM weir_clients WHERE scope = ?1 AND client = ?2 AND mark <= ?3`

	clientSQL = `INSERT INTO weir_clients (scope, client, mark, heard_at, phase_at) VALUES (?1, ?2, 0, ?3, ?3) ON CONFLICT DO NOTHING`

	markSQL = `INSERT INTO weir_clients (scope, client, mark, heard_at, phase_at) VALUES (?1, ?2, ?3, ?4, ?4)
ON CONFLICT (scope, client) DO UPDATE SET mark = max(mark, excluded.mark), heard_at = max(heard_at, excluded.heard_at),
	phase = 0, phase_at = CASE phase WHEN 0 THEN phase_at ELSE excluded.phase_at END`

	touchSQL = `UPDATE weir_answers SET stored_at = max(stored_at, ?5)
WHERE client_id = (SELECT id FROM weir_clients WHERE scope = ?1 AND client = ?2) AND sequence = ?3 AND step = ?4 AND answer IS NOT NULL`

	// Removes at most one step of sequence numbers below the mark.
	trimSQL = `DELETE FROM weir_answers WHERE client_id = ?1 AND sequence < ?2 AND sequence <= coalesce(
	(SELECT sequence FROM weir_answers WHERE client_id = ?1 ORDER BY sequence LIMIT 1 OFFSET ?3), ?2)`

	dueSQL = `SELECT id, (SELECT count(*) FROM (SELECT 1 FROM weir_answers WHERE client_id = id LIMIT ?4)) < ?4
FROM weir_clients WHERE phase = ?1 AND phase_at < ?2 ORDER BY phase_at LIMIT ?3`

	// The age of answers has no index: it would cost each Put a fifth. A collection reads
	// a client's rows in steps.
	boundarySQL = `SELECT sequence FROM weir_answers WHERE client_id = ?1 AND sequence > ?2 ORDER BY sequence LIMIT 1 OFFSET ?3`

	old = `client_id = ?1 AND sequence >= ?3 AND sequence < ?4 AND answer IS NOT NULL AND stored_at < ?2`

	oldSQL = `SELECT EXISTS (SELECT 1 FROM weir_answers WHERE ` + old + `)`

	// Runs before old answers are removed: the client keeps the time of the youngest.
	heardSQL = `UPDATE weir_clients SET heard_at = max(heard_at, coalesce((SELECT max(stored_at) FROM weir_answers WHERE ` + old + `), 0)) WHERE id = ?1`

	forgetSQL = `UPDATE weir_answers SET answer = NULL WHERE ` + old

	// A silent client's mark becomes one above its highest sequence: earlier requests are
	// stale, later ones new.
	phaseSQL = `UPDATE weir_clients SET
	phase    = CASE WHEN answered THEN 0 WHEN heard_at < ?3 THEN 2 ELSE 1 END,
	phase_at = CASE WHEN answered THEN ?2 ELSE heard_at END,
	mark     = CASE WHEN answered OR heard_at >= ?3 THEN mark ELSE max(mark, highest + 1) END
FROM (SELECT EXISTS (SELECT 1 FROM weir_answers WHERE client_id = ?1 AND answer IS NOT NULL) AS answered,
	(SELECT coalesce(max(sequence), 0) FROM weir_answers WHERE client_id = ?1) AS highest)
WHERE id = ?1 RETURNING phase, mark`

	dropSQL = `DELETE FROM weir_clients WHERE id = ?1 AND heard_at < ?2 AND NOT EXISTS (SELECT 1 FROM weir_answers WHERE client_id = ?1)`
)

// Find implements exactlyonce.Records.
func (r *Records) Find(ctx context.Context, req exactlyonce.Request) (answer []byte, found bool, err error) {
	if err := req.Validate(); err != nil {
		return nil, false, err
	}
	_, answer, found, err = find(ctx, r.db.Reader(), req)
	if err != nil {
		return nil, false, describe("find", req, err)
	}
	return answer, found, nil
}

// find also reports whether the client is known.
func find(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, req exactlyonce.Request,
) (known bool, answer []byte, found bool, err error) {
	var f recordsql.Found
	err = q.QueryRowContext(ctx, findSQL, req.Scope, req.Client[:], req.Sequence, req.Step).
		Scan(&f.Mark, &f.Present, &f.Fingerprint, &f.Answered, &f.Answer)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil, false, nil
	}
	if err == nil {
		answer, found, err = f.Find(&req)
	}
	return true, answer, found, err
}

// Put implements exactlyonce.Store.
func (r *Records) Put(ctx context.Context, tx Tx, req exactlyonce.Request, answer []byte) error {
	if err := req.Validate(); err != nil {
		return err
	}
	if err := r.put(ctx, tx, req, answer); err != nil {
		return describe("put", req, err)
	}
	return nil
}

func (r *Records) put(ctx context.Context, tx Tx, req exactlyonce.Request, answer []byte) error {
	now := r.clock.Now().UnixMicro()
	for created := false; ; created = true {
		result, err := tx.ExecContext(ctx, putSQL, req.Scope, req.Client[:], req.Sequence, req.Step, recordsql.Fingerprint(&req), recordsql.Answer(answer), now)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 1 {
			return err
		}
		known, _, found, err := find(ctx, tx, req)
		switch {
		case err != nil:
			return err
		case found:
			return exactlyonce.ErrInProgress
		case known || created:
			return errors.New("the record was not stored")
		}
		if _, err := tx.ExecContext(ctx, clientSQL, req.Scope, req.Client[:], now); err != nil {
			return err
		}
	}
}

// Acknowledge implements exactlyonce.Records.
func (r *Records) Acknowledge(ctx context.Context, marks []exactlyonce.Request) error {
	for _, m := range marks {
		if m.Client.IsZero() {
			return fmt.Errorf("%w: the mark %d lacks a client", exactlyonce.ErrInvalid, m.First)
		}
	}
	ids := make([]int64, len(marks))
	now := r.clock.Now().UnixMicro()
	err := r.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		for i, m := range marks {
			_, err := tx.ExecContext(ctx, markSQL, m.Scope, m.Client[:], min(m.First, recordsql.Collected), now)
			if err != nil {
				return err
			}
			err = tx.QueryRowContext(ctx, `SELECT id FROM weir_clients WHERE scope = ?1 AND client = ?2`, m.Scope, m.Client[:]).Scan(&ids[i])
			if err != nil {
				return err
			}
		}
		return nil
	})
	for i, m := range marks {
		if err != nil {
			break
		}
		err = r.trim(ctx, ids[i], m.First) // these rows are stale already
	}
	if err != nil {
		return fmt.Errorf("sqliterecords: acknowledge %d marks: %w", len(marks), explain(err))
	}
	return nil
}

var _ exactlyonce.Toucher = (*Records)(nil)

// Touch implements [exactlyonce.Toucher].
func (r *Records) Touch(ctx context.Context, requests []exactlyonce.Request) error {
	now := r.clock.Now().UnixMicro()
	err := r.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		for _, req := range requests {
			if _, err := tx.ExecContext(ctx, touchSQL, req.Scope, req.Client[:], req.Sequence, req.Step, now); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("sqliterecords: touch %d answers: %w", len(requests), explain(err))
	}
	return nil
}

// trim removes a client's rows below its mark.
func (r *Records) trim(ctx context.Context, client, mark int64) error {
	for {
		if n, err := r.exec(ctx, trimSQL, client, mark, recordsql.Step-1); err != nil || n < recordsql.Step {
			return err
		}
	}
}

func (r *Records) exec(ctx context.Context, query string, args ...any) (n int, err error) {
	err = r.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) (err error) {
		n, err = execIn(ctx, tx, query, args...)
		return err
	})
	return n, err
}

func execIn(ctx context.Context, tx *sqlite.Tx, query string, args ...any) (n int, err error) {
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	rows, err := result.RowsAffected()
	return int(rows), err
}

// Collect implements exactlyonce.Records.
func (r *Records) Collect(ctx context.Context, answers, clients time.Time) (removedAnswers, removedClients int, err error) {
	times := recordsql.TimesOf(r.clock.Now(), answers, clients)
	for phase := 0; phase < recordsql.Phases; {
		due, err := r.due(ctx, phase, times.Due(phase))
		more := len(due) == recordsql.Step
		for len(due) > 0 && err == nil {
			var chunk []recordsql.Client
			var n, clients int
			chunk, due = recordsql.Chunk(due)
			n, clients, err = r.collect(ctx, chunk, times)
			removedAnswers, removedClients = removedAnswers+n, removedClients+clients
		}
		if err != nil {
			return removedAnswers, removedClients, fmt.Errorf("sqliterecords: collect: %w", explain(err))
		}
		if !more {
			phase++
		}
	}
	return removedAnswers, removedClients, nil
}

func (r *Records) due(ctx context.Context, phase int, before int64) (due []recordsql.Client, err error) {
	rows, err := r.db.Reader().QueryContext(ctx, dueSQL, phase, before, recordsql.Step, recordsql.Few+1)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var c recordsql.Client
		if err := rows.Scan(&c.ID, &c.Few); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		due = append(due, c)
	}
	return due, errors.Join(rows.Err(), rows.Close())
}

// collect removes old answers of clients. Of a silent client it keeps only the mark, and
// after a long silence it removes the client.
func (r *Records) collect(ctx context.Context, chunk []recordsql.Client, times recordsql.Times) (removed, clients int, err error) {
	if !chunk[0].Few { // one client
		id, mark := chunk[0].ID, int64(0)
		removed, err = r.forget(ctx, id, times.Answers)
		if err != nil {
			return removed, 0, err
		}
		err := r.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) (err error) {
			mark, err = enterPhase(ctx, tx, id, times)
			return err
		})
		if err != nil || mark == 0 {
			return removed, 0, err
		}
		if err := r.trim(ctx, id, mark); err != nil {
			return removed, 0, err
		}
		clients, err = r.exec(ctx, dropSQL, id, times.Marks)
		return removed, clients, err
	}
	err = r.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		removed, clients = 0, 0
		for _, c := range chunk {
			n, err := forgetIn(ctx, tx, c.ID, times.Answers, 0, recordsql.Collected)
			if err != nil {
				return err
			}
			removed += n
			mark, err := enterPhase(ctx, tx, c.ID, times)
			if err != nil {
				return err
			}
			if mark == 0 {
				continue
			}
			if _, err := execIn(ctx, tx, trimSQL, c.ID, mark, recordsql.Step-1); err != nil {
				return err
			}
			n, err = execIn(ctx, tx, dropSQL, c.ID, times.Marks)
			if err != nil {
				return err
			}
			clients += n
		}
		return nil
	})
	return removed, clients, err
}

// enterPhase sets when the client is due again. It returns the mark below which all rows
// can go, or 0 if the client is not silent.
func enterPhase(ctx context.Context, tx *sqlite.Tx, id int64, times recordsql.Times) (mark int64, err error) {
	var phase int
	err = tx.QueryRowContext(ctx, phaseSQL, id, times.Now, times.Clients).Scan(&phase, &mark)
	if errors.Is(err, sql.ErrNoRows) { // another server was faster
		return 0, nil
	}
	if phase != recordsql.Silent {
		mark = 0
	}
	return mark, err
}

// forget removes a client's old answers. Their rows stay.
func (r *Records) forget(ctx context.Context, id, at int64) (removed int, err error) {
	for from := int64(0); from < recordsql.Collected; {
		to := recordsql.Collected
		err := r.db.Reader().QueryRowContext(ctx, boundarySQL, id, from, recordsql.Step).Scan(&to)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return removed, err
		}
		var some bool // a look without the write lock
		if err := r.db.Reader().QueryRowContext(ctx, oldSQL, id, at, from, to).Scan(&some); err != nil {
			return removed, err
		}
		if some {
			n, err := r.forgetStep(ctx, id, at, from, to)
			removed += n
			if err != nil {
				return removed, err
			}
		}
		from = to
	}
	return removed, nil
}

func (r *Records) forgetStep(ctx context.Context, id, at, from, to int64) (n int, err error) {
	err = r.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) (err error) {
		n, err = forgetIn(ctx, tx, id, at, from, to)
		return err
	})
	return n, err
}

func forgetIn(ctx context.Context, tx *sqlite.Tx, id, at, from, to int64) (n int, err error) {
	if _, err := tx.ExecContext(ctx, heardSQL, id, at, from, to); err != nil {
		return 0, err
	}
	return execIn(ctx, tx, forgetSQL, id, at, from, to)
}

func describe(what string, req exactlyonce.Request, err error) error {
	return fmt.Errorf("sqliterecords: %s %s of scope %q: %w", what, req.ID, req.Scope, explain(err))
}

func explain(err error) error {
	return sqlmigrate.Explain(err, "sqliterecords.Records.Migrate", "weir_clients", "weir_answers")
}
