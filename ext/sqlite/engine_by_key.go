package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.ByKey = (*Engine)(nil)

// Messages in the index weir_messages_key.
const keyed = ` queue = $2 AND meta->>'key' IS NOT NULL`

const dueOfKey = keyed + ` AND meta->>'key' = keys.key AND at <= $3`

// inFlight counts the messages of the key keys.key that are leased with a limit in the
// queues that share it with the queue main, at the time now.
func inFlight(main, now string) string {
	return `(SELECT count(*) FROM weir_messages AS f WHERE ` + storesql.IsLimited + ` AND f.leased > ` + now + `
		AND f.meta->>'key' = keys.key AND ` + storesql.SharesLimit("f.queue", main) + `)`
}

// selectKeys returns the statement with which dueKeys visits the keys after $1, one step
// of the index each. The statement stops after $4 keys with KeyDue, or after a thousand
// keys. The keys in $5 have KeyIdle. whenFull is another case of the state of a key, or
// "".
//
// Its rows are for [storesql.DueKeys.Add]. A row has a key. The column before is the state
// of the key of the row before, and found the number of keys with KeyDue ahead of that
// key. The last row lacks a key if there are no more keys.
func selectKeys(whenFull string) string {
	return `WITH RECURSIVE keys(key, before, found, looked) AS (
		SELECT (SELECT meta->>'key' FROM weir_messages WHERE` + keyed + ` AND meta->>'key' > $1 ORDER BY meta->>'key' LIMIT 1), ` + storesql.KeyIdle + `, 0, 1
		UNION ALL
		SELECT (SELECT meta->>'key' FROM weir_messages WHERE` + keyed + ` AND meta->>'key' > keys.key ORDER BY meta->>'key' LIMIT 1),
			CASE WHEN NOT EXISTS (SELECT 1 FROM weir_messages WHERE` + dueOfKey + `) OR key IN (SELECT value FROM json_each($5)) THEN ` + storesql.KeyIdle + `
				` + whenFull + ` ELSE ` + storesql.KeyDue + ` END,
			found + (before = ` + storesql.KeyDue + `), looked + 1
		FROM keys WHERE key IS NOT NULL AND found + (before = ` + storesql.KeyDue + `) < $4 AND looked <= ` + storesql.KeysLooked + `
	)
	SELECT key, before FROM keys ORDER BY looked`
}

var (
	selectDueKeys = selectKeys("")
	// selectKeysBelow also leaves out keys of which $6 messages are leased in the queues
	// of $7.
	selectKeysBelow = selectKeys(`WHEN ` + inFlight("$7", "$3") + ` >= $6 THEN ` + storesql.KeyFull)
)

// selectInFlight counts the messages of the keys $1 that are leased with a limit in the
// queues of $2, at the time $3.
var selectInFlight = `SELECT key, ` + inFlight("$2", "$3") + ` FROM (SELECT value AS key, id FROM json_each($1)) AS keys ORDER BY id`

// positionsOfKeys selects up to $4 messages of each of the keys $1.
const positionsOfKeys = `SELECT m.position AS position, coalesce(length(payload), 0) AS size FROM (SELECT value AS key, id FROM json_each($1)) AS keys
	JOIN weir_messages AS m ON m.position IN (SELECT position FROM weir_messages WHERE` + dueOfKey + storesql.ExceptRefused + ` ORDER BY at, position LIMIT $4)
	ORDER BY keys.id`

// positionsWithoutKey searches only the oldest messages. $1 is empty: see positionsDue.
const positionsWithoutKey = `SELECT ` + sized + ` FROM (
		SELECT position, payload, meta FROM weir_messages WHERE queue = $2 AND at <= $3` + storesql.ExceptRefused + ` ORDER BY at, position LIMIT ` + storesql.OldestLooked + `
	) WHERE meta->>'key' IS NULL AND $1 = '' LIMIT $4`

// TakeByKey implements [store.ByKey]. It searches keys without the write lock.
func (s *Engine) TakeByKey(ctx context.Context, queue string, r store.KeyRound, limit int, lease time.Duration) (taken []store.Leased, next string, err error) {
	if err := errors.Join(storearg.Take(queue, limit, lease), storearg.KeyRound(r)); err != nil {
		return nil, "", err
	}
	if due, err := s.anyDue(ctx, queue); !due || err != nil {
		return nil, "", err
	}
	after, begun := storearg.After(r)
	if !begun {
		taken, err = s.takeAround(ctx, queue, positionsWithoutKey, "", min(limit, r.Each), lease)
		if err != nil || len(taken) > 0 {
			return taken, storearg.Next(""), err
		}
	}
	search := r
	if !s.full.AreLikely(queue, s.clock.Now()) {
		search.Limit = 0
	}
	due, err := s.dueKeys(ctx, queue, after, limit, search)
	if due.HasFull {
		s.full.Note(queue, s.clock.Now())
	}
	if err != nil || len(due.Keys) == 0 {
		return nil, due.Next, err
	}
	r.Each = min(r.Each, limit/len(due.Keys))
	taken, err = s.takeOfKeys(ctx, queue, due.Keys, r, lease)
	return taken, due.Next, err
}

