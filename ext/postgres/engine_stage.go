package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/storesql"
)

// PutTx puts a value into a queue of an [Engine] in a transaction of the caller: it is there when the transaction commits, and never was if
// it is rolled back. Workers of the queue are woken by the commit. The queue must be on an engine of this package.
func PutTx[T any](ctx context.Context, tx pgx.Tx, q *delivery.Queue[T], v T, opts ...delivery.PutOption) error {
	s, m, err := encode(q, v, opts)
	if err != nil {
		return err
	}
	return s.stage(ctx, tx, q.Name(), m)
}

// PutSQLTx is [PutTx] in a transaction of database/sql, with any driver for PostgreSQL.
func PutSQLTx[T any](ctx context.Context, tx *sql.Tx, q *delivery.Queue[T], v T, opts ...delivery.PutOption) error {
	s, m, err := encode(q, v, opts)
	if err != nil {
		return err
	}
	return s.stageSQL(ctx, tx, q.Name(), m)
}

func encode[T any](q *delivery.Queue[T], v T, opts []delivery.PutOption) (*Engine, store.Message, error) {
	s, ok := q.Engine().(*Engine)
	if !ok {
		return nil, store.Message{}, fmt.Errorf("postgres: PutTx: queue %q is on a %T", q.Name(), q.Engine())
	}
	m, err := q.Encode(v, opts...)
	return s, m, err
}

// stage puts messages into a queue in a transaction of the caller: they are there when it commits, and never were if it is
// rolled back. When the transaction commits, those that wait by [Engine.Wake] are notified.
func (s *Engine) stage(ctx context.Context, tx pgx.Tx, queue string, ms ...store.Message) error {
	if err := storearg.Put(queue, ms...); err != nil {
		return err
	}
	return s.do(ctx, func() error {
		rows := make([]storesql.Row, len(ms))
		for i := range ms {
			var err error
			if rows[i], err = storesql.NewRow(queue, &ms[i]); err != nil {
				return err
			}
		}
		if len(rows) == 0 {
			return nil
		}
		if err := s.insert(ctx, tx, rows); err != nil {
			return err
		}
		n := noticeOf(rows)
		_, err := tx.Exec(ctx, notify, []string{n.channel()}, []string{n.payload()})
		return err
	})
}

// stageSQL is stage in a transaction of database/sql, with any driver for PostgreSQL.
func (s *Engine) stageSQL(ctx context.Context, tx *sql.Tx, queue string, ms ...store.Message) error {
	if err := storearg.Put(queue, ms...); err != nil {
		return err
	}
	return s.do(ctx, func() error {
		for i := range ms {
			r, err := storesql.NewRow(queue, &ms[i])
			if err != nil {
				return err
			}
			if _, err := tx.ExecContext(ctx, `INSERT INTO weir_messages (queue, at, due, arrived, visit, merges, cause, meta, schema, payload)
				SELECT $1, now + $2 * interval '1 microsecond', now + $2 * interval '1 microsecond', now, $3, $4, $5, $6::jsonb, $7, $8
				FROM (SELECT `+s.now+` AS now) AS clock ON CONFLICT DO NOTHING`, r.Queue, micros(r.Delay), r.Meta.Visit, r.Meta.Merges,
				storesql.Readable(string(r.Cause)), r.MetaColumn, r.Schema, r.Payload); err != nil {
				return fmt.Errorf("staging message %q: %w", r.Meta.ID, err)
			}
		}
		if len(ms) == 0 {
			return nil
		}
		n := notice{queue: queue, delay: slices.MinFunc(ms, func(a, b store.Message) int { return cmp.Compare(a.Delay, b.Delay) }).Delay}
		_, err := tx.ExecContext(ctx, "SELECT pg_notify($1, $2)", n.channel(), n.payload())
		return err
	})
}
