package postgres

import (
	"context"
	"database/sql"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
)

// SetStep sets what is called between statements.
func SetStep(s *Engine, step func()) { s.step = step }

// SetNow sets the expression that is the database's clock.
func SetNow(s *Engine, now string) { s.now = now }

// Stage puts messages in a transaction, as PutTx does.
func Stage(ctx context.Context, s *Engine, tx pgx.Tx, queue string, ms ...store.Message) error {
	for _, m := range ms {
		if err := s.stage(ctx, queue, m, func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// StageSQL puts messages in a transaction, as PutSQLTx does.
func StageSQL(ctx context.Context, s *Engine, tx *sql.Tx, queue string, ms ...store.Message) error {
	for _, m := range ms {
		if err := s.stage(ctx, queue, m, func(ctx context.Context, sql string, args ...any) error {
			_, err := tx.ExecContext(ctx, sql, args...)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// SetClock sets the clock of the engine's own waits.
func SetClock(s *Engine, c clock.Clock) { s.clock = c }

// OnWake sets what is called when the engine wakes the consumers of a queue. The engine
// does not listen for notifications.
func OnWake(s *Engine, queue string, wake func()) {
	w := &waiter{wake: func(bool) { wake() }, ended: make(chan error, 1)}
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	s.hub.waiting = map[string]map[*waiter]bool{queue: {w: true}}
}

// Noted returns after which time the engine will make consumers of a queue look again.
func Noted(s *Engine, queue string) time.Duration {
	s.news.mu.Lock()
	defer s.news.mu.Unlock()
	return s.news.pending[queue].later
}

// LockOfKey is the number of the lock of a key in a queue and its layers.
func LockOfKey(main, key string) int64 { return lockOfKey(main, key) }
