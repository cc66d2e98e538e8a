package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/guard"
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

// Candidates of a step of TakeInOrder in the queue $1, up to $2, as conditions:
//
//	candidatesDue    all messages that are due, after the place ($3, $4)
//	candidatesGiven  the messages at the positions in $3, if they are still due
//
// The expressions of candidatesGiven keep PostgreSQL from reading all messages that are
// due.
const (
	candidatesDue = `queue = $1 AND at <= (SELECT now FROM clock) AND (at, position) > ($3::timestamptz, $4::bigint)` + storesql.ExceptRefused +
		` ORDER BY at, position LIMIT $2`
	candidatesGiven = `position = ANY ($3::bigint[]) AND queue || '' = $1 AND at + interval '0' <= (SELECT now FROM clock)` + storesql.ExceptRefused + `
		ORDER BY at, position LIMIT $2`
)

// committedLate is how late a transaction may commit so that calls of TakeInOrder, and
// searches for messages without a key, find its messages: they read the messages that are
// due since then again.
const committedLate = "interval '1 s'"

// selectAhead reads messages of the queue $1 that are due behind the place ($2, $3). It
// returns the messages without a key, the message from which the search continues, and
// the number of messages that it has read. A refused message is not free: ExceptRefused
// extends the expression of is_free by a condition.
func (s *Engine) selectAhead() string {
	return `WITH clock AS MATERIALIZED (SELECT ` + s.now + ` AS now), ahead AS MATERIALIZED (
			SELECT at, position, meta->>'key' IS NULL` + storesql.ExceptRefused + ` AS is_free, at <= (SELECT now FROM clock) - ` + committedLate + ` AS is_settled FROM weir_messages
			WHERE queue = $1 AND at <= (SELECT now FROM clock) AND (at, position) > ($2::timestamptz, $3::bigint)
			ORDER BY at, position LIMIT ` + strconv.Itoa(storesql.AheadInOrder) + `
		), last AS (SELECT position FROM ahead WHERE is_settled ORDER BY at DESC, position DESC LIMIT 1)
		SELECT at, position, is_free, is_settled, (SELECT count(*) FROM ahead) FROM ahead
		WHERE is_free OR position = (SELECT position FROM last) ORDER BY at, position`
}

// candidatesOfKeys is the condition on the heads of the keys $2 or, where they do not
// have heads, their first messages, if they are due. The expressions keep PostgreSQL from
// reading all messages that are due.
func (s *Engine) candidatesOfKeys() string {
	return `position = ANY (ARRAY(SELECT ` + s.headOrFirst("$1::text", "k.key") + ` FROM unnest((SELECT $2::text[])) AS k (key)))
		AND queue || '' = $1 AND at + interval '0' <= (SELECT now FROM clock)` + storesql.ExceptRefused
}

const (
	checkEvery = time.Second      // between two checks before a floor
	checkLimit = time.Second      // for a check
	placesKept = 10 * time.Minute // PostgreSQL has removed old entries of an index by then
)

// floors are the places up to which calls of TakeInOrder have parked all messages.
// Parking leaves an old entry in the index for each message, which would slow down each
// later call until PostgreSQL removes them. A message that was held, or whose transaction
// is committed late, may come before a floor: while calls are made, checkFloor looks for
// such messages each second.
type floors struct {
	mu sync.Mutex
	of map[string]floor // by queue
}

type floor struct {
	storesql.Place

	raised         time.Time
	isCheckPending bool // a check before the floor will begin
	hasEarlier     bool // messages may be due before the floor: the next call begins with the first message
}

// begin returns the place after which a call begins to look. If toCheck is true, the
// caller must arrange a check before this place.
func (f *floors) begin(queue string, now time.Time) (after storesql.Place, toCheck bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of, ok := f.of[queue]
	if !ok {
		return storesql.Place{}, false
	}
	if now.Sub(of.raised) >= placesKept {
		delete(f.of, queue)
		return storesql.Place{}, false
	}
	if of.hasEarlier {
		of.hasEarlier = false
		f.of[queue] = of
		return storesql.Place{}, false
	}
	toCheck = !of.isCheckPending
	of.isCheckPending = true
	f.of[queue] = of
	return of.Place, toCheck
}

