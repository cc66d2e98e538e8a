package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

var dialect = storesql.Dialect{
	Key:       keyOf,
	HasReason: "meta->'reasons' ? %s",
	HasError:  "strpos(meta->>'lastError', %s) > 0",
	// Rounding up makes both bounds of a filter choose the same messages: stored times
	// have microseconds.
	Time: func(t time.Time) any {
		if up := t.Truncate(time.Microsecond); up.Before(t) {
			return up.Add(time.Microsecond)
		}
		return t
	},
}

// where returns the condition of a page of a queue, and its order. Its parameters follow
// args: queue, After, Until, and the filter's. Adding 0 to position keeps PostgreSQL from
// scanning the queue if the filter has ids, or a key on the first page: these have an
// index. Later pages of a key go by position, to skip the earlier messages.
//
// Other pages need the index of queue and position. With a plan for all parameters,
// PostgreSQL would take the primary key, and read the messages of other queues before the
// page. It does not regard a queue in an array as a constant, so only that index has the
// order.
func where(queue string, f *store.Filter, p store.Page, args ...any) (condition, order string, _ []any, err error) {
	until := p.Until
	if until == 0 {
		until = math.MaxInt64
	}
	n := len(args)
	condition, args, err = storesql.Where(dialect, f, append(args, queue, p.After, until))
	ofQueue := "queue = " + storesql.Param(n+1)
	position := "position"
	order = position
	switch {
	case len(f.IDs) > 0 || f.Key != "" && p.After == 0:
		position = "position + 0"
		order = position
	case f.Key == "" && p.Max > 0:
		ofQueue = "queue = ANY (ARRAY[" + storesql.Param(n+1) + "::text])"
		order = "queue, position"
	}
	condition = ofQueue + " AND " + position + " > " + storesql.Param(n+2) + " AND " + position + " <= " + storesql.Param(n+3) + condition
	return condition, " ORDER BY " + order, args, err
}

// List implements [store.Inspector].
func (s *Engine) List(ctx context.Context, queue string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	if err := storearg.Page(queue, p); err != nil {
		return nil, err
	}
	err = s.do(ctx, func() error {
		list, err = s.list(ctx, s.pool, queue, f, p)
		return err
	})
	return list, err
}

var _ store.Snapshotter = (*Engine)(nil)

// Snapshot implements [store.Snapshotter].
func (s *Engine) Snapshot(ctx context.Context,
	f func(list func(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error)) error,
) error {
	const begin = patientBegin + "; set transaction isolation level repeatable read, read only"
	return s.do(ctx, func() error {
		return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{BeginQuery: begin}, func(tx pgx.Tx) error {
			return f(func(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
				if err := storearg.Page(queue, p); err != nil {
					return nil, err
				}
				return s.list(ctx, tx, queue, f, p)
			})
		})
	})
}

func (s *Engine) list(ctx context.Context, q batcher, queue string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	condition, order, args, err := where(queue, &f, p, p.Max)
	if err != nil {
		return nil, err
	}
	var arrived time.Time
	var leased *time.Time
	var held bool
	err = indexed(ctx, q, func(rows pgx.Rows, err error) error {
		return scan(rows, err, func(m store.Message, position, fence int64, _ error) {
			e := store.Entry{Message: m, Position: position, Fence: uint64(fence), Arrived: arrived.UTC(), Held: held}
			if leased != nil {
				e.LeasedUntil = leased.UTC()
			}
			list = append(list, e)
		}, &arrived, &leased, &held)
	}, `WITH chosen AS MATERIALIZED (SELECT position, coalesce(octet_length(payload), 0) AS size FROM weir_messages WHERE `+condition+order+` LIMIT $1),
			fitting AS (SELECT position, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM chosen)
			SELECT `+columns+", arrived, CASE WHEN leased > "+s.now+` THEN leased END, at = `+never+` FROM weir_messages AS m
			WHERE m.position = ANY (ARRAY(SELECT position FROM fitting WHERE before < `+strconv.Itoa(storearg.MaxBytes)+`)) ORDER BY position`, args...)
	return list, err
}

