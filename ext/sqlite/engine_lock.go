package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/internal/storearg"
)

type locks struct{ store *Engine }

// Locks implements [store.Keeper]. The locks are in the database, and use the engine's
// clock. For a lock without queues, use [lock.TryFile]: it needs no tables, and ends with
// its process.
func (s *Engine) Locks() lock.Locks { return &locks{s} }

// Acquire implements [lock.Locks].
func (l *locks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (g lock.Grant, err error) {
	if err := storearg.Lock(name, owner, lease); err != nil {
		return g, err
	}
	var held *lock.Holding
	err = l.store.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		held = nil
		if err := l.forget(ctx, tx, now); err != nil {
			return err
		}
		var fence int64
		err := tx.QueryRowContext(ctx, `INSERT INTO weir_locks (name, owner, fence, until) 
			VALUES ($1, $2, coalesce((SELECT fence FROM weir_locks WHERE name = ''), 0) + 1, $3)
			ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = fence + 1, until = excluded.until
			WHERE owner = '' OR until <= $4 RETURNING fence`, name, owner, nanos(now, lease), nanos(now, 0)).Scan(&fence)
		if errors.Is(err, sql.ErrNoRows) {
			held = &lock.Holding{Grant: lock.Grant{Name: name}}
			var until int64
			err := tx.QueryRowContext(ctx, "SELECT owner, until FROM weir_locks WHERE name = $1", name).Scan(&held.Owner, &until)
			held.For = time.Unix(0, until).Sub(now)
			return err
		}
		g = lock.Grant{Name: name, Owner: owner, Fence: uint64(fence)}
		return err
	})
	switch {
	case err != nil:
		return lock.Grant{}, err
	case held != nil:
		return lock.Grant{}, held
	}
	return g, nil
}

const (
	forgetEach = time.Minute
	forgetMax  = 1000           // names at once
	keepLocks  = 24 * time.Hour // after the last lease
)

// forget removes names that were not used for long (law W3). The row with the empty name
// keeps their highest fencing number.
func (l *locks) forget(ctx context.Context, tx *Tx, now time.Time) error {
	s := l.store
	if nanos(now, 0) < s.forgetAt.Load() {
		return nil
	}
	var n int
	var fence sql.NullInt64
	old := []any{nanos(now, -keepLocks), forgetMax}
	const oldest = "(SELECT name, fence FROM weir_locks WHERE until <= $1 ORDER BY until, name LIMIT $2)"
	if err := tx.QueryRowContext(ctx, "SELECT count(*), max(fence) FROM "+oldest, old...).Scan(&n, &fence); err != nil {
		return err
	}
	if n > 0 {
		result, err := tx.ExecContext(ctx, "UPDATE weir_locks SET fence = max(fence, $1) WHERE name = ''", fence.Int64)
		if err != nil {
			return err
		}
		if floor, err := result.RowsAffected(); err != nil || floor == 0 { // a table of an older version
			return err
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM weir_locks WHERE name IN (SELECT name FROM "+oldest+")", old...); err != nil {
			return err
		}
	}
	if n < forgetMax {
		s.forgetAt.Store(nanos(now, forgetEach))
	}
	return nil
}

// Extend implements [lock.Locks].
func (l *locks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if err := storearg.Extend(d); err != nil {
		return err
	}
	return l.change(ctx, g, func(now time.Time) (string, []any) { return "until = $4", []any{nanos(now, d)} })
}

// Release implements [lock.Locks].
func (l *locks) Release(ctx context.Context, g lock.Grant) error {
	return l.change(ctx, g, func(time.Time) (string, []any) { return "owner = ''", nil })
}

// Held implements [lock.Locks].
func (l *locks) Held(ctx context.Context, prefix string) (held []lock.Holding, err error) {
	err = l.store.do(ctx, func() error {
		now, err := l.store.now(ctx)
		if err != nil {
			return err
		}
		rows, err := l.store.db.Reader().QueryContext(ctx, `SELECT name, owner, fence, until FROM weir_locks
			WHERE substr(name, 1, length($1)) = $1 AND owner <> '' AND until > $2 ORDER BY name`, prefix, nanos(now, 0))
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var h lock.Holding
			var fence, until int64
			if err := rows.Scan(&h.Name, &h.Owner, &fence, &until); err != nil {
				return err
			}
			h.Fence, h.For = uint64(fence), time.Unix(0, until).Sub(now)
			held = append(held, h)
		}
		return rows.Err()
	})
	return held, err
}

func (l *locks) change(ctx context.Context, g lock.Grant, set func(now time.Time) (string, []any)) error {
	var changed int64
	err := l.store.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		what, args := set(now)
		result, err := tx.ExecContext(ctx, "UPDATE weir_locks SET "+what+" WHERE name = $1 AND owner = $2 AND owner <> '' AND fence = $3",
			append([]any{g.Name, g.Owner, int64(g.Fence)}, args...)...)
		if err != nil {
			return err
		}
		changed, err = result.RowsAffected()
		return err
	})
	if err == nil && changed == 0 {
		err = lock.ErrLost
	}
	return err
}

// execer is the caller's transaction: a *[sql.Tx] or a *[Tx].
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Guard returns nil if a grant is valid, and keeps it valid until the transaction ends.
// Call it in the transaction of a write, and roll back if it returns [lock.ErrLost] or
// another error.
func (s *Engine) Guard(ctx context.Context, tx execer, g lock.Grant) error {
	// A write locks the database, so the grant cannot change before the transaction ends.
	result, err := tx.ExecContext(ctx, "UPDATE weir_locks SET fence = fence WHERE name = $1 AND owner = $2 AND owner <> '' AND fence = $3",
		g.Name, g.Owner, int64(g.Fence))
	if err != nil {
		return explain(err)
	}
	n, err := result.RowsAffected()
	if err == nil && n == 0 {
		err = lock.ErrLost
	}
	return err
}
