package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.InOrder = (*Engine)(nil)

// parked is the time of a message that is due behind the head of its key. Workers of
// earlier versions do not take it.
const parked = "'9999-12-30 00:00:00+00'::timestamptz"

// A message is parked only behind the head of its key: the transaction that parks it
// locks the head (FOR KEY SHARE) until it has committed. A transaction that removes a
// head appoints the next one in a later statement, which therefore sees all messages that
// were parked behind the head. Both need statements with snapshots of their own: READ
// COMMITTED. TakeInOrder does not wait for locks, since it would hold others meanwhile:
// it leaves a message alone whose head is locked, and the removal of that head wakes
// consumers.
//
// At most one message of a key is a head: the index weir_messages_head is unique. That
// decides between two transactions that make heads of the same key, when the message with
// the lower position was committed after the other message.

// inSteps begins a transaction whose statements see what others have committed before
// each of them. The server ends the transaction of a frozen process.
var inSteps = pgx.TxOptions{BeginQuery: "begin isolation level read committed; set local idle_in_transaction_session_timeout = '30s'"}

// Candidates of a step of TakeInOrder: conditions on all messages that are due, up to $2,
// and on the messages at the positions $3 that are still due.
const (
	candidatesDue   = `queue = $1 AND at <= (SELECT now FROM clock)` + storesql.ExceptRefused + ` ORDER BY at, position LIMIT $2`
	candidatesGiven = `position = ANY ($3::bigint[]) AND queue = $1 AND at <= (SELECT now FROM clock) ORDER BY at, position LIMIT $2`
)

// TakeInOrder implements [store.InOrder].
func (s *Engine) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	if err := storearg.Take(queue, limit, lease); err != nil {
		return nil, err
	}
	s.ordered.Store(queue, nil)
	if err := s.sweep(ctx, queue); err != nil {
		return nil, err
	}
	looked := min(limit, storesql.MaxInOrder)
	for {
		var parks bool
		err = s.do(ctx, func() error {
			taken, parks, err = s.takeInOrderAround(ctx, queue, looked, min(limit, storesql.MaxInOrder), lease)
			return err
		})
		if err != nil || len(taken) > 0 || !parks {
			return taken, err
		}
		looked = storesql.MaxInOrder // others may be due behind them
	}
}

// takeInOrderAround is a step of TakeInOrder without the messages that the database
// refuses to lease: see leaseAround. parks reports whether it has parked messages.
func (s *Engine) takeInOrderAround(ctx context.Context, queue string, looked, limit int, lease time.Duration) (taken []store.Leased, parks bool, err error) {
	call := s.newLease(ctx, queue)
	call.All = func() (leased []store.Leased, err error) {
		leased, parks, err = s.takeHeads(ctx, queue, limit, lease, s.refused.Except(candidatesDue, s.clock.Now()), queue, looked)
		return leased, err
	}
	call.Find = func() ([]int64, error) {
		rows, err := s.pool.Query(ctx, `WITH clock AS MATERIALIZED (SELECT `+s.now+` AS now)
			SELECT position FROM weir_messages WHERE `+s.refused.Except(candidatesDue, s.clock.Now()), queue, looked)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	call.These = func(positions []int64) (leased []store.Leased, err error) {
		leased, parks, err = s.takeHeads(ctx, queue, limit, lease, candidatesGiven, queue, len(positions), positions)
		return leased, err
	}
	taken, err = call.Lease(&s.refused)
	return taken, parks, err
}

// takeHeads leases up to limit heads of keys, and messages without a key, of the
// candidates that a condition chooses. It parks the other candidates.
func (s *Engine) takeHeads(ctx context.Context, queue string, limit int, lease time.Duration, candidates string, args ...any) (taken []store.Leased, parks bool, err error) {
	err = retry(func() error {
		err := pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) error {
			taken, parks = nil, false
			found, err := s.lockCandidates(ctx, tx, candidates, args...)
			if err != nil || len(found) == 0 {
				return err
			}
			keys, err := s.keyStates(ctx, tx, queue, storesql.Needs(found))
			if err != nil {
				return err
			}
			plan := storesql.Plan(found, keys, limit)
			parks, err = s.park(ctx, tx, &plan)
			if err != nil {
				return err
			}
			taken, err = s.leaseHeads(ctx, tx, queue, plan.Take, lease)
			return err
		})
		s.step()
		return asConflict(err)
	})
	return taken, parks, err
}

// asConflict returns an error that retry and do repeat for the error of two transactions
// that make heads of the same key.
func asConflict(err error) error {
	e, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || e.ConstraintName != "weir_messages_head" {
		return err
	}
	return &pgconn.PgError{Severity: "ERROR", Code: "40001", Message: "two transactions have made heads of the same key: " + e.Message}
}

