package keys

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"time"
)

// Info is the stored state of a request, without its content and its response.
type Info struct {
	ID        string
	User      string
	Key       string
	Operation string
	Point     string // the last step that is done
	Runs      int64  // how many runs it had
	Created   time.Time
	LastRun   time.Time
	Locked    time.Time // since when a run has the lock; zero: it is not locked
	Expires   time.Time // when the retention is over
	Finished  bool
}

// Filter chooses requests. An empty field chooses all.
type Filter struct {
	User, Key, Operation string
	Finished             bool // include finished requests
}

// List returns the requests in a database, the oldest first. It does not need [Keys]: it is for tools.
func List(ctx context.Context, db *sql.DB, f Filter) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		fail := func(err error) { yield(Info{}, fmt.Errorf("keys: list: %w", explain(err))) }
		rows, err := db.QueryContext(ctx, listSQL, f.User, f.Key, f.Operation, f.Finished)
		if err != nil {
			fail(err)
			return
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var i Info
			var created, lastRun, expires int64
			var locked sql.NullInt64
			err := rows.Scan(&i.ID, &i.User, &i.Key, &i.Operation, &i.Point, &i.Runs, &created, &lastRun, &locked, &expires, &i.Finished)
			if err != nil {
				fail(err)
				return
			}
			i.Created, i.LastRun, i.Expires = time.UnixMicro(created).UTC(), time.UnixMicro(lastRun).UTC(), time.UnixMicro(expires).UTC()
			if locked.Valid {
				i.Locked = time.UnixMicro(locked.Int64).UTC()
			}
			if !yield(i, nil) {
				return
			}
		}
		if err := rows.Err(); err != nil {
			fail(err)
		}
	}
}
