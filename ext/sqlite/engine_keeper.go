package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

// never is the time of a held message in the column at. Only this time marks a held
// message, so workers of earlier versions do not take it either. The column due keeps its
// due time.
const never = math.MaxInt64

var neverText = strconv.FormatInt(never, 10)

// Records implements [store.Keeper].
func (s *Engine) Records(ctx context.Context, kind, after string, limit int) (list []store.Record, err error) {
	err = s.do(ctx, func() error {
		list, err = records(ctx, s.db.Reader(), kind, after, limit)
		return err
	})
	return list, err
}

func records(ctx context.Context, q interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, kind, after string, limit int,
) (list []store.Record, err error) {
	rows, err := q.QueryContext(ctx, "SELECT name, version, value FROM weir_records WHERE kind = $1 AND name > $2 ORDER BY name LIMIT $3", kind, after, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is looked at
	for rows.Next() {
		r := store.Record{Kind: kind}
		if err := rows.Scan(&r.Name, &r.Version, &r.Value); err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, rows.Err()
}

// Update implements [store.Keeper].
func (s *Engine) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	return s.do(ctx, func() error {
		err := s.db.Write(ctx, func(ctx context.Context, tx *Tx) error {
			s.step()
			var highest int64
			if err := tx.QueryRowContext(ctx, setClock, nanos(s.clock.Now(), 0)).Scan(&highest); err != nil {
				return err
			}
			s.step()
			return f(ctx, &keeperTx{s, tx, s.clock.AtLeast(time.Unix(0, highest))})
		})
		s.step()
		return err
	})
}

type keeperTx struct {
	s   *Engine
	tx  *Tx
	now time.Time
}

func (t *keeperTx) Now() time.Time { return t.now }

// Announce implements [store.Tx].
func (*keeperTx) Announce() {}

// Watch implements [store.Keeper]: SQLite does not notify other processes.
func (*Engine) Watch(context.Context, func()) error { return errors.ErrUnsupported }

func (t *keeperTx) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	return records(ctx, t.tx, kind, after, limit)
}

func (t *keeperTx) Write(ctx context.Context, r store.Record) error {
	if err := storearg.Record(r); err != nil {
		return err
	}
	query, args := storesql.WriteRecord(r)
	result, err := t.tx.ExecContext(ctx, query, args...)
	t.s.step()
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = store.ErrChanged
	}
	return err
}

func (t *keeperTx) Edit(ctx context.Context, edits ...store.Edit) ([]bool, error) {
	if err := storearg.Edits(edits...); err != nil {
		return nil, err
	}
	done := make([]bool, len(edits))
	for i := range edits {
		var err error
		done[i], err = t.edit(ctx, &edits[i])
		t.s.step()
		if err != nil {
			return nil, err
		}
	}
	return done, nil
}

// free is the condition of a message that is not leased, and was not taken since it was
// listed: it has the same fencing number.
const free = ` WHERE position = $1 AND queue = $2 AND fence = $3 AND (leased IS NULL OR leased <= $4)`

func (t *keeperTx) edit(ctx context.Context, e *store.Edit) (done bool, err error) {
	now, position := nanos(t.now, 0), e.Entry.Position
	listed := []any{position, e.Queue, int64(e.Entry.Fence), now} //nolint:gosec // it comes from the database
	switch e.Do {
	case store.Merge:
		r, err := storesql.NewRow(e.To, &e.Entry.Message)
		if err != nil {
			return false, err
		}
		at := nanos(t.now, r.Delay)
		put, err := changedRow(t.tx.ExecContext(ctx, `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta, schema, payload)
			SELECT $5, $6, $6, $4, $7, $8, $9, $10, $11, $12 FROM weir_messages`+free+` ON CONFLICT DO NOTHING`,
			append(listed, r.Queue, at, r.Meta.Visit, r.Meta.Merges, string(r.Cause), r.MetaColumn, r.Schema, r.Payload)...))
		if err != nil || !put {
			return false, err
		}
		t.s.step()
		t.tx.noteDue(r.Queue, r.Delay)
		return t.remove(ctx, e.Queue, position)
	case store.Hold:
		return changedRow(t.tx.ExecContext(ctx, "UPDATE weir_messages SET at = $5, leased = NULL"+free+" AND at < $5", append(listed, int64(never))...))
	case store.Release:
		t.tx.noteDue(e.Queue, 0) // its consumers check whether it is due
		return changedRow(t.tx.ExecContext(ctx, "UPDATE weir_messages SET at = due"+free+" AND at = $5", append(listed, int64(never))...))
	case store.Due:
		t.tx.noteDue(e.Queue, 0)
		return changedRow(t.tx.ExecContext(ctx, "UPDATE weir_messages SET at = $4, due = $4"+free+" AND at > $4 AND at < $5", append(listed, int64(parked))...))
	default: // Purge
		return t.remove(ctx, e.Queue, position)
	}
}

// remove removes a message of a queue. If it was the head of its key, the next one
// becomes the head.
func (t *keeperTx) remove(ctx context.Context, queue string, position int64) (removed bool, err error) {
	n, err := t.s.removeRows(ctx, t.tx, t.now, queue, "position = $1 AND queue = $2", position, queue)
	return n > 0, err
}
