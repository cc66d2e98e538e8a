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

// selectDueKeys returns up to $4 keys after $1 with due messages. It visits at most a
// thousand keys, one step of the index each, and also returns the other visited keys. The
// last row has no key if there are no more. The column found counts the keys with due
// messages before the row's key.
const selectDueKeys = `WITH RECURSIVE keys(key, found, looked) AS (
		SELECT (SELECT meta->>'key' FROM weir_messages WHERE` + keyed + ` AND meta->>'key' > $1 ORDER BY meta->>'key' LIMIT 1), 0, 1
		UNION ALL
		SELECT (SELECT meta->>'key' FROM weir_messages WHERE` + keyed + ` AND meta->>'key' > keys.key ORDER BY meta->>'key' LIMIT 1),
			found + (EXISTS (SELECT 1 FROM weir_messages WHERE` + dueOfKey + `) AND key NOT IN (SELECT value FROM json_each($5))), looked + 1
		FROM keys WHERE key IS NOT NULL AND found < $4 AND looked <= ` + storesql.KeysLooked + `
	)
	SELECT key, found FROM keys ORDER BY looked`

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
	due, err := s.dueKeys(ctx, queue, after, limit, r.Except)
	if err != nil || len(due.Keys) == 0 {
		return nil, due.Next, err
	}
	keys, err := json.Marshal(due.Keys)
	if err != nil {
		return nil, "", err
	}
	taken, err = s.takeAround(ctx, queue, positionsOfKeys, string(keys), min(r.Each, limit/len(due.Keys)), lease)
	return taken, due.Next, err
}

// dueKeys returns the next keys of a round with due messages.
func (s *Engine) dueKeys(ctx context.Context, queue, after string, limit int, exceptKeys []string) (due storesql.DueKeys, err error) {
	names, err := storesql.EscapedAll(exceptKeys)
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
		rows, err := s.db.Reader().QueryContext(ctx, selectDueKeys, after, queue, nanos(now, 0), limit, string(except))
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var key *string
			var found int
			if err := rows.Scan(&key, &found); err != nil {
				return err
			}
			due.Add(key, found)
		}
		return rows.Err()
	})
	return due, err
}
