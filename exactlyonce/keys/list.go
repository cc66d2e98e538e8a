package keys

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"math"
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
	Point     string // last completed step
	Runs      int64
	Created   time.Time
	LastRun   time.Time
	Locked    time.Time // start of the current lock; zero if not locked
	Expires   time.Time // end of the retention
	Finished  bool
	Status    int // HTTP status of the response; 0 if unfinished
}

// Filter selects requests. An empty field matches all requests.
type Filter struct {
	User, Key, Operation string
	Finished             bool // include finished requests
}

// query returns the statement for a page of requests after a position. With user and key
// it uses an index.
func (f Filter) query(after position) (query string, args []any) {
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
	n := len(args)
	fmt.Fprintf(&b, " AND (created_at, id) > ($%d, $%d) ORDER BY created_at, id LIMIT $%d", n+1, n+2, n+3)
	return b.String(), append(args, after.createdAt, after.id, page)
}

// position is a place in the order of List.
type position struct {
	createdAt int64 // in microseconds since 1970
	id        string
}

// statusOf reads the status from a stored response, after the version byte.
func statusOf(response []byte) int {
	in := varint.Reader{Rest: response}
	if in.Byte() != 1 {
		return 0
	}
	return int(min(in.Uvarint(), 999)) //nolint:gosec // at most 999
}

// List returns the matching requests, the oldest first. It holds no connection while the
// loop's body runs, so the body may use the database, for example for [Keys.End]. It is
// not a snapshot: a request created, ended or removed meanwhile may or may not be listed.
// The last element may be an error of the database.
func (k *Keys) List(ctx context.Context, f Filter) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		after := position{createdAt: math.MinInt64}
		for more := true; more; {
			infos, err := k.listPage(ctx, f, &after)
			if err != nil {
				yield(Info{}, fmt.Errorf("keys: list: %w", explain(err)))
				return
			}
			for _, i := range infos {
				if !yield(i, nil) {
					return
				}
			}
			more = len(infos) == page
		}
	}
}

func (k *Keys) listPage(ctx context.Context, f Filter, after *position) (infos []Info, err error) {
	query, args := f.query(*after)
	rows, err := k.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		i, err := scanInfo(rows)
		if err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		infos = append(infos, i)
		*after = position{i.Created.UnixMicro(), i.ID}
	}
	return infos, errors.Join(rows.Err(), rows.Close())
}

func scanInfo(rows *sql.Rows) (i Info, err error) {
	var createdAt, lastRun, expires int64
	var locked sql.NullInt64
	var response []byte
	err = rows.Scan(&i.ID, &i.User, &i.Key, &i.Operation, &i.Point, &i.Runs, &createdAt, &lastRun, &locked, &expires, &response)
	i.Created = time.UnixMicro(createdAt).UTC()
	i.LastRun = time.UnixMicro(lastRun).UTC()
	i.Expires = time.UnixMicro(expires).UTC()
	i.Finished = response != nil
	i.Status = statusOf(response)
	if locked.Valid {
		i.Locked = time.UnixMicro(locked.Int64).UTC()
	}
	return i, err
}
