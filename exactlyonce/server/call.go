package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/exactlyonce"
)

// flight is a running request. Results.mu guards all but the fields that closing done
// publishes.
type flight struct {
	record    *record
	principal *principal
	driver    *Call // whose answer counts; nil if it has left
	handlers  int   // NEW calls that have not ended
	waiting   int   // IN_PROGRESS calls that have not ended
	first     Call
	context   handlerContext // of first, if Do runs it

	done   chan struct{} // made by the first waiter, closed at the end
	ended  bool
	answer []byte // with err: written before done is closed
	err    error  // before the end: the error of the driver that left
	stale  bool   // a handler left the request in doubt
}

// Call is an attempt that [Results.Track] has noted. Safe for concurrent use.
type Call struct {
	results *Results
	req     exactlyonce.Request
	state   state
	answer  []byte  // if COMPLETED
	flight  *flight // else
	ended   bool    // guarded by Results.mu
}

// IsNew reports whether the caller has to run the request: the attempt found neither an
// answer nor a running attempt. It does not change.
func (c *Call) IsNew() bool { return c.state == stateNew }

// IsCompleted reports whether the attempt has found the stored answer, which Wait
// returns. It does not change. A call that is neither new nor completed waits for a
// running attempt.
func (c *Call) IsCompleted() bool { return c.state == stateCompleted }

// IsDriver reports whether the answer of c would count: c is NEW, has not ended, and was
// not taken over.
func (c *Call) IsDriver() bool {
	if c.state != stateNew {
		return false
	}
	c.results.mu.Lock()
	defer c.results.mu.Unlock()
	return c.flight.driver == c
}

