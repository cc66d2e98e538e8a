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

// keyOf is the key of a message as the index weir_messages_key has it.
const keyOf = `(meta->>'key') COLLATE "C"`

// nextKey returns the key behind another one.
func nextKey(after string) string {
	return `(SELECT ` + keyOf + ` FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` > ` + after + ` ORDER BY ` + keyOf + ` LIMIT 1)`
}

// keysInTurn returns up to $3 keys behind $2 that have messages which are due, and others on the way, up to a thousand. One step of the index
// for each. The last row has no key if there is none left.
func (s *Engine) keysInTurn() string {
	return `WITH RECURSIVE clock AS MATERIALIZED (SELECT ` + s.now + ` AS now), keys (key, found, looked) AS (
			SELECT ` + nextKey("$2") + `, 0, 1
			UNION ALL
			SELECT ` + nextKey("keys.key") + `, found + (EXISTS (SELECT 1 FROM weir_messages WHERE queue = $1 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` = keys.key
				AND at <= (SELECT now FROM clock)) AND key <> ALL ($4::text[]))::int, looked + 1
			FROM keys WHERE key IS NOT NULL AND found < $3 AND looked <= ` + storesql.KeysLooked + `
		) SELECT key, found FROM keys ORDER BY looked`
}

// TakeByKey implements [store.ByKey].
func (s *Engine) TakeByKey(ctx context.Context, queue string, t store.Turn, limit int, lease time.Duration) (taken []store.Leased, next string, err error) {
	if err := errors.Join(storearg.Take(queue, limit, lease), storearg.Turn(t)); err != nil {
		return nil, "", err
	}
	except, err := storesql.EscapedAll(t.Except)
	if err != nil {
		return nil, "", err
	}
	after, begun := storearg.After(t)
	err = s.do(ctx, func() error {
		return retry(func() (err error) {
			if !begun {
				next = storearg.Next("")
				if taken, err = s.lease(ctx, queue, withoutKey, micros(lease), queue, min(limit, t.Each)); err != nil || len(taken) > 0 {
					return err
				}
			}
			turns, err := s.turns(ctx, queue, after, limit, except)
			if next = turns.Next; err != nil || len(turns.Keys) == 0 {
				return err
			}
			taken, err = s.lease(ctx, queue, ofKeys, micros(lease), queue, min(t.Each, limit/len(turns.Keys)), turns.Keys)
			return err
		})
	})
	return taken, next, err
}

// What is leased of some keys, and of those without. Another worker may have chosen the same.
const (
	ofKeys = `position = ANY (ARRAY(SELECT m.position FROM unnest($4::text[]) WITH ORDINALITY AS keys (key, n), LATERAL (
			SELECT position FROM weir_messages WHERE queue = $2 AND meta->>'key' IS NOT NULL AND ` + keyOf + ` = keys.key AND at <= (SELECT now FROM clock)
			ORDER BY ` + keyOf + `, at, position LIMIT $3) AS m ORDER BY n)) AND at <= (SELECT now FROM clock)`
	withoutKey = `position = ANY (ARRAY(SELECT position FROM (SELECT position, meta FROM weir_messages
			WHERE queue = $2 AND at <= (SELECT now FROM clock) ORDER BY at, position LIMIT ` + storesql.OldestLooked + `) AS oldest
			WHERE meta->>'key' IS NULL LIMIT $3)) AND at <= (SELECT now FROM clock)`
)

// turns returns the keys whose turn it is.
func (s *Engine) turns(ctx context.Context, queue, after string, limit int, except []string) (turns storesql.Turns, err error) {
	err = indexed(ctx, s.pool, func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		var key *string
		var found int
		_, err = pgx.ForEachRow(rows, []any{&key, &found}, func() error {
			turns.Add(key, found)
			return nil
		})
		return err
	}, s.keysInTurn(), queue, after, limit, except)
	return turns, err
}
