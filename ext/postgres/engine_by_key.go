package postgres

import (
	"context"
	"errors"
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

// selectDueKeys returns up to $3 keys after $2 of the queue $1 for which the query isDue
// returns true. It visits at most a thousand keys, and also returns the other visited
// keys. The last row has no key if there are no more.
func (s *Engine) selectDueKeys(isDue string) string {
	return `WITH RECURSIVE clock AS MATERIALIZED (SELECT ` + s.now + ` AS now), keys (key, found, looked) AS (
			SELECT ` + nextKey("$2") + `, 0, 1
			UNION ALL
			SELECT ` + nextKey("keys.key") + `, found + coalesce((` + isDue + `)::int, 0), looked + 1
			FROM keys WHERE key IS NOT NULL AND found < $3 AND looked <= ` + storesql.KeysLooked + `
		) SELECT key, found FROM keys ORDER BY looked`
}

// hasDue selects whether keys.key has due messages and is not among the keys $4.
const hasDue = `SELECT EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` = keys.key
		AND at <= (SELECT now FROM clock)) AND keys.key <> ALL ($4::text[])`

// TakeByKey implements [store.ByKey].
func (s *Engine) TakeByKey(ctx context.Context, queue string, r store.KeyRound, limit int, lease time.Duration) (taken []store.Leased, next string, err error) {
	if err := errors.Join(storearg.Take(queue, limit, lease), storearg.KeyRound(r)); err != nil {
		return nil, "", err
	}
	except, err := storesql.EscapedAll(r.Except)
	if err != nil {
		return nil, "", err
	}
	after, begun := storearg.After(r)
	err = s.do(ctx, func() (err error) {
		if !begun {
			next = storearg.Next("")
			taken, err = s.leaseAround(ctx, queue, withoutKey, micros(lease), queue, min(limit, r.Each))
			if err != nil || len(taken) > 0 {
				return err
			}
		}
		due, err := s.dueKeys(ctx, s.selectDueKeys(hasDue), queue, after, limit, except)
		next = due.Next
		if err != nil || len(due.Keys) == 0 {
			return err
		}
		taken, err = s.leaseAround(ctx, queue, ofKeys, micros(lease), queue, min(r.Each, limit/len(due.Keys)), due.Keys)
		return err
	})
	return taken, next, err
}

// Conditions of the messages to lease, with some keys or without a key. They check the
// time twice, since another worker may have chosen the same messages.
const (
	ofKeys = `position = ANY (ARRAY(SELECT m.position FROM unnest($4::text[]) WITH ORDINALITY AS keys (key, n), LATERAL (
			SELECT position FROM weir_messages WHERE queue = $2 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` = keys.key AND at <= (SELECT now FROM clock)` + storesql.ExceptRefused + `
			ORDER BY ` + keyOf + `, at, position LIMIT $3) AS m ORDER BY n)) AND at <= (SELECT now FROM clock)`
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
		var found int
		_, err = pgx.ForEachRow(rows, []any{&key, &found}, func() error {
			due.Add(key, found)
			return nil
		})
		return err
	}, statement, args...)
	return due, err
}
