package keys

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/exactlyonce"
)

const (
	maxTries = 10              // of one transaction
	loadWait = 5 * time.Second // for loading after a COMMIT without an answer
)

// Run is an attempt to complete a request. Only its handler may use it, not concurrently.
type Run struct {
	Request

	operation *Operation
	id        string
	fence     int64
	lockedAt  int64 // last lock by this run
	point     string
	steps     []step // completed by any run
	position  int    // steps that the handler has passed
	response  *exactlyonce.Response
}

// ID returns the request's random id: 32 hexadecimal digits.
func (r *Run) ID() string { return r.id }

// Phase runs work, whose result must be encodable as JSON, in a serializable transaction
// that also commits the recovery point name (law X2). If the request has completed this
// step, Phase returns the stored result without running work. work may run several times,
// each in a new transaction, and must not use another connection of the database. name
// has 1 to 50 bytes. Phase panics if an earlier step has the same name.
//
// Errors come from work and the database, or match exactlyonce.ErrInProgress: another run
// has taken over and the last step was rolled back, or the transaction failed too often
// because of others. The request may be repeated. If the handler's steps differ from the
// completed steps, the error names them: the handler was changed, or depends on a value
// that differs between runs. The request is unlocked and stays unfinished.
func Phase[T any](ctx context.Context, r *Run, name string, work func(ctx context.Context, tx *sql.Tx) (T, error)) (T, error) {
	return decode[T](r.step(ctx, name, func(ctx context.Context, tx *sql.Tx) ([]byte, error) {
		result, err := work(ctx, tx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(result)
	}, nil))
}

// Phase is the function Phase for work without a result.
func (r *Run) Phase(ctx context.Context, name string, work func(ctx context.Context, tx *sql.Tx) error) error {
	_, err := Phase(ctx, r, name, func(ctx context.Context, tx *sql.Tx) (struct{}, error) { return struct{}{}, work(ctx, tx) })
	return err
}

// Call calls another service, outside of any transaction, and commits its result with the
// recovery point name. key, derived from the request and name, is the same in every run,
// and differs between users. Pass it on as the idempotency key. The context ends with the
// lock. After an error a later run repeats the call.
//
// Errors are as for [Phase], with the errors of call.
func Call[T any](ctx context.Context, r *Run, name string, call func(ctx context.Context, key string) (T, error)) (T, error) {
	return decode[T](r.step(ctx, name, nil, func(ctx context.Context) ([]byte, error) {
		result, err := call(ctx, r.id+"-"+name)
		if err != nil {
			return nil, err
		}
		return json.Marshal(result)
	}))
}

// decode decodes a stored result, also in the run that stored it, so that all runs see
// the same value.
func decode[T any](stored []byte, err error) (T, error) {
	var result T
	if err != nil {
		return result, err
	}
	if err := json.Unmarshal(stored, &result); err != nil {
		return result, fmt.Errorf("keys: result of a step: %w", err)
	}
	return result, nil
}

// step passes one step: it returns the stored result, or runs work or call. The other is
// nil.
func (r *Run) step(ctx context.Context, name string, work func(ctx context.Context, tx *sql.Tx) ([]byte, error),
	call func(ctx context.Context) ([]byte, error),
) ([]byte, error) {
	if name == "" || len(name) > maxPoint || name == started || name == finished {
		panic(fmt.Sprintf("keys: the name %q of a step is reserved, or does not have 1 to %d bytes", name, maxPoint))
	}
	if slices.ContainsFunc(r.steps[:r.position], func(s step) bool { return s.name == name }) {
		panic(fmt.Sprintf("keys: there are two steps %q", name)) // two calls would have the same key
	}
	if r.response != nil {
		return nil, r.misfit(finished, name)
	}
	if r.position < len(r.steps) {
		done := r.steps[r.position]
		if done.name != name {
			return nil, r.misfit(done.name, name)
		}
		r.position++
		return done.result, nil
	}
	if err := r.renew(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := r.whileLocked(ctx)
	defer cancel()
	if call != nil {
		result, err := call(ctx)
		if err != nil {
			return nil, err
		}
		work = func(context.Context, *sql.Tx) ([]byte, error) { return result, nil }
	}
	var result []byte
	loaded, err := r.commit(ctx, name, func(ctx context.Context, tx *sql.Tx) (err error) {
		result, err = work(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, stepSQL, r.id, r.position+1, name, result)
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case !loaded:
		r.steps, r.point = append(r.steps, step{name, result}), name
	case r.response != nil:
		return nil, r.refuse(errLockLost) // another run has finished the request
	case r.position >= len(r.steps) || r.steps[r.position].name != name:
		return nil, fmt.Errorf("keys: request %s is at %q after step %q", r.id, r.point, name)
	}
	r.position++
	return r.steps[r.position-1].result, nil
}

func (r *Run) misfit(stored, asked string) error {
	return fmt.Errorf("keys: bug in operation %s: request %s has done %q as its step %d, the handler asks for %q",
		r.operation.name, r.id, stored, r.position+1, asked)
}

// Finish is the last phase: it runs work and commits its response in a single
// transaction. Then the request is finished, and later attempts get the same response.
// The status must be from 200 to 999.
func (r *Run) Finish(ctx context.Context, work func(ctx context.Context, tx *sql.Tx) (exactlyonce.Response, error)) (exactlyonce.Response, error) {
	if r.response != nil {
		return exactlyonce.Response{}, r.misfit(finished, finished)
	}
	if r.position < len(r.steps) {
		return exactlyonce.Response{}, r.misfit(r.steps[r.position].name, finished)
	}
	if err := r.renew(ctx); err != nil {
		return exactlyonce.Response{}, err
	}
	ctx, cancel := r.whileLocked(ctx)
	defer cancel()
	var response exactlyonce.Response
	loaded, err := r.commit(ctx, finished, func(ctx context.Context, tx *sql.Tx) error {
		given, err := work(ctx, tx)
		if err != nil {
			return err
		}
		stored := given.Encode()
		err = response.Decode(stored)
		if err != nil { // as later attempts receive it
			return err
		}
		_, err = tx.ExecContext(ctx, finishSQL, stored, r.operation.keys.now(), r.id)
		return err
	})
	switch {
	case err != nil:
		return exactlyonce.Response{}, err
	case !loaded:
		r.response = &response
	case r.response == nil:
		return exactlyonce.Response{}, fmt.Errorf("keys: request %s is at %q after its last step", r.id, r.point)
	}
	return *r.response, nil
}

func (r *Run) whileLocked(ctx context.Context) (context.Context, context.CancelFunc) {
	k := r.operation.keys
	expires := time.UnixMicro(r.lockedAt).Add(k.config.LockTimeout)
	return k.within(ctx, expires.Sub(k.config.Clock.Now()))
}

// commit runs work in a transaction that advances the request to point. It loads the run
// again after a lost answer to COMMIT.
func (r *Run) commit(ctx context.Context, point string, work func(ctx context.Context, tx *sql.Tx) error) (loaded bool, err error) {
	for try := 1; ; try++ {
		ended, err := r.try(ctx, point, work)
		switch {
		case err == nil:
			return false, nil
		case errors.Is(err, errMoved):
			return true, r.load(ctx) // an earlier try has committed, or another run has taken over
		case isConflict(err):
			if try == maxTries {
				return false, r.refuse(fmt.Errorf("%w: %w", errConflict, err))
			}
		case ended:
			// The stored state decides.
			before := r.point
			loading, cancel := r.operation.keys.within(context.WithoutCancel(ctx), loadWait)
			loadErr := r.load(loading)
			cancel()
			if loadErr != nil || r.point == before && r.response == nil {
				return false, errors.Join(err, loadErr)
			}
			return true, nil
		default:
			return false, err
		}
		pause := time.Duration(rand.Int64N(int64(time.Millisecond) << try)) // up to 2 ms at first, 0.5 s at last
		select {
		case <-r.operation.keys.config.Clock.After(pause):
		case <-ctx.Done():
			return false, errors.Join(context.Cause(ctx), err)
		}
	}
}

var errMoved = errors.New("keys: the request has moved")

// try runs one transaction. ended reports that COMMIT was sent.
func (r *Run) try(ctx context.Context, point string, work func(ctx context.Context, tx *sql.Tx) error) (ended bool, err error) {
	k := r.operation.keys
	tx, err := k.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return false, err
	}
	committed := false
	defer func() { // even after a panic in work
		if !committed {
			_ = tx.Rollback() // the connection may be broken
		}
	}()
	now := k.now()
	args := []any{point, now, r.id, r.fence, r.point}
	if k.dialect == PostgreSQL {
		args = append(args, strconv.FormatInt(max(1, k.config.LockTimeout.Milliseconds()), 10))
	}
	result, err := tx.ExecContext(ctx, k.in(advanceSQL, advancePostgreSQL), args...)
	if n, err := affected(result, err); err != nil || n == 0 {
		if err == nil {
			err = errMoved
		}
		return false, err
	}
	if err := work(ctx, tx); err != nil {
		return false, err
	}
	committed = true
	if err := tx.Commit(); err != nil {
		return true, err
	}
	r.lockedAt = now
	return true, nil
}

// Do completes a request and returns its response, or the response of an earlier run.
// With an error of the operation's handler, the response may still have to be sent. Other
// errors are exactlyonce.ErrInvalid, exactlyonce.ErrMismatch and
// exactlyonce.ErrInProgress, and the errors of [Phase].
//
// An error of the handler keeps its classes, even if they come from a service that it
// calls. [Operation.Handler] distinguishes the two.
func (o *Operation) Do(ctx context.Context, req Request) (exactlyonce.Response, error) {
	end := o.do(ctx, req)
	return end.response, end.err
}

type end struct {
	response exactlyonce.Response
	replayed bool  // from an earlier run
	refused  bool  // by the operation itself
	err      error // nil if the request is finished
}

func (o *Operation) do(ctx context.Context, req Request) end {
	counts := &o.keys.counters
	if err := req.validate(); err != nil {
		counts.refused(err)
		return end{refused: true, err: err}
	}
	run, stored, err := o.keys.claim(ctx, o, req)
	if err != nil {
		if isConflict(err) {
			err = fmt.Errorf("%w: %w", errConflict, err)
		}
		counts.refused(err)
		return end{refused: true, err: explain(err)}
	}
	if stored != nil {
		counts.replayed.Add(1)
		return end{response: *stored, replayed: true}
	}
	if run.fence == 1 {
		counts.begun.Add(1)
	} else {
		counts.resumed.Add(1)
	}
	response, err := run.run(ctx)
	return end{response: response, refused: run.refused(err, exactlyonce.ErrInProgress), err: err}
}

func (r *Run) run(ctx context.Context) (response exactlyonce.Response, err error) {
	defer func() { // even after a panic
		if r.refused(err, errLockLost) {
			r.operation.keys.counters.stale.Add(1)
		}
		if r.response == nil {
			r.unlock(ctx)
		}
	}()
	if r.response != nil {
		return *r.response, nil
	}
	response, err = r.operation.handler(ctx, r)
	if r.response != nil {
		return *r.response, nil // finished, even if the handler failed afterwards
	}
	if err != nil {
		return response, err
	}
	return r.Finish(ctx, func(context.Context, *sql.Tx) (exactlyonce.Response, error) { return response, nil })
}
