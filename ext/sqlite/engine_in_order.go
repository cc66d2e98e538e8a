package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.InOrder = (*Engine)(nil)

// parked is the time of a message that is due behind the head of its key. Workers of
// earlier versions do not take it.
const parked = never - 1

var parkedText = strconv.FormatInt(parked, 10)

const candidate = `SELECT position, coalesce(length(payload), 0), meta->>'key', head FROM weir_messages`

// Candidates of a step of TakeInOrder in the queue $2 at the time $3, up to $4:
//
//	candidatesDue     all messages that are due; $1 is empty
//	candidatesOfKeys  of each key in $1 the head, or else the first message; only if it is due
//	candidatesGiven   the messages at the positions in $1, if they are still due
var (
	candidatesDue    = candidate + ` WHERE queue = $2 AND at <= $3 AND $1 = ''` + storesql.ExceptRefused + ` ORDER BY at, position LIMIT $4`
	candidatesOfKeys = candidate + ` WHERE position IN (SELECT coalesce((` + headOfKey("$2", "value") + `), (` + firstOfKey("$2", "value") + `)) FROM json_each($1))
		AND +queue = $2 AND +at <= $3` + storesql.ExceptRefused + ` ORDER BY at, position LIMIT $4`
	candidatesGiven = candidate + ` WHERE position IN (SELECT value FROM json_each($1)) AND +queue = $2 AND +at <= $3` + storesql.ExceptRefused + ` ORDER BY at, position LIMIT $4`
)

// selectAhead reads messages of the queue $1 behind the place ($2, $3). It returns the
// messages without a key that are due at $4, the last due message, and the number of due
// messages. It reads two ranges, since SQLite does not compare both columns by the index.
// A refused message is not free: ExceptRefused extends the expression of is_free by a
// condition.
var selectAhead = `WITH ahead AS MATERIALIZED (
		SELECT * FROM (` + ahead + ` AND at = $2 AND position > $3` + limitAhead + `)
		UNION ALL SELECT * FROM (` + ahead + ` AND at > $2` + limitAhead + `)` + limitAhead + `
	), due AS (SELECT at, position, lacks_key` + storesql.ExceptRefused + ` AS is_free FROM ahead WHERE at <= $4),
	last AS (SELECT position FROM due ORDER BY at DESC, position DESC LIMIT 1)
	SELECT at, position, is_free, (SELECT count(*) FROM due) FROM due WHERE is_free OR position = (SELECT position FROM last) ORDER BY at, position`

const ahead = `SELECT at, position, meta->>'key' IS NULL AS lacks_key FROM weir_messages WHERE queue = $1`

var limitAhead = ` ORDER BY at, position LIMIT ` + strconv.Itoa(storesql.AheadInOrder)

// headOfKey selects the head of a key in a queue: both are expressions.
func headOfKey(queue, key string) string {
	return `SELECT position FROM weir_messages WHERE queue = ` + queue + ` AND meta->>'key' = ` + key + ` AND head = 1`
}

// firstOfKey selects the first message of a key in a queue at the time $3. A message that
// was set aside is not the first one.
func firstOfKey(queue, key string) string {
	return `SELECT position FROM weir_messages WHERE queue = ` + queue + ` AND meta->>'key' IS NOT NULL AND meta->>'key' = ` + key + `
		AND (at - $3 <= ` + halfForGood + ` OR at >= ` + parkedText + `) ORDER BY position LIMIT 1`
}

var halfForGood = strconv.FormatInt(int64(storearg.ForGood/2), 10)

var selectKeyState = `SELECT coalesce((` + headOfKey("$1", "$2") + `), 0), coalesce((` + firstOfKey("$1", "$2") + `), 0)`

// appointNext makes the first message of a key the head. If it is due it is due since $3,
// so that it comes after the heads of other keys that have waited longer.
var appointNext = `UPDATE weir_messages SET head = 1, at = CASE WHEN at = ` + parkedText + ` THEN $3 ELSE max(at, $3) END
	WHERE position = (` + firstOfKey("$1", "$2") + `) AND NOT EXISTS (` + headOfKey("$1", "$2") + `)`