// Wait returns the stored answer, or waits for the result of the running attempt. It ends
// the call. If ctx ends first, the error is context.Cause(ctx).
func (c *Call) Wait(ctx context.Context) ([]byte, error) {
	switch c.state {
	case stateCompleted:
		return c.answer, nil
	case stateInProgress:
	default:
		return nil, errors.New("exactlyonce: Wait in the call that has to run the request")
	}
	defer c.leave()
	select {
	case <-c.flight.done:
		return c.flight.answer, c.flight.err
	default:
	}
	select {
	case <-c.flight.done:
		return c.flight.answer, c.flight.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (c *Call) leave() {
	r, f := c.results, c.flight
	r.mu.Lock()
	if c.ended {
		r.mu.Unlock()
		return
	}
	c.ended = true
	f.waiting--
	r.stats.Waiting--
	f.principal.runs[ofBytes] -= waiterCost
	r.use(f.principal, ofBytes, -waiterCost)
	cancel := f.waiting == 0 && f.context.deserted
	r.mu.Unlock()
	if cancel {
		f.context.cancel()
	}
}

// Complete ends the call with the answer of the request, which must not be changed
// afterwards. All other attempts get the same bytes. If the call is not the driver or has
// ended, the answer is not stored, and the error matches [exactlyonce.ErrInProgress].
func (c *Call) Complete(answer []byte) error { return c.complete(answer, true) }

// complete is Complete. made is false if the answer was found in Records.
func (c *Call) complete(answer []byte, made bool) error {
	r, f := c.results, c.flight
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state != stateNew || f.driver != c {
		r.stats.NotDriver++
		if c.state == stateNew {
			r.endHandler(c, now)
		}
		return fmt.Errorf("%w: %s", errNotDriver, c.req.ID)
	}
	c.ended = true
	if made {
		r.stats.Completed++
	}
	f.answer, f.err = answer, nil
	rec := r.land(f, now)
	client := rec.client
	rec.answer = answer
	rec.attempt = c.req.Attempt
	rec.touched = now
	client.answered = max(client.answered, rec.seq)
	r.use(client.principal, ofBytes, int64(cap(answer)))
	client.principal.aged.pushBack(rec)
	switch {
	case rec.seq < client.before: // acknowledged meanwhile
		r.stats.Acknowledged++
		r.forget(rec, false)
	case len(answer) > r.config.MaxAnswer,
		// The effect has happened, so it is too late to refuse (law X3).
		!r.evictFor(client.principal, now, [bounds]int64{}, client) && client.get(c.req.Sequence, c.req.Step) == rec:
		r.stats.Unkept++
		r.forget(rec, true)
	}
	return nil
}

// Fail ends the call without an answer. Waiting attempts get err ([ErrNoAnswer] if nil),
// and the next attempt is NEW, both once no other handler could still answer. If err
// matches [exactlyonce.ErrStale], the next attempt is STALE instead.
//
// After the end of the call Fail is a no-op, so it can be deferred. A call that is not
// the driver does not affect the driver or a stored answer.
func (c *Call) Fail(err error) {
	switch c.state {
	case stateCompleted:
		return
	case stateInProgress:
		c.leave()
		return
	case stateNew:
	}
	if err == nil {
		err = ErrNoAnswer
	}
	r, f := c.results, c.flight
	now, stale := r.now(), isStale(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.ended {
		return
	}
	r.stats.Failed++
	if !f.ended {
		f.stale = f.stale || stale
		if f.driver == c || f.err == nil {
			f.err = err
		}
	}
	r.endHandler(c, now)
}

// isStale reports whether err matches ErrStale. An error whose methods panic counts as
// stale.
func isStale(err error) (stale bool) {
	defer func() {
		if recover() != nil {
			stale = true
		}
	}()
	return errors.Is(err, exactlyonce.ErrStale)
}

// endHandler ends a NEW call without an answer. The last one ends the request, so that no
// attempt waits forever. It runs under mu.
func (r *Results) endHandler(c *Call, now time.Duration) {
	f := c.flight
	if c.ended {
		return
	}
	c.ended = true
	f.handlers--
	if f.driver == c {
		f.driver = nil
	}
	if f.ended || f.handlers > 0 {
		return
	}
	if f.err == nil {
		f.err = ErrNoAnswer
	}
	rec := r.land(f, now)
	client := rec.client
	r.dropRecord(rec, false)
	if f.stale {
		r.markEvicted(client, c.req.Sequence, c.req.Step)
	}
}

// land ends a running request and its waiting attempts. It runs under mu.
func (r *Results) land(f *flight, now time.Duration) *record {
	rec := f.record
	rec.flight, f.record = nil, nil // its memory is reused
	f.ended = true
	f.driver = nil
	if f.done != nil {
		close(f.done)
	}
	r.stats.InProgress--
	c := rec.client
	r.use(c.principal, ofBytes, -flightCost)
	c.running--
	c.principal.run(-1, c.running == 0)
	c.pin()
	c.heard = now
	r.silent.moveBack(c.principal)
	if c.running == 0 {
		r.busy.remove(c)
		c.principal.idle.pushBack(c)
	}
	return rec
}

// findAgain is how long Records are asked for the outcome of a failed request.
const findAgain = 5 * time.Second

// run calls the handler of a NEW call, and ends the call in any case.
func (c *Call) run(
	ctx context.Context, run func(ctx context.Context) ([]byte, error),
) (answer []byte, replayed bool, err error) {
	h := &c.flight.context
	h.call, h.parent = c, ctx
	defer h.end()
	defer c.Fail(nil) // if the handler panics or calls runtime.Goexit
	answer, err = run(h)
	if err == nil {
		if err := c.Complete(answer); err != nil {
			return nil, false, err
		}
		return answer, false, nil
	}
	return c.failed(ctx, err)
}

func (c *Call) failed(ctx context.Context, err error) (answer []byte, replayed bool, _ error) {
	if records := c.results.config.Records; records != nil {
		// Another server may have answered (ErrInProgress), or the answer to COMMIT was
		// lost.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), findAgain)
		defer cancel()
		stored, found, findErr := records.Find(ctx, c.req)
		switch {
		case findErr != nil && isStale(findErr):
			err = errors.Join(exactlyonce.ErrStale, err)
		case findErr != nil:
			err = errors.Join(err, fmt.Errorf("exactlyonce: look for a record of %s: %w", c.req.ID, findErr))
		case found:
			if err := c.complete(stored, false); err != nil {
				return nil, false, err
			}
			return stored, true, nil
		}
	}
	c.Fail(err)
	return nil, false, err
}
