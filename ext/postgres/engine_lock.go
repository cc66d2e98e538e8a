package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/internal/storearg"
)

type locks struct{ store *Engine }

// Locks implements [store.Keeper]. The locks are in the database, whose clock decides how
// long a lease lasts. Acquire waits for transactions with a [Engine.Guard] of the lock.
func (s *Engine) Locks() lock.Locks { return &locks{s} }

// Acquire implements [lock.Locks].
func (l *locks) Acquire(ctx context.Context, name, owner string, lease time.Duration) (g lock.Grant, err error) {
	if err := storearg.Lock(name, owner, lease); err != nil {
		return g, err
	}
	l.forget(ctx)
	g = lock.Grant{Name: name, Owner: owner}
	held := &lock.Holding{Grant: lock.Grant{Name: name}}
	for {
		var got, found bool
		err = l.store.do(ctx, func() error {
			err := l.store.pool.QueryRow(ctx, `INSERT INTO weir_locks AS l (name, owner, fence, until)
				VALUES ($1, $2, `+firstFence+`, `+l.store.now+` + $3 * interval '1 microsecond')
				ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = l.fence + 1, until = excluded.until
				WHERE l.owner = '' OR l.until <= `+l.store.now+` RETURNING fence`, name, owner, micros(lease)).Scan(&g.Fence)
			got = err == nil
			if got || !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			var micros int64
			err = l.store.pool.QueryRow(ctx, "SELECT owner, ceil(extract(epoch FROM until - "+l.store.now+`) * 1000000)::bigint FROM weir_locks
				WHERE name = $1 AND owner <> '' AND until > `+l.store.now, name).Scan(&held.Owner, &micros)
			held.For = time.Duration(micros) * time.Microsecond
			found = err == nil
			if errors.Is(err, pgx.ErrNoRows) {
				return nil // free by now: try again
			}
			return err
		})
		switch {
		case err != nil:
			return lock.Grant{}, err
		case got:
			return g, nil
		case found:
			return lock.Grant{}, held
		}
	}
}

// firstFence is the first fencing number of a name. FOR SHARE waits for a transaction
// that removes the name, to read its number.
const firstFence = "coalesce((SELECT fence FROM weir_locks WHERE name = '' FOR SHARE), 0) + 1"

const (
	forgetEach = time.Minute
	forgetMax  = 1000           // names at once
	keepLocks  = 24 * time.Hour // after the last lease
)

// forget removes names that were not used for long (law W3). The row with the empty name
// keeps their highest fencing number. If it fails, a later call does it.
func (l *locks) forget(ctx context.Context) {
	s := l.store
	now, at := s.clock.Now(), s.forgetAt.Load()
	if now.UnixNano() < at || !s.forgetAt.CompareAndSwap(at, now.Add(forgetEach).UnixNano()) {
		return
	}
	// The transaction is one message, so a frozen process blocks no other. It first locks
	// the row with the empty name, which Acquire reads.
	batch := &pgx.Batch{}
	batch.Queue("SELECT 1 FROM weir_locks WHERE name = '' FOR UPDATE")
	batch.Queue(`WITH old AS (DELETE FROM weir_locks WHERE EXISTS (SELECT FROM weir_locks WHERE name = '') AND name IN (
			SELECT name FROM weir_locks WHERE until <= `+s.now+` - $1 * interval '1 microsecond' ORDER BY until LIMIT $2 FOR UPDATE SKIP LOCKED
		) RETURNING fence)
		UPDATE weir_locks AS l SET fence = greatest(l.fence, removed.fence) FROM (SELECT max(fence) AS fence, count(*) AS n FROM old) AS removed
			WHERE l.name = '' RETURNING removed.n`, micros(keepLocks), forgetMax).QueryRow(func(row pgx.Row) error {
		var n int
		err := row.Scan(&n)
		if err == nil && n == forgetMax { // there are more
			s.forgetAt.Store(0)
		}
		return err
	})
	_ = s.do(ctx, func() error { return s.pool.SendBatch(ctx, batch).Close() })
}

// Extend implements [lock.Locks].
func (l *locks) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	if err := storearg.Extend(d); err != nil {
		return err
	}
	return l.change(ctx, g, "until = "+l.store.now+" + $4 * interval '1 microsecond'", micros(d))
}

// Release implements [lock.Locks].
func (l *locks) Release(ctx context.Context, g lock.Grant) error {
	return l.change(ctx, g, "owner = ''")
}

// Held implements [lock.Locks].
func (l *locks) Held(ctx context.Context, prefix string) (held []lock.Holding, err error) {
	err = l.store.do(ctx, func() error {
		rows, err := l.store.pool.Query(ctx, "SELECT name, owner, fence, ceil(extract(epoch FROM until - "+l.store.now+`) * 1000000)::bigint FROM weir_locks
			WHERE starts_with(name, $1) AND owner <> '' AND until > `+l.store.now+` ORDER BY name COLLATE "C"`, prefix)
		if err != nil {
			return err
		}
		held, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (h lock.Holding, err error) {
			var micros int64
			err = row.Scan(&h.Name, &h.Owner, &h.Fence, &micros)
			h.For = time.Duration(micros) * time.Microsecond
			return h, err
		})
		return err
	})
	return held, err
}

const ofGrant = " WHERE name = $1 AND owner = $2 AND owner <> '' AND fence = $3"

func (l *locks) change(ctx context.Context, g lock.Grant, set string, args ...any) error {
	var changed int64
	err := l.store.do(ctx, func() error {
		tag, err := l.store.pool.Exec(ctx, "UPDATE weir_locks SET "+set+ofGrant, append([]any{g.Name, g.Owner, int64(g.Fence)}, args...)...)
		changed = tag.RowsAffected()
		return err
	})
	if err == nil && changed == 0 {
		err = lock.ErrLost
	}
	return err
}

// Guard returns nil if a grant is valid, and keeps it valid until the transaction ends:
// other owners wait. Call it in the transaction of a write, and roll back if it returns
// [lock.ErrLost] or another error.
func (s *Engine) Guard(ctx context.Context, tx pgx.Tx, g lock.Grant) error {
	var one int
	err := tx.QueryRow(ctx, "SELECT 1 FROM weir_locks"+ofGrant+" FOR SHARE", g.Name, g.Owner, int64(g.Fence)).Scan(&one)
	if errors.Is(err, pgx.ErrNoRows) {
		return lock.ErrLost
	}
	return explain(err)
}
