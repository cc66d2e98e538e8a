package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

var _ store.KeyCounter = (*Engine)(nil)

// selectKeyCounts counts the messages of the queues $1 by key. The queue $2 has the dead
// letters. PostgreSQL uses an index if the queues are a part of the table, and else reads
// the table: it does not read an index of an expression alone.
const selectKeyCounts = `SELECT ` + keyOf + `,
		count(*) FILTER (WHERE queue <> $2), count(*) FILTER (WHERE queue <> $2 AND at = ` + never + `), count(*) FILTER (WHERE queue = $2),
		min(at) FILTER (WHERE queue <> $2 AND at < ` + parked + `), min(arrived) FILTER (WHERE queue <> $2)
	FROM weir_messages WHERE queue = ANY ($1) AND meta->>'key' IS NOT NULL GROUP BY 1`

// CountKeys implements [store.KeyCounter].
func (s *Engine) CountKeys(ctx context.Context, q store.KeyQuery) ([]store.KeyCounts, error) {
	err := storearg.KeyQuery(q)
	if err != nil {
		return nil, err
	}
	queues := q.Queues
	if q.Dead != "" {
		queues = append([]string{q.Dead}, queues...)
	}
	var top *storearg.TopKeys
	err = s.do(ctx, func() error {
		top = storearg.NewTopKeys(q) // the statement may be repeated
		rows, err := s.pool.Query(ctx, selectKeyCounts, queues, q.Dead)
		if err != nil {
			return err
		}
		var c store.KeyCounts
		var column string
		var next, oldest *time.Time
		_, err = pgx.ForEachRow(rows, []any{&column, &c.Waiting, &c.Held, &c.Dead, &next, &oldest}, func() error {
			c.Key = storesql.Key(column)
			c.Next = time.Time{}
			c.Oldest = time.Time{}
			if next != nil {
				c.Next = next.UTC()
			}
			if oldest != nil {
				c.Oldest = oldest.UTC()
			}
			top.Add(c)
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	return top.List(), nil
}