// takeOfKeys takes up to r.Each messages of each key, within r.Limit.
func (s *Engine) takeOfKeys(ctx context.Context, queue string, keys []string, r store.KeyRound, lease time.Duration) ([]store.Leased, error) {
	names, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	if r.Limit == 0 {
		return s.takeAround(ctx, queue, positionsOfKeys, string(names), r.Each, lease)
	}
	call := s.newTakeCall(ctx, queue)
	call.All = func() ([]store.Leased, error) {
		return s.takeBelow(ctx, queue, s.refused.Except(positionsOfKeys, s.clock.Now()), string(names), r, lease)
	}
	call.Find = func() ([]int64, error) {
		positions := `SELECT position FROM (` + s.refused.Except(positionsOfKeys, s.clock.Now()) + `)`
		return s.readPositions(ctx, positions, func(now time.Time) []any { return []any{string(names), queue, nanos(now, 0), r.Each} })
	}
	call.These = func(positions []int64) ([]store.Leased, error) {
		return s.takeBelow(ctx, queue, storesql.Only(positionsOfKeys, positions), string(names), r, lease)
	}
	return call.Do(&s.refused)
}

// takeBelow leases messages that query selects of keys, a JSON array, within r.Limit.
func (s *Engine) takeBelow(ctx context.Context, queue, query, keys string, r store.KeyRound, lease time.Duration) (taken []store.Leased, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *Tx, now time.Time) error {
		taken = nil
		below, err := keysBelow(ctx, tx, now, queue, keys, r)
		if err != nil {
			return err
		}
		if below.hasFull {
			s.full.Note(queue, s.clock.Now())
		}
		if len(below.keys) == 0 {
			return nil
		}
		list, err := json.Marshal(below.keys)
		if err != nil {
			return err
		}
		taken, err = leaseThese(ctx, tx, now, queue, leasing(query, storesql.MarkLimited), string(list), below.each, lease)
		return err
	})
	return taken, err
}

// keyRoom are keys that are below [store.KeyRound].Limit, and how many messages of each
// may be leased: the key with the least room decides.
type keyRoom struct {
	keys    []string
	each    int
	hasFull bool // there were keys at the limit
}

// keysBelow returns the keys of a JSON array that are below r.Limit in this transaction:
// it counts the leases that all other transactions have granted.
func keysBelow(ctx context.Context, tx *Tx, now time.Time, queue, keys string, r store.KeyRound) (below keyRoom, err error) {
	rows, err := tx.QueryContext(ctx, selectInFlight, keys, storearg.PartOf(queue).Queue, nanos(now, 0))
	if err != nil {
		return below, err
	}
	defer rows.Close() //nolint:errcheck // rows.Err is looked at
	below.each = r.Each
	for rows.Next() {
		var key string
		var leased int
		err = rows.Scan(&key, &leased)
		if err != nil {
			return below, err
		}
		if leased >= r.Limit {
			below.hasFull = true
			continue
		}
		below.keys = append(below.keys, key)
		below.each = min(below.each, r.Limit-leased)
	}
	return below, rows.Err()
}

// dueKeys returns the next keys of a round with due messages. Of r it uses Except and
// Limit: with a limit, it leaves out keys at the limit.
func (s *Engine) dueKeys(ctx context.Context, queue, after string, limit int, r store.KeyRound) (due storesql.DueKeys, err error) {
	names, err := storesql.EscapedAll(r.Except)
	if err != nil {
		return due, err
	}
	except, err := json.Marshal(names)
	if err != nil {
		return due, err
	}
	err = s.do(ctx, func() error {
		now, err := s.now(ctx)
		if err != nil {
			return err
		}
		statement, args := selectDueKeys, []any{after, queue, nanos(now, 0), limit, string(except)}
		if r.Limit > 0 {
			statement = selectKeysBelow
			args = append(args, r.Limit, storearg.PartOf(queue).Queue)
		}
		rows, err := s.db.Reader().QueryContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var key *string
			var before string
			if err := rows.Scan(&key, &before); err != nil {
				return err
			}
			due.Add(key, before)
		}
		return rows.Err()
	})
	return due, err
}
