package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

var dialect = storesql.Dialect{
	Key:       "meta->>'key'",
	HasReason: "EXISTS (SELECT 1 FROM json_each(meta, '$.reasons') WHERE value = %s)",
	HasError:  "instr(meta->>'lastError', %s) > 0",
	Time:      func(t time.Time) any { return timeArg(t) },
}

func timeArg(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, math.MinInt64)):
		return math.MinInt64
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	default:
		return t.UnixNano()
	}
}

// page returns the condition of a page of a queue, and its ORDER BY and LIMIT. A + keeps
// SQLite from scanning the queue if the filter has ids, which have an index.
// weir_messages_order has a key's messages by position.
func page(queue string, f *store.Filter, p store.Page) (where, order string, args []any, err error) {
	until := p.Until
	if until == 0 {
		until = math.MaxInt64
	}
	position := "position"
	if len(f.IDs) > 0 {
		position = "+position"
	}
	where, args, err = storesql.Where(dialect, f, []any{queue, p.After, until, p.Max})
	return " WHERE queue = $1 AND " + position + " > $2 AND " + position + " <= $3" + where, " ORDER BY " + position + " LIMIT $4", args, err
}

// List implements [store.Inspector].
func (s *Engine) List(ctx context.Context, queue string, f store.Filter, p store.Page) (list []store.Entry, err error) {
	if err := storearg.Page(queue, p); err != nil {
		return nil, err
	}
	where, order, args, err := page(queue, &f, p)
	if err != nil {
		return nil, err
	}
	err = s.do(ctx, func() error {
		t, err := s.now(ctx)
		if err != nil {
			return err
		}
		now := nanos(t, 0)
		var arrived, at int64
		var leased sql.NullInt64
		rows, err := s.db.Reader().QueryContext(ctx, "SELECT "+columns+`, arrived, leased, at FROM weir_messages
			WHERE position IN (SELECT position FROM (SELECT position, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS before FROM (
				SELECT `+sized+` FROM weir_messages`+where+order+`
			)) WHERE before < `+storesql.Param(len(args)+1)+") ORDER BY position", append(args, storearg.MaxBytes)...)
		return scan(rows, err, func(m store.Message, position, fence int64, _ error) {
			e := store.Entry{Message: m, Position: position, Fence: uint64(fence), Arrived: time.Unix(0, arrived).UTC(), Held: at == never}
			if leased.Valid && leased.Int64 > now {
				e.LeasedUntil = time.Unix(0, leased.Int64).UTC()
			}
			list = append(list, e)
		}, &arrived, &leased, &at)
	})
	return list, err
}

// Count implements [store.Inspector].
func (s *Engine) Count(ctx context.Context, queue string, f store.Filter) (c store.Counts, err error) {
	where, args, err := storesql.Where(dialect, &f, []any{queue})
	if err != nil {
		return c, err
	}
	err = s.do(ctx, func() error {
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		rows, err := s.db.Reader().QueryContext(ctx, `SELECT cause, meta->'reasons', count(*), min(arrived), min(at), max(position), sum(at = `+neverText+`)
			FROM weir_messages WHERE queue = $1`+where+" GROUP BY 1, 2", args...)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var cause string
			var column []byte
			var n, oldest, next, last, held int64
			if err := rows.Scan(&cause, &column, &n, &oldest, &next, &last, &held); err != nil {
				return err
			}
			var reasons []string
			if json.Unmarshal(column, &reasons) != nil {
				reasons = nil // absent or damaged
			}
			var first time.Time
			if next < parked {
				first = time.Unix(0, next).UTC()
			}
			c.Held += int(held)
			c.Add(store.Cause(cause), reasons, int(n), time.Unix(0, oldest).UTC(), first, last)
		}
		c.SetAge(now)
		return rows.Err()
	})
	return c, err
}

// purgeStep is how many messages a transaction of Purge looks at.
const purgeStep = 1000