// becomeHead makes the message at $1 the head of its key, at the time $2. It may be
// parked behind a head that an earlier version has settled.
var becomeHead = `UPDATE weir_messages SET head = 1, at = CASE WHEN at = ` + parkedText + ` THEN $2 ELSE at END WHERE position = $1`

// TakeInOrder implements [store.InOrder].
func (s *Engine) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	if err := storearg.Take(queue, limit, lease); err != nil {
		return nil, err
	}
	if err := s.sweep(ctx, queue); err != nil {
		return nil, err
	}
	limit = min(limit, storesql.MaxInOrder)
	// The first step looks at limit messages, and each further step at StepInOrder. Only
	// after a step that looks at StepInOrder messages or more does a call look behind
	// them. Otherwise calls with a small limit would always find messages there, and each
	// call would park only a few messages of a flood of one key in front.
	looked := limit
	for range storesql.StepsInOrder {
		due, err := s.anyDue(ctx, queue)
		if !due || err != nil {
			return nil, err
		}
		taken, parks, err := s.takeInOrderAround(ctx, queue, candidatesDue, "", looked, limit, lease)
		if err != nil || len(taken) > 0 || !parks {
			return taken, err
		}
		isFullStep := looked >= storesql.StepInOrder
		looked = storesql.StepInOrder
		if !isFullStep {
			continue
		}
		taken, err = s.takeFromBehind(ctx, queue, limit, lease)
		if err != nil || len(taken) > 0 {
			return taken, err
		}
	}
	s.db.watcher.note(dues{queue: due{later: storesql.PauseInOrder}})
	return nil, nil
}

// takeFromBehind takes messages that are due behind many messages of other keys.
func (s *Engine) takeFromBehind(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	ofKeys := func() ([]store.Leased, error) { return s.takeOfNextKeys(ctx, queue, limit, lease) }
	withoutKey := func() ([]store.Leased, error) { return s.takeWithoutKey(ctx, queue, limit, lease) }
	return s.searches.TakeByTurns(queue, ofKeys, withoutKey)
}

// takeWithoutKey takes messages without a key among the next messages that are due. They
// do not wait until the messages in front of them are parked.
func (s *Engine) takeWithoutKey(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	ahead, err := s.readAhead(ctx, queue, s.searches.Begin(queue, s.clock.Now()))
	if err != nil {
		return nil, err
	}
	ahead.Limit(limit)
	if len(ahead.Free) > 0 {
		positions, err := json.Marshal(ahead.Positions())
		if err != nil {
			return nil, err
		}
		taken, _, err = s.takeInOrderAround(ctx, queue, candidatesGiven, string(positions), limit, limit, lease)
		if err != nil {
			return nil, err
		}
	}
	s.searches.Continue(queue, &ahead, len(taken), s.clock.Now())
	return taken, nil
}

// readAhead is a step of a search for messages without a key. It takes no write lock.
func (s *Engine) readAhead(ctx context.Context, queue string, after storesql.Place) (ahead storesql.Ahead, err error) {
	ahead.To = after
	err = s.do(ctx, func() error {
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		rows, err := s.db.Reader().QueryContext(ctx, s.refused.Except(selectAhead, s.clock.Now()), queue, after.At, after.Position, nanos(now, 0))
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		read := 0
		for rows.Next() {
			var isFree bool
			err = rows.Scan(&ahead.To.At, &ahead.To.Position, &isFree, &read)
			if err != nil {
				return err
			}
			if isFree {
				ahead.Free = append(ahead.Free, ahead.To)
			}
		}
		ahead.IsEnd = read < storesql.AheadInOrder
		return rows.Err()
	})
	return ahead, err
}

// takeOfNextKeys takes the heads of the next keys that have messages that are due. While
// many messages of a key are in front, other keys do not wait until all are parked.
func (s *Engine) takeOfNextKeys(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	due, err := s.dueKeys(ctx, queue, s.rounds.After(queue), limit, store.KeyRound{})
	if err != nil {
		return nil, err
	}
	s.rounds.Continue(queue, due.Next)
	if len(due.Keys) == 0 {
		return nil, nil
	}
	keys, err := json.Marshal(due.Keys)
	if err != nil {
		return nil, err
	}
	taken, _, err = s.takeInOrderAround(ctx, queue, candidatesOfKeys, string(keys), limit, limit, lease)
	return taken, err
}

