package sqlite

import (
	"context"
	"time"
)

const maxBatch = 1000 // jobs

// job is the work of one call of the engine in a transaction. now is the store's time. A
// job may run twice.
type job func(ctx context.Context, tx *Tx, now time.Time) error

// write runs a job, and returns when it is committed or rolled back. Concurrent jobs
// share a call of [DB.Write]. If one of them fails, all are rolled back and run again,
// each in a call of its own (package group).
//
// Concurrent calls of [DB.Write] share a transaction as well, also with calls of the
// user. But each call needs a savepoint and a reading of the clock, so a job costs less.
func (s *Engine) write(ctx context.Context, f job) error {
	return s.do(ctx, func() error { return s.writes.Do(ctx, f) })
}

// runAll runs jobs in one call of [DB.Write]: see write.
func (s *Engine) runAll(ctx context.Context, take func() []job) error {
	err := s.db.Write(ctx, func(ctx context.Context, tx *Tx) error {
		s.step()
		var highest int64
		if err := tx.QueryRowContext(ctx, setClock, nanos(s.clock.Now(), 0)).Scan(&highest); err != nil {
			return err
		}
		now := s.clock.AtLeast(time.Unix(0, highest))
		s.step()
		for _, f := range take() {
			if err := f(ctx, tx, now); err != nil {
				return err
			}
			s.step()
		}
		return nil
	})
	s.step()
	return err
}
