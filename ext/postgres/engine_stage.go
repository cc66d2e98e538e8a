package postgres

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

// PutTx puts a value into a queue in a transaction of the caller: the message exists if
// and only if the transaction commits, which wakes the workers. delivery.WithMaxDepth
// does not bound it. The queue must be on an [Engine] of this package.
func PutTx[T any](ctx context.Context, tx pgx.Tx, q *delivery.Queue[T], v T, opts ...delivery.PutOption) error {
	s, m, err := encode(q, v, opts)
	if err != nil {
		return err
	}
	return s.stage(ctx, q.Name(), m, func(ctx context.Context, sql string, args ...any) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	})
}

// PutSQLTx is [PutTx] in a transaction of database/sql, with any driver for PostgreSQL.
func PutSQLTx[T any](ctx context.Context, tx *sql.Tx, q *delivery.Queue[T], v T, opts ...delivery.PutOption) error {
	s, m, err := encode(q, v, opts)
	if err != nil {
		return err
	}
	return s.stage(ctx, q.Name(), m, func(ctx context.Context, sql string, args ...any) error {
		_, err := tx.ExecContext(ctx, sql, args...)
		return err
	})
}

func encode[T any](q *delivery.Queue[T], v T, opts []delivery.PutOption) (*Engine, store.Message, error) {
	s, ok := q.Engine().(*Engine)
	if !ok {
		return nil, store.Message{}, fmt.Errorf("postgres: PutTx: queue %q is on a %T", q.Name(), q.Engine())
	}
	m, err := q.Encode(v, opts...)
	return s, m, err
}

// stage puts a message in a transaction of the caller, in which exec runs a statement. It
// uses no arrays, since drivers of database/sql have their own types for them. The commit
// notifies sources in [Engine.Wake].
func (s *Engine) stage(ctx context.Context, queue string, m store.Message, exec func(ctx context.Context, sql string, args ...any) error) error {
	if err := storearg.Put(queue, m); err != nil {
		return err
	}
	r, err := storesql.NewRow(queue, &m)
	if err != nil {
		return err
	}
	return s.do(ctx, func() error {
		if err := exec(ctx, s.insertionOf(`(SELECT $1::text, $2::bigint, $3::bigint, $4::bigint, $5::text, $6::text, $7::bytea, $8::bytea, 1)`),
			r.Queue, micros(r.Delay), r.Meta.Visit, r.Meta.Merges, storesql.Readable(string(r.Cause)), r.MetaColumn, r.Schema, r.Payload); err != nil {
			return fmt.Errorf("staging message %q: %w", guard.Shown(m.Meta.ID), err)
		}
		// The delay began before the commit, whose time is unknown here: the hub looks at
		// once, and finds when the message is due.
		n := notice{queue, min(max(0, m.Delay), time.Microsecond)}
		return exec(ctx, "SELECT pg_notify($1, $2)", n.channel(), n.payload())
	})
}