// beginCheck returns the floor of a queue, for a check that begins now. Calls that begin
// from now on need another check.
func (f *floors) beginCheck(queue string) (before storesql.Place, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of, ok := f.of[queue]
	if ok {
		of.isCheckPending = false
		f.of[queue] = of
	}
	return of.Place, ok
}

// raise notes that all messages up to a place are parked.
func (f *floors) raise(queue string, to storesql.Place, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.of == nil {
		f.of = map[string]floor{}
	}
	of := f.of[queue]
	if of.IsBefore(to) {
		of.Place = to
	}
	of.raised = now
	f.of[queue] = of
}

// noteDue notes that a message is due at a place. If it comes before the floor, there may
// be more.
func (f *floors) noteDue(queue string, at storesql.Place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	of, ok := f.of[queue]
	if ok && at.IsBefore(of.Place) {
		of.hasEarlier = true
		f.of[queue] = of
	}
}

// checkFloor looks for messages that are due before the floor of a queue. If there are
// any, the next call begins with the first message.
func (s *Engine) checkFloor(queue string) {
	floor, ok := s.floors.beginCheck(queue)
	if !ok {
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), checkLimit)
	defer stop()
	isDue, err := s.isAnyDue(ctx, queue, "<=", floor)
	if isDue || err != nil { // after an error the call finds out
		s.floors.noteDue(queue, storesql.Place{})
		s.hub.wake(queue)
	}
}

// isAnyDue reports whether messages are due whose places compare to a place. A message
// that the database refuses to lease does not count.
func (s *Engine) isAnyDue(ctx context.Context, queue, compare string, to storesql.Place) (isDue bool, err error) {
	err = s.do(ctx, func() error {
		return s.pool.QueryRow(ctx, `WITH clock AS MATERIALIZED (SELECT `+s.now+` AS now)
			SELECT (SELECT true FROM weir_messages WHERE queue = $1 AND at <= (SELECT now FROM clock) AND (at, position) `+compare+` ($2::timestamptz, $3::bigint)`+
			s.refused.Except(storesql.ExceptRefused, s.clock.Now())+` ORDER BY at, position LIMIT 1) IS NOT NULL`, queue, time.UnixMicro(to.At), to.Position).Scan(&isDue)
	})
	return isDue, err
}

// TakeInOrder implements [store.InOrder].
func (s *Engine) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	if err := storearg.Take(queue, limit, lease); err != nil {
		return nil, err
	}
	s.ordered.Store(queue, nil)
	if err := s.sweep(ctx, queue); err != nil {
		return nil, err
	}
	limit = min(limit, storesql.MaxInOrder)
	begun, toCheck := s.floors.begin(queue, s.clock.Now())
	if toCheck {
		s.clock.AfterFunc(checkEvery, func() { s.checkFloor(queue) }) // it ends soon after Close at the latest
	}
	// The first step looks at limit messages, and each further step at StepInOrder. Only
	// after a step that looks at StepInOrder messages or more does a call look behind
	// them. Otherwise calls with a small limit would always find messages there, and each
	// call would park only a few messages of a flood of one key in front.
	after, looked := begun, limit
	isParked := true // all messages up to after are parked
	pause := lockedWait
	for range storesql.StepsInOrder {
		taken, step, err := s.takeDue(ctx, queue, after, looked, limit, lease)
		if begun.Position == 0 && step.found > 0 { // else other calls may have parked messages behind this one
			s.floors.noteDue(queue, step.first)
		}
		if err != nil || len(taken) > 0 {
			return taken, err
		}
		if step.parks {
			pause = storesql.PauseInOrder
		}
		isParked = isParked && !step.isBusy
		if isParked && step.found > 0 {
			s.floors.raise(queue, step.settled, s.clock.Now())
		}
		if step.found < looked {
			return nil, s.lookAgain(ctx, queue, begun)
		}
		isFullStep := looked >= storesql.StepInOrder
		after, looked = step.last, storesql.StepInOrder // others may be due behind them
		if !isFullStep {
			continue
		}
		taken, err = s.takeFromBehind(ctx, queue, after, limit, lease)
		if err != nil || len(taken) > 0 {
			return taken, err
		}
	}
	s.note(queue, dues{later: pause})
	return nil, nil
}

