package sqlite

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.KeyCounter = (*Engine)(nil)

// selectKeyCounts returns the statement of CountKeys, and its parameters. It only reads
// an index by key. A key's first position is its first arrival, because the clock of the
// file does not go back.
func selectKeyCounts(q store.KeyQuery) (statement string, args []any) {
	parts := make([]string, 0, len(q.Queues)+1)
	part := func(queue, counts string) {
		args = append(args, queue)
		parts = append(parts, "SELECT meta->>'key' AS key, "+counts+" FROM weir_messages WHERE queue = "+storesql.Param(len(args))+
			" AND meta->>'key' IS NOT NULL GROUP BY meta->>'key'")
	}
	for _, queue := range q.Queues {
		part(queue, "count(*) AS waiting, sum(at = "+neverText+") AS held, 0 AS dead, min(at) AS next, min(position) AS first")
	}
	if q.Dead != "" {
		part(q.Dead, "0, 0, count(*), NULL, NULL")
	}
	return `SELECT key, waiting, held, dead, next, (SELECT arrived FROM weir_messages WHERE position = first) FROM (
			SELECT key, sum(waiting) AS waiting, sum(held) AS held, sum(dead) AS dead, min(next) AS next, min(first) AS first FROM (
				` + strings.Join(parts, " UNION ALL ") + `
			) GROUP BY key)`, args
}

// CountKeys implements [store.KeyCounter].
func (s *Engine) CountKeys(ctx context.Context, q store.KeyQuery) ([]store.KeyCounts, error) {
	err := storearg.KeyQuery(q)
	if err != nil {
		return nil, err
	}
	statement, args := selectKeyCounts(q)
	top := storearg.NewTopKeys(q)
	err = s.do(ctx, func() error {
		rows, err := s.db.Reader().QueryContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err is looked at
		for rows.Next() {
			var c store.KeyCounts
			var next, oldest sql.NullInt64
			err = rows.Scan(&c.Key, &c.Waiting, &c.Held, &c.Dead, &next, &oldest)
			if err != nil {
				return err
			}
			c.Key = storesql.Key(c.Key)
			if next.Valid && next.Int64 < parked {
				c.Next = time.Unix(0, next.Int64).UTC()
			}
			if oldest.Valid {
				c.Oldest = time.Unix(0, oldest.Int64).UTC()
			}
			top.Add(c)
		}
		return rows.Err()
	})
	if err != nil {
		return nil, err
	}
	return top.List(), nil
}
