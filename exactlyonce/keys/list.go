package keys

import (
	"context"
	"database/sql"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/weirflow/weir/internal/varint"
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
	Status    int // of the response; 0: it is not finished
}

// Filter chooses requests. An empty field chooses all.
type Filter struct {
	User, Key, Operation string
	Finished             bool // include finished requests
}

// query returns the statement for a filter: with a user and a key it finds one row of an index.
func (f Filter) query() (query string, args []any) {
	var b strings.Builder
	b.WriteString(listSQL)
	for _, c := range []struct{ column, value string }{{"principal", f.User}, {"idempotency_key", f.Key}, {"operation", f.Operation}} {
		if c.value != "" {
			args = append(args, c.value)
			fmt.Fprintf(&b, " AND %s = $%d", c.column, len(args))
		}
	}
	if !f.Finished {
		b.WriteString(" AND response IS NULL")
	}
	b.WriteString(" ORDER BY created_at, id")
	return b.String(), args
}

// statusOf reads the status in the first bytes of a response: behind the version of [exactlyonce.Response.Encode].
func statusOf(response []byte) int {
	in := varint.Reader{Rest: response}
	if in.Byte() != 1 {
		return 0
	}
	return int(min(in.Uvarint(), 999)) //nolint:gosec // it is small
}

// List returns the requests that match, the oldest first.
func (k *Keys) List(ctx context.Context, f Filter) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		fail := func(err error) { yield(Info{}, fmt.Errorf("keys: list: %w", explain(err))) }
		query, args := f.query()
		rows, err := k.db.QueryContext(ctx, query, args...)
		if err != nil {
			fail(err)
			return
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var i Info
			var created, lastRun, expires int64
			var locked sql.NullInt64
			var response []byte
			err := rows.Scan(&i.ID, &i.User, &i.Key, &i.Operation, &i.Point, &i.Runs, &created, &lastRun, &locked, &expires, &response)
			if err != nil {
				fail(err)
				return
			}
			i.Created, i.LastRun, i.Expires = time.UnixMicro(created).UTC(), time.UnixMicro(lastRun).UTC(), time.UnixMicro(expires).UTC()
			i.Finished, i.Status = response != nil, statusOf(response)
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
