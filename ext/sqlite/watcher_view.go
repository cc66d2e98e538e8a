package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/weirflow/weir/internal/wait"
)

// view is the connection of a watcher. It belongs to the watcher's goroutine.
type view struct {
	pool    *sql.DB
	conn    *sql.Conn
	version *sql.Stmt
	highest *sql.Stmt
	times   *sql.Stmt
	seen    *int64 // the data version as of the last check; nil before the first
}

// selectVersion returns a number that changes when another connection has committed.
const selectVersion = "PRAGMA data_version"

// selectTimes returns when the first message of each queue in $1 (JSON) can be taken. If
// that is not after $2, it also returns the first time after $2.
const selectTimes = `SELECT value, first, CASE WHEN first <= $2 THEN
			(SELECT at FROM weir_messages WHERE queue = value AND at > $2 ORDER BY at LIMIT 1)
		END FROM (
			SELECT value, (SELECT at FROM weir_messages WHERE queue = value ORDER BY at LIMIT 1) AS first FROM json_each($1)
		)`

type dueTimes struct {
	queue string
	isDue bool          // a message can be taken now
	later time.Duration // until the next message can be taken; 0 if no other waits
}

func openView(ctx context.Context, db *DB) (*view, error) {
	pool, err := open(ctx, db.readName, 1)
	if err != nil {
		return nil, err
	}
	v := &view{pool: pool}
	err = v.prepare(ctx)
	if err != nil {
		v.close()
		return nil, err
	}
	return v, nil
}

func (v *view) prepare(ctx context.Context) (err error) {
	v.conn, err = v.pool.Conn(ctx) // data versions of two connections cannot be compared
	if err != nil {
		return err
	}
	v.version, err = v.conn.PrepareContext(ctx, selectVersion)
	if err != nil {
		return err
	}
	v.highest, err = v.conn.PrepareContext(ctx, "SELECT "+highestClock)
	if err != nil {
		return err
	}
	v.times, err = v.conn.PrepareContext(ctx, selectTimes)
	return err
}

func (v *view) close() {
	if v.conn != nil {
		_ = v.conn.Close()
	}
	_ = v.pool.Close()
}

// hasChanged reports whether the database has changed since the last call. The first
// returns true.
func (v *view) hasChanged(ctx context.Context) (bool, error) {
	var version int64
	// The pragma does not wait for others. A context that may end would cost two
	// goroutines.
	err := v.version.QueryRowContext(context.WithoutCancel(ctx)).Scan(&version)
	if err != nil {
		return false, err
	}
	hasChanged := v.seen == nil || version != *v.seen
	v.seen = &version
	return hasChanged, nil
}

// look returns the due times of queues, by the clock of the store.
func (v *view) look(ctx context.Context, queues []string, clock *wait.Forward) (all []dueTimes, err error) {
	names, err := json.Marshal(queues)
	if err != nil {
		return nil, err
	}
	var highest int64
	err = v.highest.QueryRowContext(ctx).Scan(&highest)
	if err != nil {
		return nil, err
	}
	now := nanos(clock.AtLeast(time.Unix(0, highest)), 0)
	rows, err := v.times.QueryContext(ctx, string(names), now)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var t dueTimes
		var first, later *int64
		err = rows.Scan(&t.queue, &first, &later)
		if err != nil {
			return nil, err
		}
		t.isDue = first != nil && *first <= now
		if !t.isDue {
			later = first
		}
		if later != nil {
			t.later = time.Duration(*later - now)
		}
		all = append(all, t)
	}
	return all, rows.Err()
}