// takeInOrderAround is a step of TakeInOrder without the messages that a trigger or a
// check refuses to lease: see takeAround. parks reports whether it has parked messages.
func (s *Engine) takeInOrderAround(ctx context.Context, queue, candidates, argument string, looked, limit int, lease time.Duration) (taken []store.Leased, parks bool, err error) {
	call := s.newTakeCall(ctx, queue)
	call.All = func() (leased []store.Leased, err error) {
		leased, parked, err := s.takeHeads(ctx, queue, s.refused.Except(candidates, s.clock.Now()), argument, looked, limit, lease)
		parks = parks || parked && err == nil
		return leased, err
	}
	call.Find = func() ([]int64, error) {
		query := `SELECT position FROM (` + s.refused.Except(candidates, s.clock.Now()) + `)`
		return s.readPositions(ctx, query, func(now time.Time) []any { return []any{argument, queue, nanos(now, 0), looked} })
	}
	call.These = func(positions []int64) (leased []store.Leased, err error) {
		given, err := json.Marshal(positions)
		if err != nil {
			return nil, err
		}
		leased, parked, err := s.takeHeads(ctx, queue, candidatesGiven, string(given), len(positions), limit, lease)
		parks = parks || parked && err == nil
		return leased, err
	}
	taken, err = call.Do(&s.refused)
	return taken, parks, err
}

// takeHeads leases up to limit heads of keys, and messages without a key, of the first
// candidates of a query. It parks the other candidates.
func (s *Engine) takeHeads(ctx context.Context, queue, candidates, argument string, looked, limit int, lease time.Duration) (taken []store.Leased, parks bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		taken, parks = nil, false
		found, err := readCandidates(ctx, tx, candidates, argument, queue, nanos(now, 0), looked)
		if err != nil {
			return err
		}
		s.step()
		keys := map[string]storesql.KeyState{}
		for _, key := range storesql.Needs(found) {
			var k storesql.KeyState
			err = tx.QueryRowContext(ctx, selectKeyState, queue, key, nanos(now, 0)).Scan(&k.Head, &k.First)
			if err != nil {
				return err
			}
			keys[key] = k
		}
		plan := storesql.Plan(found, keys, limit)
		for _, position := range plan.Become {
			refusal, err := tx.tryExec(ctx, becomeHead, position, nanos(now, 0))
			if err != nil {
				return err
			}
			if refusal != nil { // the others of the key are parked all the same: the sweep tries again
				s.logNoHead(ctx, queue, refusal)
			}
		}
		parks = len(plan.Park) > 0
		err = park(ctx, tx, plan.Park)
		if err != nil {
			return err
		}
		s.step()
		taken, err = leaseHeads(ctx, tx, queue, plan.Take, nanos(now, lease))
		return err
	})
	return taken, parks, err
}

// park parks messages behind the heads of their keys.
func park(ctx context.Context, tx *Tx, behind map[int64][]int64) error {
	if len(behind) == 0 {
		return nil
	}
	positions, err := json.Marshal(slices.Concat(slices.Collect(maps.Values(behind))...))
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "UPDATE weir_messages SET at = "+parkedText+" WHERE position IN (SELECT value FROM json_each($1))", string(positions))
	return err
}

