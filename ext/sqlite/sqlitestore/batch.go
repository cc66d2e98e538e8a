package sqlitestore

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
)

const maxBatch = 1000 // jobs

// job is what one call does in a transaction, at a time of the store's clock. It may run twice; the last run counts.
type job func(ctx context.Context, tx *sqlite.Tx, now time.Time) error

// batch is the jobs of calls that wait for the same turn to write. They share a savepoint and a reading of the clock, which
// would cost more than a job. jobs and closed are guarded by Store.mu; err is set before done is closed.
type batch struct {
	jobs   []job // nil: withdrawn
	closed bool  // it runs
	done   chan struct{}
	err    error
}

// write runs a job, and returns when it is committed or rolled back.
func (s *Store) write(ctx context.Context, f job) error {
	return s.read(ctx, func() error {
		b, i, err := s.join(f)
		if err != nil {
			return err
		}
		select {
		case <-b.done:
		case <-ctx.Done():
			if s.withdraw(b, i) {
				return context.Cause(ctx)
			}
			<-b.done // soon: it runs
		}
		if b.err != nil && len(b.jobs) > 1 {
			return s.commit(ctx, []job{f}) // it may have been the trouble of another one
		}
		return b.err
	})
}

// join adds a job to the batch that waits for its turn. The first one starts it.
func (s *Store) join(f job) (b *batch, i int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, 0, store.ErrClosed
	}
	b = s.waiting
	if b == nil || len(b.jobs) == maxBatch {
		b = &batch{done: make(chan struct{})}
		s.waiting = b
		// Ends with the transaction; Close waits for it.
		s.running.Go(func() {
			b.err = s.db.Write(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
				return s.run(ctx, tx, s.take(b))
			})
			s.step()
			s.take(b) // it may have failed before it ran
			close(b.done)
		})
	}
	b.jobs = append(b.jobs, f)
	return b, len(b.jobs) - 1, nil
}

// take closes a batch and returns its jobs.
func (s *Store) take(b *batch) []job {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.closed = true
	if s.waiting == b {
		s.waiting = nil
	}
	return b.jobs
}

func (s *Store) withdraw(b *batch, i int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if b.closed {
		return false
	}
	b.jobs[i] = nil
	return true
}

// commit runs jobs in a transaction of their own.
func (s *Store) commit(ctx context.Context, jobs []job) error {
	return s.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error { return s.run(ctx, tx, jobs) })
}

func (s *Store) run(ctx context.Context, tx *sqlite.Tx, jobs []job) error {
	s.step()
	var highest int64
	if err := tx.QueryRowContext(ctx, setClock, nanos(s.clock.Now(), 0)).Scan(&highest); err != nil {
		return err
	}
	now := s.clock.AtLeast(time.Unix(0, highest))
	s.step()
	for _, f := range jobs {
		if f == nil {
			continue
		}
		if err := f(ctx, tx, now); err != nil {
			return err
		}
		s.step()
	}
	return nil
}