// takeDue is a step of TakeInOrder: it looks at the messages that are due after a place.
func (s *Engine) takeDue(ctx context.Context, queue string, after storesql.Place, looked, limit int, lease time.Duration) (taken []store.Leased, step looking, err error) {
	err = s.do(ctx, func() error {
		taken, step, err = s.takeInOrderAround(ctx, queue, limit, lease, candidatesDue, queue, looked, time.UnixMicro(after.At), after.Position)
		return err
	})
	return taken, step, err
}

// takeFromBehind takes messages that are due behind many messages of other keys.
func (s *Engine) takeFromBehind(ctx context.Context, queue string, after storesql.Place, limit int, lease time.Duration) ([]store.Leased, error) {
	ofKeys := func() ([]store.Leased, error) { return s.takeOfNextKeys(ctx, queue, limit, lease) }
	withoutKey := func() ([]store.Leased, error) { return s.takeWithoutKey(ctx, queue, after, limit, lease) }
	return s.searches.TakeByTurns(queue, ofKeys, withoutKey)
}

// takeWithoutKey takes messages without a key among the next messages that are due behind
// a place. They do not wait until the messages in front of them are parked.
func (s *Engine) takeWithoutKey(ctx context.Context, queue string, after storesql.Place, limit int, lease time.Duration) (taken []store.Leased, err error) {
	from := s.searches.Begin(queue, s.clock.Now())
	if from.IsBefore(after) {
		from = after
	}
	var ahead storesql.Ahead
	err = s.do(ctx, func() error {
		ahead, err = s.readAhead(ctx, queue, from)
		return err
	})
	if err != nil {
		return nil, err
	}
	ahead.Limit(limit)
	if len(ahead.Free) > 0 {
		err = s.do(ctx, func() error {
			taken, _, err = s.takeInOrderAround(ctx, queue, limit, lease, candidatesGiven, queue, limit, ahead.Positions())
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	s.searches.Continue(queue, &ahead, len(taken), s.clock.Now())
	return taken, nil
}

// readAhead is a step of a search for messages without a key.
func (s *Engine) readAhead(ctx context.Context, queue string, after storesql.Place) (ahead storesql.Ahead, err error) {
	ahead.To = after
	read := 0
	err = indexed(ctx, s.pool, func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		var at time.Time
		var position int64
		var isFree, isSettled bool
		_, err = pgx.ForEachRow(rows, []any{&at, &position, &isFree, &isSettled, &read}, func() error {
			row := storesql.Place{At: at.UnixMicro(), Position: position}
			if isFree {
				ahead.Free = append(ahead.Free, row)
			}
			if isSettled {
				ahead.To = row
			}
			return nil
		})
		return err
	}, s.refused.Except(s.selectAhead(), s.clock.Now()), queue, time.UnixMicro(after.At), after.Position)
	ahead.IsEnd = read < storesql.AheadInOrder
	return ahead, err
}

// takeOfNextKeys takes the heads of the next keys that have messages that are due. While
// many messages of a key are in front, other keys do not wait until all are parked.
func (s *Engine) takeOfNextKeys(ctx context.Context, queue string, limit int, lease time.Duration) (taken []store.Leased, err error) {
	err = s.do(ctx, func() error {
		taken = nil
		due, err := s.dueKeys(ctx, s.selectDueKeys(`coalesce((SELECT f.at <= (SELECT now FROM clock) FROM weir_messages AS f WHERE f.position = `+
			s.headOrFirst("$1::text", "keys.key")+`)::int, `+storesql.KeyIdle+`)`), queue, s.rounds.After(queue), limit)
		if err != nil {
			return err
		}
		s.rounds.Continue(queue, due.Next)
		if len(due.Keys) == 0 {
			return nil
		}
		taken, _, err = s.takeInOrderAround(ctx, queue, limit, lease, s.candidatesOfKeys(), queue, due.Keys)
		return err
	})
	return taken, err
}

// looking is the result of a step of TakeInOrder for the messages that it has looked at.
type looking struct {
	found   int
	first   storesql.Place // of the messages that were found
	last    storesql.Place // of the same messages
	settled storesql.Place // last, or the last place whose messages are committed, apart from late ones
	parks   bool           // it has parked messages
	isBusy  bool           // it has left messages alone, since other calls lock the heads of their keys
}

const lockedWait = 100 * time.Millisecond // before consumers look for messages that other calls had locked

// lookAgain makes the consumers of a queue look again soon if it has due messages after a
// place that this call could neither take nor park: other calls have locked them or their
// heads, and may leave them as they are.
func (s *Engine) lookAgain(ctx context.Context, queue string, after storesql.Place) error {
	isDue, err := s.isAnyDue(ctx, queue, ">", after)
	if isDue {
		s.note(queue, dues{later: lockedWait})
	}
	return err
}

// takeInOrderAround leases heads among candidates without the messages that the database
// refuses to lease: see leaseAround.
func (s *Engine) takeInOrderAround(ctx context.Context, queue string, limit int, lease time.Duration, candidates string, args ...any) (taken []store.Leased, step looking, err error) {
	call := s.newTakeCall(ctx, queue)
	isBusy := false
	call.All = func() (leased []store.Leased, err error) {
		leased, step, err = s.takeHeads(ctx, queue, limit, lease, s.refused.Except(candidates, s.clock.Now()), args...)
		return leased, err
	}
	call.Find = func() ([]int64, error) {
		rows, err := s.pool.Query(ctx, `WITH clock AS MATERIALIZED (SELECT `+s.now+` AS now)
			SELECT position FROM weir_messages WHERE `+s.refused.Except(candidates, s.clock.Now()), args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	call.These = func(positions []int64) (leased []store.Leased, err error) {
		leased, part, err := s.takeHeads(ctx, queue, limit, lease, candidatesGiven, queue, len(positions), positions)
		isBusy = isBusy || part.isBusy
		return leased, err
	}
	taken, err = call.Do(&s.refused)
	step.isBusy = step.isBusy || isBusy
	return taken, step, err
}

// takeHeads leases up to limit heads of keys, and messages without a key, of the
// candidates that a condition chooses. It parks the other candidates.
func (s *Engine) takeHeads(ctx context.Context, queue string, limit int, lease time.Duration, candidates string, args ...any) (taken []store.Leased, step looking, err error) {
	err = retry(func() error {
		err := pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) error {
			taken, step = nil, looking{}
			found, looked, err := s.lockCandidates(ctx, tx, candidates, args...)
			if err != nil || len(found) == 0 {
				return err
			}
			step = looked
			keys, err := s.keyStates(ctx, tx, queue, storesql.Needs(found))
			if err != nil {
				return err
			}
			plan := storesql.Plan(found, keys, limit)
			step.parks, step.isBusy, err = s.park(ctx, tx, queue, &plan)
			if err != nil {
				return err
			}
			taken, err = s.leaseHeads(ctx, tx, queue, plan.Take, lease)
			return err
		})
		s.step()
		return asConflict(err)
	})
	if err != nil {
		return nil, looking{}, err
	}
	return taken, step, nil
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
func (s *Engine) lockCandidates(ctx context.Context, tx pgx.Tx, condition string, args ...any) (found []storesql.Candidate, step looking, err error) {
	s.step()
	err = indexed(ctx, tx, func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		var c storesql.Candidate
		var at, settled time.Time
		_, err = pgx.ForEachRow(rows, []any{&c.Position, &c.Size, &c.Key, &c.IsHead, &at, &settled}, func() error {
			found = append(found, c)
			step.last = storesql.Place{At: at.UnixMicro(), Position: c.Position}
			step.settled = storesql.Place{At: settled.UnixMicro(), Position: c.Position}
			if len(found) == 1 {
				step.first = step.last
			}
			c.Key = nil
			return nil
		})
		return err
	}, `WITH clock AS MATERIALIZED (SELECT `+s.now+` AS now)
		SELECT position, coalesce(octet_length(payload), 0), meta->>'key', head, at, least(at, (SELECT now FROM clock) - `+committedLate+`)
		FROM weir_messages WHERE `+condition+` FOR UPDATE SKIP LOCKED`, args...)
	s.step()
	step.found = len(found)
	return found, step, err
}

// firstOfKey selects the first message of a key in a queue: both are expressions. It
// compares rows, and not columns, so that PostgreSQL can use no other index for the
// order. The first row behind the comparison may belong to another key.
//
// A message that was set aside is not the first one.
func (s *Engine) firstOfKey(queue, key string) string {
	return `(SELECT CASE WHEN f.queue = ` + queue + ` AND f.meta->>'key' = ` + key + ` THEN f.position END FROM weir_messages AS f
		WHERE f.meta->>'key' IS NOT NULL AND (f.queue, (f.meta->>'key') COLLATE "C", f.position) > (` + queue + `, ` + key + ` COLLATE "C", 0::bigint)
			AND (f.at < ` + s.now + ` + ` + halfForGood + ` OR f.at >= ` + parked + `)
		ORDER BY f.queue, (f.meta->>'key') COLLATE "C", f.position LIMIT 1)`
}

var halfForGood = "interval '" + strconv.Itoa(int(storearg.ForGood/2/time.Hour)) + " hours'"

// headOfKey selects the head of a key in a queue: both are expressions.
func headOfKey(queue, key string) string {
	return `(SELECT f.position FROM weir_messages AS f WHERE f.head AND f.queue = ` + queue + ` AND (f.meta->>'key') COLLATE "C" = ` + key + ` COLLATE "C")`
}

// headOrFirst selects the head of a key, or the message that becomes it.
func (s *Engine) headOrFirst(queue, key string) string {
	return `coalesce(` + headOfKey(queue, key) + `, ` + s.firstOfKey(queue, key) + `)`
}

// keyStates returns the states of keys.
func (s *Engine) keyStates(ctx context.Context, tx pgx.Tx, queue string, names []string) (map[string]storesql.KeyState, error) {
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `SELECT k.key, coalesce(`+headOfKey("$1::text", "k.key")+`, 0), coalesce(`+s.firstOfKey("$1::text", "k.key")+`, 0)
		FROM unnest((SELECT $2::text[])) AS k (key)`, queue, names)
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

// someOf is an array of positions of which PostgreSQL does not know how many there are:
// with many it would scan the table.
const someOf = `(SELECT $1::bigint[])::bigint[]`

// park parks messages behind heads that it can lock. isBusy reports whether there are
// others. It makes heads of the messages of plan.Become, which are due at once if they
// were parked behind a head that has left without a successor.
func (s *Engine) park(ctx context.Context, tx pgx.Tx, queue string, plan *storesql.OrderPlan) (parks, isBusy bool, err error) {
	if len(plan.Park) == 0 {
		return false, false, nil
	}
	refused, err := s.become(ctx, tx, queue, plan.Become)
	if err != nil {
		return false, false, err
	}
	heads := slices.Collect(maps.Keys(plan.Park))
	// A head that this call takes is locked already, and is marked as a head afterwards.
	// A message that the database refuses to make a head keeps its key waiting: the sweep
	// tries again.
	rows, err := tx.Query(ctx, `SELECT position FROM weir_messages WHERE position = ANY (`+someOf+`) AND (head OR position = ANY ($2::bigint[]))
		FOR KEY SHARE SKIP LOCKED`, heads, slices.Concat(plan.Take, refused))
	if err != nil {
		return false, false, err
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return false, false, err
	}
	s.step()
	isBusy = len(locked) < len(heads)
	var positions []int64
	for _, head := range locked {
		positions = append(positions, plan.Park[head]...)
	}
	if len(positions) == 0 {
		return false, isBusy, nil
	}
	_, err = tx.Exec(ctx, "UPDATE weir_messages SET at = "+parked+" WHERE position = ANY ("+someOf+")", positions)
	s.step()
	return true, isBusy, err
}

// become makes messages that it can lock the heads of their keys. It returns the
// messages that the database refuses to change (law D4).
func (s *Engine) become(ctx context.Context, tx pgx.Tx, queue string, positions []int64) (refused []int64, err error) {
	if len(positions) == 0 {
		return nil, nil
	}
	refusal, err := s.try(ctx, tx, func(rows pgx.Rows, err error) error {
		rows.Close()
		return cmp.Or(err, rows.Err())
	}, `UPDATE weir_messages SET head = true, at = CASE WHEN at = `+parked+` THEN `+s.now+` ELSE at END WHERE position = ANY (ARRAY(
		SELECT position FROM weir_messages WHERE position = ANY (`+someOf+`) FOR NO KEY UPDATE SKIP LOCKED))`, positions)
	if err != nil || refusal == nil {
		return nil, err
	}
	if len(positions) == 1 {
		s.logNoHead(ctx, queue, refusal)
		return positions, nil
	}
	for half := range slices.Chunk(positions, (len(positions)+1)/2) {
		more, err := s.become(ctx, tx, queue, half)
		if err != nil {
			return nil, err
		}
		refused = append(refused, more...)
	}
	return refused, nil
}

// try runs a statement in a savepoint, in one round trip. f reads its rows, and closes
// them. If the database refuses what the statement would store, the savepoint is rolled
// back, and the transaction continues.
func (s *Engine) try(ctx context.Context, tx pgx.Tx, f func(rows pgx.Rows, err error) error, sql string, args ...any) (refusal, err error) {
	batch := &pgx.Batch{}
	batch.Queue("SAVEPOINT weir_try")
	batch.Queue(sql, args...)
	batch.Queue("RELEASE SAVEPOINT weir_try")
	results := tx.SendBatch(ctx, batch)
	_, err = results.Exec()
	if err == nil {
		err = f(results.Query())
	}
	err = asConflict(cmp.Or(err, results.Close()))
	s.step()
	if err == nil || !isRefusal(err) {
		return nil, err
	}
	_, rollbackErr := tx.Exec(ctx, "ROLLBACK TO SAVEPOINT weir_try")
	return err, rollbackErr
}

// logNoHead notes that the database refuses to make a message the head of its key.
func (s *Engine) logNoHead(ctx context.Context, queue string, refusal error) {
	s.logger.LogAttrs(ctx, slog.LevelError, "postgres: the database refuses to change the first message of a key; the key waits, and is tried again later",
		slog.String("queue", queue), slog.String("error", guard.Text(refusal)))
}

// setAside releases messages for good. If they are the heads of their keys, the next
// messages of the keys become heads.
func (s *Engine) setAside(ctx context.Context, delay time.Duration, leases []store.Lease) error {
	call := &settling{delay: delay, leases: leases}
	var heads []queueKey
	err := s.do(ctx, func() error {
		return pgx.BeginTxFunc(ctx, s.pool, inSteps, func(tx pgx.Tx) (err error) {
			batch := []*settling{call}
			of := leasesOf(batch)
			_, heads, err = s.settleBy(ctx, tx, `SELECT m.position, l.fence, m.queue, CASE WHEN m.head THEN m.meta->>'key' END
				FROM weir_messages AS m, `+settledLeases+isHeld+" FOR UPDATE OF m", of)
			if err != nil {
				return err
			}
			settled, _, err := s.settleBy(ctx, tx, updateOf(s.now, releasing+", head = false"), of)
			if err != nil {
				return err
			}
			noteLost(batch, settled)
			return s.appoint(ctx, tx, heads)
		})
	})
	if err != nil {
		return err
	}
	s.wakeQueues(heads)
	return storearg.Lost(call.lost)
}

// leaseHeads leases messages, in the order of positions. It counts the leases that have
// ended (law W2).
func (s *Engine) leaseHeads(ctx context.Context, tx pgx.Tx, queue string, positions []int64, lease time.Duration) (taken []store.Leased, err error) {
	if len(positions) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `UPDATE weir_messages AS m SET at = now + $2 * interval '1 microsecond', leased = now + $2 * interval '1 microsecond',
			fence = fence + 1, lapses = lapses + (leased IS NOT NULL)::int, head = meta->>'key' IS NOT NULL
		FROM (SELECT `+s.now+` AS now) AS clock WHERE m.position = ANY (`+someOf+`) RETURNING `+columns+`, m.lapses`, positions, micros(lease))
	taken, err = scanLeased(rows, err, queue)
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
// meanwhile. If the database refuses to change a message, its key is left without a head
// until the sweep succeeds: the message that was the head before is not harmed (law D4).
func (s *Engine) appoint(ctx context.Context, tx pgx.Tx, keys []queueKey) error {
	for len(keys) > 0 {
		var queues, names []string
		for _, k := range keys {
			queues, names = append(queues, k.queue), append(names, k.key)
		}
		// PostgreSQL expects an array to be short, so it does not scan the table.
		var left []queueKey
		refusal, err := s.try(ctx, tx, func(rows pgx.Rows, err error) error {
			if err != nil {
				return err
			}
			var k queueKey
			_, err = pgx.ForEachRow(rows, []any{&k.queue, &k.key}, func() error {
				left = append(left, k)
				return nil
			})
			return err
		}, `WITH first AS MATERIALIZED (
				SELECT DISTINCT k.queue, k.key, `+s.firstOfKey("k.queue", "k.key")+` AS position
				FROM unnest((SELECT $1::text[]), (SELECT $2::text[])) AS k (queue, key) WHERE NOT EXISTS `+headOfKey("k.queue", "k.key")+`
			), appointed AS (
				UPDATE weir_messages AS m SET head = true, at = CASE WHEN m.at = `+parked+` THEN now ELSE greatest(m.at, now) END
				FROM (SELECT `+s.now+` AS now) AS clock WHERE m.position = ANY (ARRAY(SELECT position FROM first)) RETURNING m.position
			)
			SELECT queue, key FROM first WHERE position IS NOT NULL AND position NOT IN (SELECT position FROM appointed)`, queues, names)
		switch {
		case err != nil:
			return err
		case refusal == nil:
			keys = left
		case len(keys) == 1:
			s.logNoHead(ctx, keys[0].queue, refusal)
			return nil
		default:
			half := len(keys) / 2
			err = s.appoint(ctx, tx, keys[:half])
			if err != nil {
				return err
			}
			keys = keys[half:]
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
		AND NOT EXISTS ` + headOfKey("$1::text", "k.key") + `
	FROM keys AS k ORDER BY looked`

// hasParked selects whether the queue $1 has parked messages. The range keeps PostgreSQL
// from reading other messages if most are parked.
const hasParked = `SELECT (SELECT true FROM weir_messages WHERE queue = $1 AND at >= ` + parked + ` AND at <= ` + parked + ` ORDER BY at LIMIT 1) IS NOT NULL`

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
		var isNeeded bool
		err := s.pool.QueryRow(ctx, hasParked, queue).Scan(&isNeeded)
		if err != nil || !isNeeded {
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
	rows, err := storesql.ReplacementRows(rs)
	if err != nil {
		return err
	}
	var lost []store.Lease
	var freed []queueKey
	err = s.do(ctx, func() error {
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