// readCandidates returns the messages that a query of candidates selects.
func readCandidates(ctx context.Context, tx *Tx, query, argument, queue string, now int64, limit int) (found []storesql.Candidate, err error) {
	rows, err := tx.QueryContext(ctx, query, argument, queue, now, limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is looked at
	for rows.Next() {
		var c storesql.Candidate
		err = rows.Scan(&c.Position, &c.Size, &c.Key, &c.IsHead)
		if err != nil {
			return nil, err
		}
		found = append(found, c)
	}
	return found, rows.Err()
}

// leaseHeads leases messages until a time, in the order of positions. It counts the
// leases that have ended (law W2).
func leaseHeads(ctx context.Context, tx *Tx, queue string, positions []int64, until int64) ([]store.Leased, error) {
	if len(positions) == 0 {
		return nil, nil
	}
	chosen, err := json.Marshal(positions)
	if err != nil {
		return nil, err
	}
	rows, err := tx.QueryContext(ctx, `UPDATE weir_messages SET at = $2, leased = $2, fence = fence + 1, lapses = lapses + (leased IS NOT NULL),
			head = meta->>'key' IS NOT NULL
		WHERE position IN (SELECT value FROM json_each($1)) RETURNING `+columns+`, lapses`, string(chosen), until)
	taken, err := scanLeased(rows, err, queue)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(taken, func(a, b store.Leased) int {
		return slices.Index(positions, a.Position) - slices.Index(positions, b.Position)
	})
	return taken, nil
}

// removeRows removes the messages of a queue that match a condition, and returns how
// many. The next messages of their keys become heads.
func (s *Engine) removeRows(ctx context.Context, tx *Tx, now time.Time, queue, where string, args ...any) (n int, err error) {
	heads, n, err := deleteRows(ctx, tx, where, args...)
	if err != nil {
		return 0, err
	}
	return n, s.appoint(ctx, tx, now, queue, heads)
}

// deleteRows returns the keys of the heads among the messages that it has removed.
func deleteRows(ctx context.Context, tx *Tx, where string, args ...any) (heads []string, n int, err error) {
	rows, err := tx.QueryContext(ctx, "DELETE FROM weir_messages WHERE "+where+" RETURNING CASE WHEN head = 1 THEN meta->>'key' END", args...)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is looked at
	for rows.Next() {
		var key sql.NullString
		err = rows.Scan(&key)
		if err != nil {
			return nil, 0, err
		}
		n++
		if key.Valid {
			heads = append(heads, key.String)
		}
	}
	return heads, n, rows.Err()
}

// appoint makes the first messages of keys that do not have a head their heads. Keys are
// as the column meta has them. If the database refuses to change a message, its key is
// left without a head until the sweep succeeds: the message that was the head before is
// not harmed (law D4).
func (s *Engine) appoint(ctx context.Context, tx *Tx, now time.Time, queue string, keys []string) error {
	for _, key := range keys {
		refusal, err := tx.tryExec(ctx, appointNext, queue, key, nanos(now, 0))
		if err != nil {
			return err
		}
		if refusal != nil {
			s.logNoHead(ctx, queue, refusal)
			continue
		}
		tx.noteDue(queue, 0)
	}
	return nil
}

// logNoHead notes that the database refuses to make a message the head of its key.
func (s *Engine) logNoHead(ctx context.Context, queue string, refusal error) {
	s.logger.LogAttrs(ctx, slog.LevelError, "sqlite: the database refuses to change the first message of a key; the key waits, and is tried again later",
		slog.String("queue", queue), slog.String("error", guard.Text(refusal)))
}

// setAside releases a message for good. If it is the head of its key, the next message of
// the key becomes the head.
func (s *Engine) setAside(ctx context.Context, tx *Tx, now time.Time, delay time.Duration, l leaseArgs) (changed bool, err error) {
	var key sql.NullString
	err = tx.QueryRowContext(ctx, "SELECT CASE WHEN head = 1 THEN meta->>'key' END FROM weir_messages"+ofLease, l.position, l.queue, l.fence).Scan(&key)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	_, err = tx.ExecContext(ctx, "UPDATE weir_messages SET at = $2, due = $2, leased = NULL, head = 0 WHERE position = $1", l.position, nanos(now, delay))
	if err != nil || !key.Valid {
		return err == nil, err
	}
	return true, s.appoint(ctx, tx, now, l.queue, []string{key.String})
}

// selectKeysSwept selects the next keys of the queue $1 after $2, and for each whether
// messages of the key are parked although it does not have a head. The last row has no
// key if there are no more keys.
var selectKeysSwept = `WITH RECURSIVE keys(key, looked) AS (
		SELECT (SELECT meta->>'key' FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND meta->>'key' > $2 ORDER BY meta->>'key' LIMIT 1), 1
		UNION ALL
		SELECT (SELECT meta->>'key' FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND meta->>'key' > keys.key ORDER BY meta->>'key' LIMIT 1), looked + 1
		FROM keys WHERE key IS NOT NULL AND looked < ` + storesql.KeysSwept + `
	)
	SELECT key, EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND meta->>'key' = keys.key AND at = ` + parkedText + `)
		AND NOT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND meta->>'key' = keys.key AND head = 1)
	FROM keys ORDER BY looked`

// sweep makes heads for keys whose messages are parked behind a message that a program of
// an earlier version has settled. It searches without the write lock, for a thousand keys
// at a time.
func (s *Engine) sweep(ctx context.Context, queue string) error {
	after, isDue := s.sweeps.Begin(queue, s.clock.Now())
	if !isDue {
		return nil
	}
	orphans, after, err := s.orphans(ctx, queue, after)
	if err != nil {
		return err
	}
	if len(orphans) > 0 {
		err = s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error { return s.appoint(ctx, tx, now, queue, orphans) })
		if err != nil {
			return err
		}
	}
	s.sweeps.End(queue, after, s.clock.Now())
	return nil
}