// Count implements [store.Inspector].
func (s *Engine) Count(ctx context.Context, queue string, f store.Filter) (c store.Counts, err error) {
	condition, _, args, err := where(queue, &f, store.Page{})
	if err != nil {
		return c, err
	}
	err = s.do(ctx, func() error {
		rows, err := s.pool.Query(ctx, "SELECT cause, meta->'reasons', count(*), min(arrived), min(at) FILTER (WHERE at < "+parked+"), max(position), (SELECT "+s.now+
			"), count(*) FILTER (WHERE at = "+never+") FROM weir_messages WHERE "+condition+" GROUP BY 1, 2", args...)
		if err != nil {
			return err
		}
		var cause string
		var column []byte
		var n, held int
		var oldest, now time.Time
		var next *time.Time
		var last int64
		_, err = pgx.ForEachRow(rows, []any{&cause, &column, &n, &oldest, &next, &last, &now, &held}, func() error {
			var first time.Time
			if next != nil {
				first = next.UTC()
			}
			next = nil
			c.Held += held
			var reasons []string
			if json.Unmarshal(column, &reasons) != nil {
				reasons = nil // absent or damaged
			}
			c.Add(store.Cause(cause), reasons, n, oldest.UTC(), first, last)
			return nil
		})
		c.SetAge(now)
		return err
	})
	return c, err
}

// purgeStep is how many messages a statement of Purge looks at.
const purgeStep = 1000

// Purge implements [store.Inspector]. It works in steps, since holders of leases would
// wait for a single statement.
func (s *Engine) Purge(ctx context.Context, queue string, f store.Filter) (n int, err error) {
	condition, args, err := storesql.Where(dialect, &f, []any{queue, int64(0), int64(math.MaxInt64)})
	if err != nil {
		return 0, err
	}
	if len(f.IDs) > 0 { // few, and there is an index
		return s.purge(ctx, "queue = $1 AND position + 0 > $2 AND position + 0 <= $3"+condition, args)
	}
	condition = "queue = $1 AND position > $2 AND position <= $3" + condition
	var until int64
	err = s.do(ctx, func() error {
		return s.pool.QueryRow(ctx, "SELECT coalesce(max(position), 0) FROM weir_messages WHERE queue = $1", queue).Scan(&until)
	})
	for after := int64(0); err == nil && after < until; {
		last := until
		err = s.do(ctx, func() error {
			return indexed(ctx, s.pool, func(rows pgx.Rows, err error) error {
				if err != nil {
					return err
				}
				_, err = pgx.ForEachRow(rows, []any{&last}, func() error { return nil })
				return err
			}, `SELECT position FROM weir_messages WHERE queue = $1 AND position > $2 AND position <= $3
				ORDER BY position LIMIT 1 OFFSET $4`, queue, after, until, purgeStep-1)
		})
		if err == nil {
			args[1], args[2] = after, last
			var removed int
			removed, err = s.purge(ctx, condition, args)
			n += removed
		}
		after = last
	}
	return n, err
}

// purge removes messages in a transaction, and returns how many. The next messages of
// their keys become heads.
func (s *Engine) purge(ctx context.Context, condition string, args []any) (n int, err error) {
	var heads []queueKey
	err = s.do(ctx, func() error {
		return pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) (err error) {
			n, heads, err = s.remove(ctx, tx, condition, args...)
			if err != nil {
				return err
			}
			return s.appoint(ctx, tx, heads)
		})
	})
	if err != nil {
		return 0, err
	}
	s.wakeQueues(heads)
	return n, nil
}

// Claim implements [store.Inspector].
func (s *Engine) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) (taken []store.Leased, err error) {
	if err := errors.Join(storearg.Page(queue, p), storearg.Take(queue, p.Max, lease)); err != nil {
		return nil, err
	}
	condition, order, args, err := where(queue, &f, p, micros(lease), p.Max)
	if err != nil {
		return nil, err
	}
	err = s.do(ctx, func() (err error) {
		taken, err = s.lease(ctx, queue, nil, condition+" AND at < "+never+" AND (leased IS NULL OR leased <= (SELECT now FROM clock))"+order+" LIMIT $2", args...)
		return err
	})
	slices.SortFunc(taken, func(a, b store.Leased) int { return cmp.Compare(a.Position, b.Position) })
	return taken, err
}