// lockCandidates locks messages that no other call has locked.
func (s *Engine) lockCandidates(ctx context.Context, tx pgx.Tx, condition string, args ...any) (found []storesql.Candidate, err error) {
	s.step()
	err = indexed(ctx, tx, func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		var c storesql.Candidate
		_, err = pgx.ForEachRow(rows, []any{&c.Position, &c.Size, &c.Key, &c.IsHead}, func() error {
			found = append(found, c)
			c.Key = nil
			return nil
		})
		return err
	}, `WITH clock AS MATERIALIZED (SELECT `+s.now+` AS now)
		SELECT position, coalesce(octet_length(payload), 0), meta->>'key', head FROM weir_messages WHERE `+condition+` FOR UPDATE SKIP LOCKED`, args...)
	s.step()
	return found, err
}

// firstOfKey selects the first message of the key k.key in the queue k.queue. It compares
// rows, and not columns, so that PostgreSQL can use no other index for the order. The
// first row behind the comparison may belong to another key.
const firstOfKey = `(SELECT CASE WHEN f.queue = k.queue AND f.meta->>'key' = k.key THEN f.position END FROM weir_messages AS f
		WHERE f.meta->>'key' IS NOT NULL AND (f.queue, (f.meta->>'key') COLLATE "C", f.position) > (k.queue, k.key COLLATE "C", 0::bigint)
		ORDER BY f.queue, (f.meta->>'key') COLLATE "C", f.position LIMIT 1)`

// headOfKey selects the head of the key k.key in the queue k.queue.
const headOfKey = `(SELECT f.position FROM weir_messages AS f WHERE f.head AND f.queue = k.queue AND (f.meta->>'key') COLLATE "C" = k.key COLLATE "C")`

// keyStates returns the states of keys.
func (s *Engine) keyStates(ctx context.Context, tx pgx.Tx, queue string, names []string) (map[string]storesql.KeyState, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `SELECT k.key, coalesce(`+headOfKey+`, 0), coalesce(`+firstOfKey+`, 0)
		FROM (SELECT $1::text AS queue, key FROM unnest((SELECT $2::text[])) AS u (key)) AS k`, queue, names)
	if err != nil {
		return nil, err
	}
	keys := map[string]storesql.KeyState{}
	var key string
	var k storesql.KeyState
	_, err = pgx.ForEachRow(rows, []any{&key, &k.Head, &k.First}, func() error {
		keys[key] = k
		return nil
	})
	s.step()
	return keys, err
}

// park parks messages behind heads that it can lock. It makes heads of the messages of
// plan.Become.
func (s *Engine) park(ctx context.Context, tx pgx.Tx, plan *storesql.OrderPlan) (parks bool, err error) {
	if len(plan.Park) == 0 {
		return false, nil
	}
	_, err = tx.Exec(ctx, `UPDATE weir_messages SET head = true WHERE position = ANY (ARRAY(
		SELECT position FROM weir_messages WHERE position = ANY ($1::bigint[]) FOR NO KEY UPDATE SKIP LOCKED))`, plan.Become)
	if err != nil {
		return false, err
	}
	s.step()
	var heads []int64
	for head := range plan.Park {
		heads = append(heads, head)
	}
	// A head that this call takes is locked already, and is marked as a head afterwards.
	rows, err := tx.Query(ctx, `SELECT position FROM weir_messages WHERE position = ANY ($1::bigint[]) AND (head OR position = ANY ($2::bigint[]))
		FOR KEY SHARE SKIP LOCKED`, heads, plan.Take)
	if err != nil {
		return false, err
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return false, err
	}
	s.step()
	var positions []int64
	for _, head := range locked {
		positions = append(positions, plan.Park[head]...)
	}
	if len(positions) == 0 {
		return false, nil
	}
	_, err = tx.Exec(ctx, "UPDATE weir_messages SET at = "+parked+" WHERE position = ANY ($1::bigint[])", positions)
	s.step()
	return true, err
}