// Purge implements [store.Inspector]. It works in steps, since other writers wait for
// each.
func (s *Engine) Purge(ctx context.Context, queue string, f store.Filter) (n int, err error) {
	if len(f.IDs) > 0 { // few, and there is an index
		where, args, err := storesql.Where(dialect, &f, []any{queue})
		if err != nil {
			return 0, err
		}
		return s.remove(ctx, queue, "queue = $1"+where, args)
	}
	where, args, err := storesql.Where(dialect, &f, []any{queue, int64(0), int64(0)})
	if err != nil {
		return 0, err
	}
	where = "queue = $1 AND position > $2 AND position <= $3" + where
	var until int64
	err = s.do(ctx, func() error {
		return s.db.Reader().QueryRowContext(ctx, "SELECT coalesce(max(position), 0) FROM weir_messages WHERE queue = $1", queue).Scan(&until)
	})
	for after := int64(0); err == nil && after < until; {
		last := until
		var some bool
		err = s.do(ctx, func() error { // without the write lock
			err := s.db.Reader().QueryRowContext(ctx, `SELECT position FROM weir_messages WHERE queue = $1 AND position > $2 AND position <= $3
				ORDER BY position LIMIT 1 OFFSET $4`, queue, after, until, purgeStep-1).Scan(&last)
			if err != nil && !errors.Is(err, sql.ErrNoRows) {
				return err
			}
			args[1], args[2] = after, last
			return s.db.Reader().QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM weir_messages WHERE "+where+")", args...).Scan(&some)
		})
		if err == nil && some {
			var removed int
			removed, err = s.remove(ctx, queue, where, args)
			n += removed
		}
		after = last
	}
	return n, err
}

func (s *Engine) remove(ctx context.Context, queue, where string, args []any) (n int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		n, err = s.removeRows(ctx, tx, now, queue, where, args...)
		return err
	})
	return n, err
}

// Claim implements [store.Inspector]. It searches without the write lock, since that
// takes long if few messages match.
func (s *Engine) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, lease time.Duration) (taken []store.Leased, err error) {
	if err := errors.Join(storearg.Page(queue, p), storearg.Take(queue, p.Max, lease)); err != nil {
		return nil, err
	}
	for len(taken) == 0 {
		chosen, err := s.claimable(ctx, queue, &f, p)
		if err != nil || len(chosen) == 0 {
			return nil, err
		}
		s.step()
		taken, err = s.claim(ctx, queue, chosen, lease)
		if err != nil {
			return nil, err
		}
		p.After = chosen[len(chosen)-1]
	}
	slices.SortFunc(taken, func(a, b store.Leased) int { return cmp.Compare(a.Position, b.Position) })
	return taken, nil
}

func (s *Engine) claimable(ctx context.Context, queue string, f *store.Filter, p store.Page) (positions []int64, err error) {
	where, order, args, err := page(queue, f, p)
	if err != nil {
		return nil, err
	}
	query := "SELECT position FROM weir_messages" + where +
		" AND at < " + neverText + " AND (leased IS NULL OR leased <= " + storesql.Param(len(args)+1) + ")" + order
	return s.readPositions(ctx, query, func(now time.Time) []any { return append(args, nanos(now, 0)) })
}

// readPositions returns the positions that a query selects. args has its arguments at a
// time.
func (s *Engine) readPositions(ctx context.Context, query string, args func(now time.Time) []any) (positions []int64, err error) {
	err = s.do(ctx, func() error {
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		rows, err := s.db.Reader().QueryContext(ctx, query, args(now)...)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var position int64
			if err := rows.Scan(&position); err != nil {
				return err
			}
			positions = append(positions, position)
		}
		return rows.Err()
	})
	return positions, err
}

// positionsFree selects the messages of $1 that are neither leased nor held. For the +,
// see page.
var positionsFree = `SELECT ` + sized + ` FROM weir_messages WHERE position IN (SELECT value FROM json_each($1)) AND +queue = $2
	AND +at < ` + neverText + ` AND (leased IS NULL OR leased <= $3) ORDER BY position LIMIT $4`