// orphans returns the keys among the next ones after a key that have parked messages and
// no head. next is the key after which the search continues, or "" if it has ended.
func (s *Engine) orphans(ctx context.Context, queue, after string) (keys []string, next string, err error) {
	err = s.do(ctx, func() error {
		var hasParked bool
		err := s.db.Reader().QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND at = "+parkedText+")", queue).Scan(&hasParked)
		if err != nil || !hasParked {
			return err
		}
		rows, err := s.db.Reader().QueryContext(ctx, selectKeysSwept, queue, after)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var key sql.NullString
			var isOrphan bool
			err = rows.Scan(&key, &isOrphan)
			if err != nil {
				return err
			}
			next = key.String // "" in the last row if there are no more keys
			if isOrphan {
				keys = append(keys, key.String)
			}
		}
		return rows.Err()
	})
	return keys, next, err
}

// isQueued selects whether the queue $2 has another message than $1 with the identity of
// a message: meta is $3, visit $4, and merges $5.
const isQueued = `SELECT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $2 AND meta->>'id' = $3->>'id' AND visit = $4 AND merges = $5
	AND coalesce(meta->'headers'->>'Weir-Put', '') = coalesce($3->'headers'->>'Weir-Put', '') AND position <> $1)`

// Replace implements [store.InOrder].
func (s *Engine) Replace(ctx context.Context, rs ...store.Replacement) error {
	if err := storearg.Replace(rs...); err != nil {
		return err
	}
	rows, err := storesql.ReplacementRows(rs)
	if err != nil {
		return err
	}
	leases := make([]store.Lease, len(rs))
	for i := range rs {
		leases[i] = rs[i].Lease
	}
	return s.settle(ctx, leases, func(ctx context.Context, tx *Tx, now time.Time, l leaseArgs) (changed bool, err error) {
		return s.replace(ctx, tx, now, l, &rows[l.index])
	})
}

// replace puts a row in the place of a message. It returns false if the lease is lost.
func (s *Engine) replace(ctx context.Context, tx *Tx, now time.Time, l leaseArgs, r *storesql.Row) (changed bool, err error) {
	var key sql.NullString
	err = tx.QueryRowContext(ctx, "SELECT meta->>'key' FROM weir_messages"+ofLease, l.position, l.queue, l.fence).Scan(&key)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if old := storesql.Key(key.String); old != r.Meta.Key {
		return false, storearg.KeyChanged(r.Meta.ID, old, r.Meta.Key)
	}
	var isTwin bool
	err = tx.QueryRowContext(ctx, isQueued, l.position, l.queue, r.MetaColumn, r.Meta.Visit, r.Meta.Merges).Scan(&isTwin)
	if err != nil {
		return false, err
	}
	if isTwin {
		return l.remove(ctx, s, tx, now)
	}
	tx.noteDue(l.queue, r.Delay)
	at := nanos(now, r.Delay)
	_, err = tx.ExecContext(ctx, `UPDATE weir_messages SET at = $2, due = $2, leased = NULL, lapses = 0, visit = $3, merges = $4, cause = $5,
		meta = $6, schema = $7, payload = $8 WHERE position = $1`,
		l.position, at, r.Meta.Visit, r.Meta.Merges, string(r.Cause), r.MetaColumn, r.Schema, r.Payload)
	return err == nil, err
}