// HandOver implements [store.Inspector].
func (s *Engine) HandOver(ctx context.Context, moves ...store.Move) error {
	if err := storearg.Move(moves...); err != nil {
		return err
	}
	rows, err := storesql.MovedRows(moves)
	if err != nil {
		return err
	}
	call := &putting{rows: rows, of: make([]origin, len(moves))}
	for i := range moves {
		call.of[i] = origin{messageOf(moves[i].Lease), moves[i].Visit}
	}
	err = s.do(ctx, func() error {
		if len(call.rows) == 0 {
			return nil
		}
		return s.puts.Do(ctx, call)
	})
	if err != nil {
		return err
	}
	byQueue := map[string][]storesql.Row{}
	for _, r := range call.rows {
		byQueue[r.Queue] = append(byQueue[r.Queue], r)
	}
	for queue, rows := range byQueue {
		s.note(queue, duesOf(rows))
	}
	return storearg.Lost(storearg.Gone(moves, func(m *store.Move) bool {
		visit, isLeft := call.left[messageOf(m.Lease)]
		return isLeft && !storearg.IsReplaced(m, visit)
	}))
}

// messageOf returns the message of a lease without the fencing number, or the zero entry
// for no lease. An entry of another store has the position -1, which no message has.
func messageOf(l store.Lease) entry {
	if l == (store.Lease{}) {
		return entry{}
	}
	e, ok := entryOf(l)
	if !ok {
		return entry{position: -1, queue: l.Queue}
	}
	return entry{position: e.position, queue: e.queue}
}

// Move implements [store.Inspector].
func (s *Engine) Move(ctx context.Context, moves ...store.Move) error {
	if err := storearg.Move(moves...); err != nil {
		return err
	}
	if len(moves) == 0 {
		return s.do(ctx, func() error { return nil })
	}
	rows, call := map[store.Lease]storesql.Row{}, &settling{}
	for i := range moves {
		r, err := storesql.NewRow(moves[i].Queue, &moves[i].Message)
		if err != nil {
			return err
		}
		rows[moves[i].Lease] = r
		call.leases = append(call.leases, moves[i].Lease)
	}
	var heads []queueKey
	err := s.do(ctx, func() error {
		return pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) error {
			batch := []*settling{call}
			settled, removed, err := s.settleBy(ctx, tx, deletion+returnsHead, leasesOf(batch))
			if err != nil {
				return err
			}
			heads = removed
			noteLost(batch, settled)
			err = s.appoint(ctx, tx, heads)
			if err != nil {
				return err
			}
			var moved []storesql.Row
			for _, l := range call.leases {
				if !slices.Contains(call.lost, l) {
					moved = append(moved, rows[l])
				}
			}
			if len(moved) == 0 {
				return nil
			}
			return s.insert(ctx, tx, moved)
		})
	})
	if err != nil {
		return err
	}
	s.wakeQueues(heads)
	for _, r := range rows {
		s.note(r.Queue, duesOf([]storesql.Row{r}))
	}
	return storearg.Lost(call.lost)
}

// Queues implements [store.Inspector].
func (s *Engine) Queues(ctx context.Context) (names []string, err error) {
	err = s.do(ctx, func() error {
		// One step of an index for each queue.
		rows, err := s.pool.Query(ctx, `WITH RECURSIVE q(name) AS (
			(SELECT queue FROM weir_messages ORDER BY queue LIMIT 1)
			UNION ALL
			SELECT (SELECT queue FROM weir_messages WHERE queue > name ORDER BY queue LIMIT 1) FROM q WHERE name IS NOT NULL
			) SELECT name FROM q WHERE name IS NOT NULL ORDER BY name COLLATE "C"`)
		if err != nil {
			return err
		}
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return names, err
}