// claim leases the messages that are still there and neither leased nor held. It does not
// filter again. So it also leases a message that another worker has changed since the
// search, by Amend or Replace, and that may no longer match.
func (s *Engine) claim(ctx context.Context, queue string, positions []int64, lease time.Duration) (taken []store.Leased, err error) {
	given, err := json.Marshal(positions)
	if err != nil {
		return nil, err
	}
	return s.takeThese(ctx, queue, positionsFree, string(given), len(positions), lease)
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
	positions := []int64{} // JSON: never null
	for i := range moves {
		position, err := strconv.ParseInt(moves[i].Lease.Entry, 10, 64)
		if err == nil {
			positions = append(positions, position)
		}
	}
	of, err := json.Marshal(positions)
	if err != nil {
		return err
	}
	var gone []store.Lease
	err = s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		there, err := s.messagesAt(ctx, tx, string(of))
		if err != nil {
			return err
		}
		s.step()
		gone = storearg.Gone(moves, func(m *store.Move) bool {
			at, ok := there[m.Lease.Entry]
			return ok && at.queue == m.Lease.Queue && !storearg.IsReplaced(m, at.visit)
		})
		isGone := make(map[store.Lease]bool, len(gone))
		for _, l := range gone {
			isGone[l] = true
		}
		kept := make([]storesql.Row, 0, len(rows))
		for i := range rows {
			if !isGone[moves[i].Lease] {
				kept = append(kept, rows[i])
			}
		}
		return putRows(ctx, tx, now, kept, s.step)
	})
	if err != nil {
		return err
	}
	return storearg.Lost(gone)
}

type messageAt struct {
	queue string
	visit int
}

// messagesAt returns the messages at positions, a JSON array, by [store.Lease.Entry].
func (s *Engine) messagesAt(ctx context.Context, tx *Tx, positions string) (map[string]messageAt, error) {
	rows, err := tx.QueryContext(ctx, `SELECT position, queue, visit FROM weir_messages WHERE position IN (SELECT value FROM json_each($1))`, positions)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is looked at
	messages := map[string]messageAt{}
	for rows.Next() {
		var position int64
		var at messageAt
		err = rows.Scan(&position, &at.queue, &at.visit)
		if err != nil {
			return nil, err
		}
		messages[strconv.FormatInt(position, 10)] = at
	}
	return messages, rows.Err()
}

// Move implements [store.Inspector].
func (s *Engine) Move(ctx context.Context, moves ...store.Move) error {
	if err := storearg.Move(moves...); err != nil {
		return err
	}
	rows, err := storesql.MovedRows(moves)
	if err != nil {
		return err
	}
	leases := make([]store.Lease, len(moves))
	for i := range moves {
		leases[i] = moves[i].Lease
	}
	return s.settle(ctx, leases, func(ctx context.Context, tx *Tx, now time.Time, l leaseArgs) (changed bool, err error) {
		removed, err := l.remove(ctx, s, tx, now)
		if err != nil || !removed {
			return false, err
		}
		s.step()
		return true, putRows(ctx, tx, now, rows[l.index:l.index+1], func() {})
	})
}

// Queues implements [store.Inspector].
func (s *Engine) Queues(ctx context.Context) (names []string, err error) {
	err = s.do(ctx, func() error {
		// One step of an index for each queue.
		rows, err := s.db.Reader().QueryContext(ctx, `WITH RECURSIVE q(name) AS (
			SELECT min(queue) FROM weir_messages
			UNION ALL
			SELECT (SELECT min(queue) FROM weir_messages WHERE queue > name) FROM q WHERE name IS NOT NULL
			) SELECT name FROM q WHERE name IS NOT NULL`)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				return err
			}
			names = append(names, name)
		}
		return rows.Err()
	})
	return names, err
}
