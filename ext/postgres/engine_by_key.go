package postgres

import (
	"context"
	"errors"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.ByKey = (*Engine)(nil)

// keyOf is a message's key as in the index weir_messages_key.
const keyOf = `(meta->>'key') COLLATE "C"`

// nextKey returns the expression of the first key behind the expression after.
func nextKey(after string) string {
	return `(SELECT ` + keyOf + ` FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` > ` + after + ` ORDER BY ` + keyOf + ` LIMIT 1)`
}

// selectDueKeys returns the statement with which dueKeys visits the keys of the queue $1
// after $2, one step of the index each. The statement stops after $3 keys with KeyDue, or
// after a thousand keys. state is the expression of the state of keys.key.
//
// Its rows are for [storesql.DueKeys.Add]. A row has a key. The column before is the state
// of the key of the row before, and found the number of keys with KeyDue ahead of that
// key. The last row lacks a key if there are no more keys.
func (s *Engine) selectDueKeys(state string) string {
	return `WITH RECURSIVE clock AS MATERIALIZED (SELECT ` + s.now + ` AS now), keys (key, before, found, looked) AS (
			SELECT ` + nextKey("$2") + `, ` + storesql.KeyIdle + `, 0, 1
			UNION ALL
			SELECT ` + nextKey("keys.key") + `, ` + state + `, found + (before = ` + storesql.KeyDue + `)::int, looked + 1
			FROM keys WHERE key IS NOT NULL AND found + (before = ` + storesql.KeyDue + `)::int < $3 AND looked <= ` + storesql.KeysLooked + `
		) SELECT key, before::text FROM keys ORDER BY looked`
}

// Expressions of the state of keys.key.
var (
	// stateOfKey depends on whether it has due messages and is not among the keys $4.
	stateOfKey = stateWith("")
	// stateBelow also depends on whether fewer than $5 of its messages are leased in the
	// queues of $6.
	stateBelow = stateWith(`WHEN ` + inFlight("$6::text") + ` >= $5::bigint THEN ` + storesql.KeyFull)
)

// stateWith returns the expression of a state. whenFull is another case, or empty.
func stateWith(whenFull string) string {
	return `CASE WHEN keys.key = ANY ($4::text[]) OR NOT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL
			AND ` + keyOf + ` = keys.key AND at <= (SELECT now FROM clock)) THEN ` + storesql.KeyIdle + ` ` + whenFull + ` ELSE ` + storesql.KeyDue + ` END`
}

// inFlight counts the messages of the key keys.key that are leased with a limit in the
// queues that share it with the queue main.
func inFlight(main string) string {
	return `(SELECT count(*) FROM weir_messages AS f WHERE ` + storesql.IsLimited + ` AND f.leased > (SELECT now FROM clock)
		AND (f.meta->>'key') COLLATE "C" = keys.key AND ` + storesql.SharesLimit("f.queue", main) + `)`
}

// TakeByKey implements [store.ByKey].
func (s *Engine) TakeByKey(ctx context.Context, queue string, r store.KeyRound, limit int, lease time.Duration) (taken []store.Leased, next string, err error) {
	if err := errors.Join(storearg.Take(queue, limit, lease), storearg.KeyRound(r)); err != nil {
		return nil, "", err
	}
	after, begun := storearg.After(r)
	hasFull := false // keys at their limit were left out
	err = s.do(ctx, func() (err error) {
		if !begun {
			next = storearg.Next("")
			taken, err = s.leaseAround(ctx, queue, withoutKey, micros(lease), queue, min(limit, r.Each))
			if err != nil || len(taken) > 0 {
				return err
			}
		}
		due, err := s.nextKeys(ctx, queue, after, limit, r)
		next, hasFull = due.Next, due.HasFull
		if err != nil || len(due.Keys) == 0 {
			return err
		}
		each := min(r.Each, limit/len(due.Keys))
		taken, err = s.takeOfKeys(ctx, queue, due.Keys, each, r.Limit, lease)
		isShort := countKeys(taken) < len(due.Keys)
		hasFull = hasFull || r.Limit > 0 && isShort // other calls may have reached the limit
		return err
	})
	if err != nil || !hasFull {
		return taken, next, err
	}
	s.full.Note(queue, s.clock.Now())
	if len(taken) == 0 {
		s.note(queue, dues{later: fullWait})
	}
	return taken, next, nil
}

// nextKeys returns the next keys of a round with due messages. If keys are likely to be
// at r.Limit, it leaves them out.
func (s *Engine) nextKeys(ctx context.Context, queue, after string, limit int, r store.KeyRound) (due storesql.DueKeys, err error) {
	except, err := storesql.EscapedAll(r.Except)
	if err != nil {
		return due, err
	}
	if r.Limit > 0 {
		limit = min(limit, maxKeysLocked)
	}
	if r.Limit == 0 || !s.full.AreLikely(queue, s.clock.Now()) {
		return s.dueKeys(ctx, s.selectDueKeys(stateOfKey), queue, after, limit, except)
	}
	return s.dueKeys(ctx, s.selectDueKeys(stateBelow), queue, after, limit, except, r.Limit, storearg.PartOf(queue).Queue)
}

func countKeys(ms []store.Leased) int {
	keys := map[string]bool{}
	for i := range ms {
		keys[ms[i].Meta.Key] = true
	}
	return len(keys)
}

const (
	maxKeysLocked = 50 // keys of a call: by default, a server has memory for 64 locks of each connection
	// fullWait is the time before consumers look again for messages of keys that are at
	// their limit. The end of a lease does not wake them.
	fullWait = 100 * time.Millisecond
)

// takeOfKeys takes up to each messages of each key, within the limit of a KeyRound.
//
// Two calls that take messages of a key at the same time would both count the leases
// before the other call. So a call with a limit locks its keys first.
func (s *Engine) takeOfKeys(ctx context.Context, queue string, keys []string, each, limit int, lease time.Duration) ([]store.Leased, error) {
	args := []any{micros(lease), queue, each, keys}
	if limit == 0 {
		return s.leaseAround(ctx, queue, ofKeys, args...)
	}
	main := storearg.PartOf(queue).Queue
	locks := make([]int64, len(keys))
	for i, key := range keys {
		locks[i] = lockOfKey(main, key)
	}
	args = append(args, limit, main)
	call := s.newTakeCall(ctx, queue)
	call.All = func() ([]store.Leased, error) {
		return s.lease(ctx, queue, locks, s.refused.Except(ofKeysBelow, s.clock.Now()), args...)
	}
	call.Find = func() ([]int64, error) {
		return s.findPositions(ctx, s.refused.Except(ofKeysBelow, s.clock.Now()), args...)
	}
	call.These = func(positions []int64) ([]store.Leased, error) {
		return s.lease(ctx, queue, locks, storesql.Only(ofKeysBelow, positions), args...)
	}
	return call.Do(&s.refused)
}

// lockOfKey is the number of the advisory lock of a key in a queue and its layers. Keys
// with the same number wait for each other.
func lockOfKey(main, key string) int64 {
	h := fnv.New64a()
	for _, part := range []string{"weir_messages", main, key} {
		_, _ = h.Write([]byte(part))
		_, _ = h.Write([]byte{0})
	}
	return int64(h.Sum64()) //nolint:gosec // any number will do
}

// lockKeys takes locks until the transaction ends: in the same order in all
// transactions, to prevent deadlocks.
const lockKeys = `SELECT pg_advisory_xact_lock(n) FROM (SELECT DISTINCT n FROM unnest($1::bigint[]) AS u (n) ORDER BY n) AS s`

// leaseLocked is lease in a transaction that first takes the locks of keys. The leases
// count for the limits of these keys.
//
// The server sends only the positions of the messages while the transaction runs: they
// fit into the buffers of the connection. Otherwise a process that freezes meanwhile
// would keep the locks, and all calls that wait for them.
func (s *Engine) leaseLocked(ctx context.Context, queue string, locks []int64, chosen string, args ...any) ([]store.Leased, error) {
	s.step()
	var positions, fences []int64
	err := lockedAndIndexed(ctx, s.pool, locks, func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		var position, fence int64
		_, err = pgx.ForEachRow(rows, []any{&position, &fence}, func() error {
			positions = append(positions, position)
			fences = append(fences, fence)
			return nil
		})
		return err
	}, s.leasing(chosen, storesql.MarkLimited)+" RETURNING m.position, m.fence", args...)
	s.step()
	if err != nil || len(positions) == 0 {
		return nil, err
	}
	rows, err := s.pool.Query(ctx, "SELECT "+columns+`, m.lapses FROM unnest((SELECT $1::bigint[]), (SELECT $2::bigint[])) WITH ORDINALITY AS l (position, fence, n),
		weir_messages AS m WHERE m.position = l.position AND m.fence = l.fence AND m.leased IS NOT NULL ORDER BY n`, positions, fences)
	return scanLeased(rows, err, queue)
}

// lockedAndIndexed is indexed in a transaction that first takes locks. The statement's
// snapshot is taken after that, so it sees the work of all earlier owners of the locks.
// The transaction is one message, so a frozen process holds no lock, unless the server
// waits until the process receives the rows.
func lockedAndIndexed(ctx context.Context, q batcher, locks []int64, f func(rows pgx.Rows, err error) error, sql string, args ...any) error {
	batch := &pgx.Batch{}
	batch.Queue("begin isolation level read committed")
	batch.Queue(byIndex)
	batch.Queue(lockKeys, locks)
	preparations := batch.Len()
	batch.Queue(sql, args...)
	batch.Queue("commit")
	results := q.SendBatch(ctx, batch)
	defer results.Close() //nolint:errcheck // below, or its error is one that was read
	for range preparations {
		_, err := results.Exec()
		if err != nil {
			return err
		}
	}
	err := f(results.Query())
	if err != nil {
		return err
	}
	_, err = results.Exec()
	if err != nil {
		return err
	}
	return results.Close()
}

// Conditions of the messages to lease, with some keys or without a key. They check the
// time twice, since another worker may have chosen the same messages.
var (
	ofKeys = `position = ANY (ARRAY(SELECT m.position FROM unnest($4::text[]) WITH ORDINALITY AS keys (key, n), LATERAL (
			SELECT position FROM weir_messages WHERE queue = $2 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` = keys.key AND at <= (SELECT now FROM clock)` + storesql.ExceptRefused + `
			ORDER BY ` + keyOf + `, at, position LIMIT $3) AS m ORDER BY n)) AND at <= (SELECT now FROM clock)`
	// ofKeysBelow is ofKeys for keys of which fewer than $5 messages are leased in the
	// queues of $6. The key with the least room decides how many are taken of each.
	ofKeysBelow = `position = ANY (ARRAY(WITH rooms AS MATERIALIZED (
				SELECT key, n, $5::bigint - ` + inFlight("$6::text") + ` AS room FROM unnest($4::text[]) WITH ORDINALITY AS keys (key, n)
			) SELECT m.position FROM rooms AS keys, LATERAL (
			SELECT position FROM weir_messages WHERE queue = $2 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` = keys.key AND at <= (SELECT now FROM clock)` + storesql.ExceptRefused + `
			ORDER BY ` + keyOf + `, at, position LIMIT least($3::bigint, (SELECT min(room) FROM rooms WHERE room > 0))) AS m
			WHERE keys.room > 0 ORDER BY n)) AND at <= (SELECT now FROM clock)`
	withoutKey = `position = ANY (ARRAY(SELECT position FROM (SELECT position, meta FROM weir_messages
			WHERE queue = $2 AND at <= (SELECT now FROM clock)` + storesql.ExceptRefused + ` ORDER BY at, position LIMIT ` + storesql.OldestLooked + `) AS oldest
			WHERE meta->>'key' IS NULL LIMIT $3)) AND at <= (SELECT now FROM clock)`
)

// dueKeys returns the next keys of a round with due messages, by a statement of
// selectDueKeys.
func (s *Engine) dueKeys(ctx context.Context, statement string, args ...any) (due storesql.DueKeys, err error) {
	err = indexed(ctx, s.pool, func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		var key *string
		var before string
		_, err = pgx.ForEachRow(rows, []any{&key, &before}, func() error {
			due.Add(key, before)
			return nil
		})
		return err
	}, statement, args...)
	return due, err
}