// leaseHeads leases messages, in the order of positions. It counts the leases that have
// ended (law W2).
func (s *Engine) leaseHeads(ctx context.Context, tx pgx.Tx, queue string, positions []int64, lease time.Duration) (taken []store.Leased, err error) {
	if len(positions) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `UPDATE weir_messages AS m SET at = now + $2 * interval '1 microsecond', leased = now + $2 * interval '1 microsecond',
			fence = fence + 1, lapses = lapses + (leased IS NOT NULL)::int, head = meta->>'key' IS NOT NULL
		FROM (SELECT `+s.now+` AS now) AS clock WHERE m.position = ANY ($1::bigint[]) RETURNING `+columns+`, m.lapses`, positions, micros(lease))
	var lapses int
	err = scan(rows, err, func(m store.Message, position, fence int64, damage error) {
		taken = append(taken, store.Leased{
			Message: m, Position: position, Lapses: lapses, Damage: damage,
			Lease: store.Lease{Queue: queue, Entry: strconv.FormatInt(position, 10), Fence: uint64(fence)},
		})
	}, &lapses)
	s.step()
	slices.SortFunc(taken, func(a, b store.Leased) int {
		return slices.Index(positions, a.Position) - slices.Index(positions, b.Position)
	})
	return taken, err
}

// queueKey is a key in a queue, as the column meta has it.
type queueKey struct{ queue, key string }

// appoint makes the first messages of keys that do not have a head their heads. A message
// that is due is due since now, so that it comes after the heads of other keys that have
// waited longer. It repeats the statement for keys whose first message was removed
// meanwhile.
func (s *Engine) appoint(ctx context.Context, tx pgx.Tx, keys []queueKey) error {
	for len(keys) > 0 {
		var queues, names []string
		for _, k := range keys {
			queues, names = append(queues, k.queue), append(names, k.key)
		}
		// PostgreSQL expects an array to be short, so it does not scan the table.
		rows, err := tx.Query(ctx, `WITH first AS MATERIALIZED (
				SELECT DISTINCT k.queue, k.key, `+firstOfKey+` AS position
				FROM unnest((SELECT $1::text[]), (SELECT $2::text[])) AS k (queue, key) WHERE NOT EXISTS `+headOfKey+`
			), appointed AS (
				UPDATE weir_messages AS m SET head = true, at = CASE WHEN m.at = `+parked+` THEN now ELSE greatest(m.at, now) END
				FROM (SELECT `+s.now+` AS now) AS clock WHERE m.position = ANY (ARRAY(SELECT position FROM first)) RETURNING m.position
			)
			SELECT queue, key FROM first WHERE position IS NOT NULL AND position NOT IN (SELECT position FROM appointed)`, queues, names)
		if err != nil {
			return err
		}
		keys = nil
		var k queueKey
		_, err = pgx.ForEachRow(rows, []any{&k.queue, &k.key}, func() error {
			keys = append(keys, k)
			return nil
		})
		s.step()
		if err != nil {
			return asConflict(err)
		}
	}
	return nil
}

// wakeQueues notifies the consumers of queues that have new heads.
func (s *Engine) wakeQueues(keys []queueKey) {
	seen := map[string]bool{}
	for _, k := range keys {
		if seen[k.queue] {
			continue
		}
		seen[k.queue] = true
		s.note(k.queue, dues{now: true})
	}
}

