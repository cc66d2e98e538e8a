package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storesql"
)

// channel is where Stage notifies, with the queue as payload.
const channel = "weir_messages"

// maxQueue is how long the payload of a notification may be, in bytes; longer names are left to polling.
const maxQueue = 7000

// Stage puts messages into a queue in a transaction of the caller: they are there when it commits, and never were if it is
// rolled back. Their consumers are those of the queue, or a relay (package outbox) that brings them to another system. When the
// transaction commits, those that wait by [Store.Notify] are notified.
func (s *Store) Stage(ctx context.Context, tx pgx.Tx, queue string, ms ...store.Message) error {
	if err := store.CheckPut(queue, ms...); err != nil {
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
		if err := s.insert(ctx, tx, rows); err != nil || len(queue) > maxQueue {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT pg_notify($1, $2)", channel, queue)
		return err
	})
}

// StageSQL is [Store.Stage] in a transaction of database/sql, with any driver for PostgreSQL.
func (s *Store) StageSQL(ctx context.Context, tx *sql.Tx, queue string, ms ...store.Message) error {
	if err := store.CheckPut(queue, ms...); err != nil {
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
		if len(ms) == 0 || len(queue) > maxQueue {
			return nil
		}
		_, err := tx.ExecContext(ctx, "SELECT pg_notify($1, $2)", channel, queue)
		return err
	})
}

// Notify implements [store.Notifier], for what is staged. It keeps a connection of the pool (LISTEN).
func (s *Store) Notify(ctx context.Context, queue string, wake func()) error {
	if err := s.do(ctx, func() error { return nil }); err != nil {
		return err
	}
	err := s.listen(ctx, queue, wake)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return explain(err)
}

func (s *Store) listen(ctx context.Context, queue string, wake func()) error {
	pooled, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// Not given back to the pool: it listens, and may be in the middle of a message.
	conn := pooled.Hijack()
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing) // it is given up
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return err
	}
	wake() // what was put before it listened
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		if n.Payload == queue {
			wake()
		}
	}
}
