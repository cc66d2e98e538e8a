package keys

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/guard"
)

// page is the number of rows per statement of the maintenance.
const page = 500

// Complete runs the unfinished requests that have rested for CompleteAfter and are not
// locked, one by one, and counts the finished and the failed ones. Failures are logged,
// and later calls try again at growing intervals, with the defaults about 24 times, until
// the retention has passed. Several servers may call it at once. The error comes from the
// database.
func (k *Keys) Complete(ctx context.Context) (completed, failed int, err error) {
	for last := ""; ; {
		now := k.config.Clock.Now()
		ids, err := k.unfinished(ctx, last, now)
		if err != nil {
			return completed, failed, fmt.Errorf("keys: complete: %w", explain(err))
		}
		if len(ids) == 0 {
			return completed, failed, nil
		}
		for _, id := range ids {
			if ctx.Err() != nil {
				return completed, failed, context.Cause(ctx)
			}
			last = id
			switch done, err := k.complete(ctx, id); {
			case err != nil:
				failed++
				k.config.Logger.Error("a request could not be completed", "request", id, "error", err)
			case done:
				completed++
			}
		}
	}
}

func (k *Keys) unfinished(ctx context.Context, after string, now time.Time) (ids []string, err error) {
	rest := k.config.CompleteAfter
	rows, err := k.db.QueryContext(ctx, unfinishedSQL, after, now.Add(-rest).UnixMicro(), rest.Microseconds(),
		now.Add(-k.config.LockTimeout).UnixMicro(), now.UnixMicro(), page)
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		ids = append(ids, id)
	}
	return ids, errors.Join(rows.Err(), rows.Close())
}

// complete runs a request. done is false if another run was faster.
func (k *Keys) complete(ctx context.Context, id string) (done bool, err error) {
	known, err := scan(k.db.QueryRowContext(ctx, byIDSQL, id))
	if err != nil || known == nil || known.done || k.isLocked(known) {
		return false, err
	}
	o := k.operation(known.operation)
	if o == nil {
		return false, fmt.Errorf("keys: no operation has the name %q", known.operation)
	}
	run, err := k.take(ctx, o, known)
	if err != nil || run == nil {
		return false, err
	}
	err = guard.Call(func() error {
		_, err := run.run(ctx)
		return err
	}, func(recovered any) error { return guard.Recovered("keys", recovered) })
	return err == nil, err
}

// End ends an unfinished request: later attempts get response, for another retention, and
// a run of it cannot commit. It is for a person who has checked the outcome of its calls.
// The error is exactlyonce.ErrInvalid if no unfinished request has the id. [Keys.List]
// returns the ids.
func (k *Keys) End(ctx context.Context, id string, response exactlyonce.Response) error {
	stored := response.Encode()
	if err := new(exactlyonce.Response).Decode(stored); err != nil {
		return err
	}
	result, err := k.db.ExecContext(ctx, endSQL, stored, k.now(), id)
	switch n, err := affected(result, err); {
	case err != nil:
		return fmt.Errorf("keys: end request %s: %w", id, explain(err))
	case n == 0:
		return fmt.Errorf("%w: no unfinished request has the id %q", exactlyonce.ErrInvalid, id)
	}
	return nil
}

// Reap removes finished requests whose retention has passed. It returns and logs how many
// unfinished requests are past their retention.
func (k *Keys) Reap(ctx context.Context) (removed, unfinished int, err error) {
	now := k.now()
	for more := true; more; {
		n, err := k.reap(ctx, now)
		if err != nil && !isConflict(err) { // with another server; try again
			return removed, 0, fmt.Errorf("keys: reap: %w", explain(err))
		}
		removed += n
		k.counters.collected.Add(uint64(n))
		more = err != nil || n == page
	}
	if err := k.db.QueryRowContext(ctx, overdueSQL, now).Scan(&unfinished); err != nil {
		return removed, 0, fmt.Errorf("keys: reap: %w", explain(err))
	}
	if unfinished > 0 {
		k.config.Logger.Warn("requests are past their retention and not finished; Complete has given up on them, Keys.End ends them",
			"number", unfinished)
	}
	return removed, unfinished, nil
}

func (k *Keys) reap(ctx context.Context, now int64) (int, error) {
	return k.remove(ctx, reapStepsSQL, reapSQL, now, page)
}

// removeExpired removes a finished request whose retention has passed, unless another
// server has removed it.
func (k *Keys) removeExpired(ctx context.Context, known *row) error {
	n, err := k.remove(ctx, removeStepsSQL, removeSQL, k.now(), known.id)
	if err != nil && !isConflict(err) { // with another server; the caller tries again
		return err
	}
	k.counters.collected.Add(uint64(n))
	return nil
}

// remove removes requests and returns their number. It removes the steps first, because a
// database may not enforce foreign keys.
func (k *Keys) remove(ctx context.Context, stepsSQL, requestsSQL string, args ...any) (int, error) {
	// Serializable, so that both statements find the same requests.
	tx, err := k.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return 0, err
	}
	n, err := removeIn(ctx, tx, stepsSQL, requestsSQL, args...)
	if err != nil {
		_ = tx.Rollback() // the connection may be broken
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return n, nil
}

func removeIn(ctx context.Context, tx *sql.Tx, stepsSQL, requestsSQL string, args ...any) (int, error) {
	if _, err := tx.ExecContext(ctx, stepsSQL, args...); err != nil {
		return 0, err
	}
	result, err := tx.ExecContext(ctx, requestsSQL, args...)
	n, err := affected(result, err)
	return int(n), err
}

// Maintain calls Complete and Reap at once and at the given interval, until ctx ends, and
// returns its cause. Errors are logged.
func (k *Keys) Maintain(ctx context.Context, every time.Duration) error {
	if every <= 0 {
		panic(fmt.Sprintf("keys: Maintain: every is %v", every))
	}
	ticker := k.config.Clock.Ticker(every)
	defer ticker.Stop()
	for {
		if _, _, err := k.Complete(ctx); err != nil && ctx.Err() == nil {
			k.config.Logger.Error("requests could not be completed", "error", err)
		}
		if _, _, err := k.Reap(ctx); err != nil && ctx.Err() == nil {
			k.config.Logger.Error("requests could not be removed", "error", err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