// selectKeysSwept selects the next keys of the queue $1 after $2, and for each whether
// messages of the key are parked although it does not have a head. The last row has no
// key if there are no more keys.
var selectKeysSwept = `WITH RECURSIVE keys (key, looked) AS (
		SELECT ` + nextKey("$2") + `, 1
		UNION ALL
		SELECT ` + nextKey("keys.key") + `, looked + 1 FROM keys WHERE key IS NOT NULL AND looked < ` + storesql.KeysSwept + `
	)
	SELECT k.key, EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` = k.key AND at = ` + parked + `)
		AND NOT EXISTS ` + headOfKey + `
	FROM (SELECT $1::text AS queue, key, looked FROM keys) AS k ORDER BY looked`

// sweep makes heads for keys whose messages are parked behind a message that a program of
// an earlier version has settled, for a thousand keys at a time.
func (s *Engine) sweep(ctx context.Context, queue string) error {
	after, isDue := s.sweeps.Begin(queue, s.clock.Now())
	if !isDue {
		return nil
	}
	var orphans []queueKey
	next := ""
	err := s.do(ctx, func() error {
		orphans, next = nil, ""
		var hasParked bool
		err := s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND at = "+parked+")", queue).Scan(&hasParked)
		if err != nil || !hasParked {
			return err
		}
		err = indexed(ctx, s.pool, func(rows pgx.Rows, err error) error {
			if err != nil {
				return err
			}
			var key *string
			var isOrphan bool
			_, err = pgx.ForEachRow(rows, []any{&key, &isOrphan}, func() error {
				next = "" // in the last row if there are no more keys
				if key != nil {
					next = *key
				}
				if isOrphan {
					orphans = append(orphans, queueKey{queue, next})
				}
				return nil
			})
			return err
		}, selectKeysSwept, queue, after)
		if err != nil || len(orphans) == 0 {
			return err
		}
		return pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) error { return s.appoint(ctx, tx, orphans) })
	})
	if err != nil {
		return err
	}
	s.wakeQueues(orphans)
	s.sweeps.End(queue, next, s.clock.Now())
	return nil
}

// Replace implements [store.InOrder].
func (s *Engine) Replace(ctx context.Context, rs ...store.Replacement) error {
	if err := storearg.Replace(rs...); err != nil {
		return err
	}
	rows := make([]storesql.Row, len(rs))
	for i := range rs {
		var err error
		rows[i], err = storesql.NewRow(rs[i].Lease.Queue, &rs[i].Message)
		if err != nil {
			return err
		}
	}
	var lost []store.Lease
	var freed []queueKey
	err := s.do(ctx, func() error {
		return pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) error {
			lost, freed = nil, nil
			for i := range rs {
				isLost, heads, err := s.replace(ctx, tx, rs[i].Lease, &rows[i])
				if err != nil {
					return err
				}
				freed = append(freed, heads...)
				if isLost {
					lost = append(lost, rs[i].Lease)
				}
			}
			return s.appoint(ctx, tx, freed)
		})
	})
	if err != nil {
		return err
	}
	s.wakeQueues(freed)
	for i := range rs {
		s.note(rs[i].Lease.Queue, duesOf(rows[i:i+1]))
	}
	return storearg.Lost(lost)
}

// replace puts a row in the place of a message. If the row is queued already, it removes
// the message, and returns its key if it was the head.
func (s *Engine) replace(ctx context.Context, tx pgx.Tx, lease store.Lease, r *storesql.Row) (isLost bool, heads []queueKey, err error) {
	e, ok := entryOf(lease)
	if !ok {
		return true, nil, nil
	}
	s.step()
	var key *string
	var isTwin bool
	err = tx.QueryRow(ctx, `SELECT meta->>'key', EXISTS (SELECT 1 FROM weir_messages AS o WHERE o.queue = m.queue AND o.position <> m.position
			AND o.meta->>'id' = $4::text::jsonb->>'id' AND o.visit = $5 AND o.merges = $6
			AND coalesce(o.meta->'headers'->>'Weir-Put', '') = coalesce($4::text::jsonb->'headers'->>'Weir-Put', ''))
		FROM weir_messages AS m WHERE m.position = $1 AND m.queue = $2 AND m.fence = $3 AND m.leased IS NOT NULL FOR UPDATE`,
		e.position, e.queue, e.fence, r.MetaColumn, r.Meta.Visit, r.Meta.Merges).Scan(&key, &isTwin)
	if errors.Is(err, pgx.ErrNoRows) {
		return true, nil, nil
	}
	if err != nil {
		return false, nil, err
	}
	old := ""
	if key != nil {
		old = storesql.Key(*key)
	}
	if old != r.Meta.Key {
		return false, nil, storearg.KeyChanged(r.Meta.ID, old, r.Meta.Key)
	}
	if isTwin {
		_, heads, err = s.remove(ctx, tx, "position = $1", e.position)
		return false, heads, err
	}
	_, err = tx.Exec(ctx, `UPDATE weir_messages SET at = now + $2 * interval '1 microsecond', due = now + $2 * interval '1 microsecond',
			leased = NULL, lapses = 0, visit = $3, merges = $4, cause = $5, meta = $6::text::jsonb, schema = $7, payload = $8
		FROM (SELECT `+s.now+` AS now) AS clock WHERE position = $1`,
		e.position, micros(r.Delay), r.Meta.Visit, r.Meta.Merges, storesql.Readable(string(r.Cause)), r.MetaColumn, r.Schema, r.Payload)
	s.step()
	return false, nil, err
}

// remove removes messages, and returns how many, and the keys of the heads among them.
func (s *Engine) remove(ctx context.Context, tx pgx.Tx, condition string, args ...any) (n int, heads []queueKey, err error) {
	s.step()
	rows, err := tx.Query(ctx, "WITH removed AS (DELETE FROM weir_messages WHERE "+condition+` RETURNING queue, CASE WHEN head THEN meta->>'key' END AS key)
		SELECT queue, key, count(*) FROM removed GROUP BY 1, 2`, args...)
	if err != nil {
		return 0, nil, err
	}
	var queue string
	var key *string
	var of int
	_, err = pgx.ForEachRow(rows, []any{&queue, &key, &of}, func() error {
		n += of
		if key != nil {
			heads = append(heads, queueKey{queue, *key})
		}
		key = nil
		return nil
	})
	s.step()
	if err != nil {
		return 0, nil, fmt.Errorf("remove messages: %w", err)
	}
	return n, heads, nil
}
