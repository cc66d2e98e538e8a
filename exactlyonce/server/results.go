package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/fifo"
)

// Config are the settings of [Results]. A zero field has its default.
type Config struct {
	// AnswerAge is how long an answer is kept after it was last asked for, unless the
	// client declares it done. Afterwards the request is STALE. Choose more than the
	// longest time over which a client repeats a request. Default 10 minutes, at least 1
	// ms.
	AnswerAge time.Duration

	// ClientSilence is how long a client is remembered after its last request ended, in
	// Records, too. Afterwards its mark is left, for 24 times as long: see [Results]. At
	// least AnswerAge. Default 1 hour, or AnswerAge if that is longer.
	ClientSilence time.Duration

	// The running requests of a principal, even of the only one, take at most half of
	// each bound. More are refused with ErrFull. So is a new client while the marks of
	// clients that were evicted within ClientSilence take half of MaxBytes. When others
	// need room, a principal with more than half of a bound loses the least recently
	// requested answers, and then the longest silent clients: those requests are STALE. A
	// client with running requests is not removed. If numbers of removed answers take
	// room, every request below about half of them becomes STALE, even if it was never
	// seen.

	// MaxBytes bounds the estimated memory of clients, records and answers. Default 256
	// MiB.
	MaxBytes int64
	// MaxClients bounds the remembered clients. Default 100,000.
	MaxClients int
	// MaxRecords bounds the requests that run or have an answer. Default 1,000,000.
	MaxRecords int
	// MaxAnswer bounds an answer, in bytes. A longer answer goes to the waiting attempts
	// only: the request is STALE afterwards. Default 1 MiB.
	MaxAnswer int
	// MaxWaiters bounds the attempts that wait for a running attempt. More get
	// ErrInProgress, as do attempts beyond half of MaxBytes of their principal. Default
	// 16. If it is negative, attempts do not wait.
	MaxWaiters int

	// Evict makes room where a bound would refuse a request with ErrFull: it removes the
	// principal's least recently requested answer, or its longest silent client, or else
	// one of the longest silent principal. A removed request is STALE. With Records
	// answers are always removed so, and read from Records later.
	Evict bool

	// Records are answers that outlive the process. Results are a cache above them.
	Records exactlyonce.Records

	// Clock drives all ages. Default: the real clock.
	Clock clock.Clock
}

// Results finds the earlier attempts of a request, so that a request has a single effect
// (law X1).
//
//	answer, found, err := results.Do(ctx, request, func(ctx context.Context) ([]byte, error) {
//		return charge(ctx, order) // at most one attempt at a time, and none after the first success
//	})
//
// Earlier attempts decide the state of an attempt:
//
//	NEW          none, or they all failed            it runs
//	IN_PROGRESS  one runs                            it waits and gets the same answer
//	COMPLETED    one has answered                    it gets the same bytes
//	STALE        the answer is gone                  ErrStale: it stays in doubt
//
// After an error the next attempt is NEW. So an error must mean that the effect did not
// happen, or that it may happen again.
//
// # Removal
//
//   - A request below the client's first incomplete number is removed when it has ended,
//     and STALE.
//   - An answer that was not asked for during AnswerAge is removed, and its request is
//     STALE. Requests that run or were never seen are not affected.
//   - A client that was silent during ClientSilence is forgotten, except for a mark above
//     its highest answered number: requests below it are STALE, and requests above it are
//     NEW. So a client that was idle or restarts continues.
//   - The mark is forgotten after 24 times ClientSilence, or earlier, though not within
//     ClientSilence, if room is short. Of an unknown client, a request first sent before
//     that ([exactlyonce.ID.Age]) is STALE, and others are NEW.
//
// Records do the same, except for lack of room.
//
// Results hold no goroutine, and a timer only while they remember clients. They are safe
// for concurrent use, and hold no lock while they call user code.
type Results struct {
	config  Config
	clock   clock.Clock
	start   time.Time
	life    context.Context // of Records called by the timer; ends with Close
	endLife context.CancelFunc
	timed   sync.WaitGroup // collections that the timer has started

	max     [bounds]int64
	toucher exactlyonce.Toucher // nil if Records do not have Touch

	mu         sync.Mutex
	clients    map[clientKey]*client
	forgot     time.Duration           // as client.forgot, for unknown clients
	tombstones map[clientKey]tombstone // clients that were forgotten
	tombQueue  fifo.Queue[dated]       // tombstones, roughly oldest first; some clients have returned
	principals map[string]*principal
	silent     list[principal, *principal] // principals with clients, the longest silent first
	busy       list[client, *client]       // clients with running requests, in the order of their next mark for Records
	most       [bounds]*principal          // a principal that uses more than half of a bound is here
	used       [bounds]int64               // of the bounds
	slabs      slabs                       // the memory of records
	lagging    map[*client]struct{}        // have records below their mark
	marks      map[clientKey]int64         // not yet acknowledged to Records
	asked      map[askedKey]struct{}       // requests whose answers were asked for, not yet reported to Records
	timer      *clock.Timer                // not nil while it is set
	closed     bool                        // set by Close
	stats      Stats                       // including current values
}

// NewResults returns empty results. It panics if a field of c is invalid.
func NewResults(c Config) *Results {
	check := func(ok bool, field string, value any) {
		if !ok {
			panic(fmt.Sprintf("server: NewResults: %s is %v", field, value))
		}
	}
	check(c.AnswerAge == 0 || c.AnswerAge >= time.Millisecond, "AnswerAge", c.AnswerAge)
	c.AnswerAge = cmp.Or(c.AnswerAge, 10*time.Minute)
	check(c.ClientSilence == 0 || c.ClientSilence >= c.AnswerAge, "ClientSilence", c.ClientSilence)
	c.ClientSilence = cmp.Or(c.ClientSilence, max(c.AnswerAge, time.Hour))
	check(c.MaxBytes >= 0, "MaxBytes", c.MaxBytes)
	c.MaxBytes = cmp.Or(c.MaxBytes, 256<<20)
	check(c.MaxClients >= 0, "MaxClients", c.MaxClients)
	c.MaxClients = cmp.Or(c.MaxClients, 100_000)
	check(c.MaxRecords >= 0, "MaxRecords", c.MaxRecords)
	c.MaxRecords = cmp.Or(c.MaxRecords, 1_000_000)
	check(c.MaxAnswer >= 0, "MaxAnswer", c.MaxAnswer)
	c.MaxAnswer = cmp.Or(c.MaxAnswer, 1<<20)
	c.MaxWaiters = max(0, cmp.Or(c.MaxWaiters, 16))
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	r := &Results{
		config: c, clock: c.Clock, start: c.Clock.Now(),
		max:     [bounds]int64{ofClients: int64(c.MaxClients), ofRecords: int64(c.MaxRecords), ofBytes: c.MaxBytes},
		clients: map[clientKey]*client{}, tombstones: map[clientKey]tombstone{}, principals: map[string]*principal{},
		forgot:  math.MinInt64,
		lagging: map[*client]struct{}{}, marks: map[clientKey]int64{}, asked: map[askedKey]struct{}{},
	}
	r.toucher, _ = c.Records.(exactlyonce.Toucher)
	r.life, r.endLife = context.WithCancel(context.Background())
	return r
}

func (r *Results) now() time.Duration { return r.clock.Since(r.start) }

// Do runs the request unless an earlier attempt has an answer or still runs, and returns
// the answer. replayed reports that another attempt has given it: run was not called, or
// was rolled back.
//
// An error of run also goes to the waiting attempts, and is not stored. If it matches
// [exactlyonce.ErrStale], the outcome of the request stays unknown. If run panics or
// calls runtime.Goexit, the others get [ErrNoAnswer].
//
// The context of run has the values of ctx, and the request
// ([exactlyonce.RequestFromContext]), but no deadline. It ends when ctx does, unless
// another attempt waits. The answer must not be changed afterwards.
//
// Errors are those of [Results.Track], run and Records, and context.Cause(ctx) if ctx
// ends while the attempt waits.
func (r *Results) Do(
	ctx context.Context, req exactlyonce.Request, run func(ctx context.Context) ([]byte, error),
) (answer []byte, replayed bool, err error) {
	call, err := r.Track(ctx, req)
	if err != nil {
		return nil, false, err
	}
	if call.state != stateNew {
		answer, err = call.Wait(ctx)
		return answer, true, err
	}
	return call.run(ctx, run)
}

// Track notes an attempt and returns a call, for callers that change drivers.
// [Results.Do] is simpler.
//
// If the call is NEW ([Call.IsNew]), the caller is the driver of the request: it runs it
// and ends the call with Complete or Fail. Otherwise it calls Wait, or Fail if it does
// not need the answer.
//
// Errors: ErrInvalid, ErrStale, ErrMismatch, ErrInProgress if too many attempts wait,
// ErrFull, and the errors of Records, with the cause of the context. With an error the
// call has ended.
func (r *Results) Track(ctx context.Context, req exactlyonce.Request) (*Call, error) {
	if err := req.Validate(); err != nil {
		r.invalid()
		return nil, err
	}
	call, ask, err := r.track(req, false)
	if ask {
		return r.ask(ctx, call)
	}
	return call, err
}

// TakeOver is Track for a service whose replicas execute requests in an agreed order,
// such as a replicated log. An attempt from there becomes the driver of a running
// request, and its call is NEW; the earlier handler ceases to be the driver
// ([Call.IsDriver]). If the last handler leaves without an answer, waiting attempts get
// its error and the next attempt is NEW. Records are not asked.
func (r *Results) TakeOver(req exactlyonce.Request) (*Call, error) {
	if err := req.Validate(); err != nil {
		r.invalid()
		return nil, err
	}
	call, _, err := r.track(req, true)
	return call, err
}

// KeepsRefusal reports whether a request refused here is refused for all of its attempts:
// on this server and, with Records, on every server that shares them. Their answer must
// then be a refusal, as isRefusal decides: otherwise another server may run the request.
// KeepsRefusal returns false without a look-up for a request that was sent once, since no
// other attempt can be in doubt.
func (r *Results) KeepsRefusal(ctx context.Context, req exactlyonce.Request, isRefusal func(answer []byte) bool) bool {
	if r.config.Records == nil {
		return true
	}
	if req.Attempt <= 1 && req.Age <= 0 {
		return false
	}
	answer, found, err := r.config.Records.Find(ctx, req)
	return err == nil && found && isRefusal(answer)
}

func (r *Results) invalid() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stats.Invalid++
}

// track is the common part of Track and TakeOver. If ask, Records have to be asked about
// the call.
func (r *Results) track(req exactlyonce.Request, takeOver bool) (call *Call, ask bool, err error) {
	now := r.now()
	key := clientKey{req.Scope, req.Client}
	r.mu.Lock()
	defer r.mu.Unlock()

	c, err := r.hear(key, req, now)
	if err != nil {
		return nil, false, err
	}
	rec, err := r.find(c, req, now)
	if err != nil {
		return nil, false, err
	}
	if rec == nil {
		more := [bounds]int64{ofRecords: 1, ofBytes: pageCost + flightCost + int64(len(req.Step))}
		if !r.mayRun(c.principal, c.running == 0) || !r.evictFor(c.principal, now, more, c) {
			r.stats.Refused++
			return nil, false, exactlyonce.ErrFull
		}
		rec = r.addRecord(c, req, now)
		ask = r.config.Records != nil && (req.Attempt > 1 || req.Age > 0 || !c.found)
		r.stats.New++
		r.stats.PeakBytes = max(r.stats.PeakBytes, r.used[ofBytes])
		return &rec.flight.first, ask, nil
	}
	if rec.print != req.Fingerprint && rec.print != [32]byte{} && req.Fingerprint != [32]byte{} {
		r.stats.Mismatched++
		return nil, false, fmt.Errorf("%w: sequence number %d, attempt %d", exactlyonce.ErrMismatch, req.Sequence, req.Attempt)
	}
	switch {
	case rec.flight == nil:
		r.touch(rec, now)
		r.noteAsked(req)
		r.stats.Replayed++
		return &Call{results: r, req: req, state: stateCompleted, answer: rec.answer, ended: true}, false, nil
	case takeOver:
		f := rec.flight
		f.handlers++
		f.driver = &Call{results: r, req: req, state: stateNew, flight: f}
		r.stats.TakenOver++
		return f.driver, false, nil
	default:
		call, err := r.attach(rec.flight, req)
		return call, false, err
	}
}

// hear returns the client of a request, perhaps a new one, and forgets records that it no
// longer needs. It runs under mu, as do the next two.
func (r *Results) hear(key clientKey, req exactlyonce.Request, now time.Duration) (*client, error) {
	c := r.clients[key]
	if c == nil {
		tomb, known := r.tombstones[key]
		if req.Sequence < tomb.before || r.config.Records == nil && !known && isForgotten(req, r.forgot, now) {
			r.stats.Stale++
			return nil, exactlyonce.ErrStale
		}
		p := r.principal(key.scope)
		more := [bounds]int64{ofClients: 1, ofRecords: 1, ofBytes: clientCost + pageCost + flightCost + int64(len(req.Step))}
		if !known && !r.mayMark(p, now) || !r.mayRun(p, true) || !r.evictFor(p, now, more, nil) {
			r.leave(p)
			r.stats.Refused++
			return nil, exactlyonce.ErrFull
		}
		c = r.addClient(p, key, now)
	} else if c.running == 0 && c.heard != now {
		c.heard = now
		c.principal.idle.moveBack(c)
	}
	r.silent.moveBack(c.principal)
	r.raise(c, req.First)
	// Records do not see requests that fail, so they need a sign of life of the client.
	if r.config.Records != nil && (req.First > 0 || now-c.told >= r.config.ClientSilence/2) && r.note(key, req.First) {
		c.told = now
	}
	return c, nil
}

// find returns the record of a request, nil if it is new, or [exactlyonce.ErrStale].
func (r *Results) find(c *client, req exactlyonce.Request, now time.Duration) (*record, error) {
	rec := c.get(req.Sequence, req.Step)
	if rec != nil && rec.flight == nil && now-rec.touched >= r.config.AnswerAge {
		r.stats.Collected++
		r.forget(rec, true) // exactly at its age, whenever Collect runs
		rec = nil
	}
	if req.Sequence < c.before || c.evicted.has(req.Sequence, req.Step) ||
		rec == nil && r.config.Records == nil && isForgotten(req, c.forgot, now) {
		r.stats.Stale++
		return nil, exactlyonce.ErrStale
	}
	return rec, nil
}

// isForgotten reports whether an unknown request was first sent so long ago that its
// answer may have been forgotten (law X1).
func isForgotten(req exactlyonce.Request, forgot, now time.Duration) bool {
	return req.Age > 0 && now-req.Age <= forgot
}

// attach lets an attempt wait for the answer of another. It counts as a running request.
func (r *Results) attach(f *flight, req exactlyonce.Request) (*Call, error) {
	p := f.principal
	if f.waiting >= r.config.MaxWaiters || !r.isHalf(p, ofBytes, waiterCost) {
		r.stats.TooManyWaiting++
		return nil, exactlyonce.ErrInProgress
	}
	f.waiting++
	r.stats.Waiting++
	p.runs[ofBytes] += waiterCost
	r.use(p, ofBytes, waiterCost)
	if f.done == nil {
		f.done = make(chan struct{})
	}
	r.stats.Attached++
	return &Call{results: r, req: req, state: stateInProgress, flight: f}, nil
}

// ask asks Records about a request that is new here. Other attempts wait for it.
func (r *Results) ask(ctx context.Context, call *Call) (*Call, error) {
	answered := false
	defer func() {
		if !answered {
			call.Fail(ErrNoAnswer) // Find panicked or called runtime.Goexit
		}
	}()
	answer, found, err := r.config.Records.Find(ctx, call.req)
	answered = true
	switch {
	case err != nil && isStale(err):
		err = exactlyonce.ErrStale
	case err != nil:
		err = fmt.Errorf("exactlyonce: look for a record of %s: %w", call.req.ID, err)
	}
	now := r.now()
	r.mu.Lock()
	if rec := call.flight.record; err == nil && rec != nil { // nil if another driver has ended it meanwhile
		rec.client.found = true
		if !found && isForgotten(call.req, r.forgottenByRecords(rec.client, now), now) {
			err = exactlyonce.ErrStale
		}
	}
	switch {
	case err != nil:
		r.stats.New--
		if errors.Is(err, exactlyonce.ErrStale) {
			r.stats.Stale++
		}
	case found:
		r.stats.New--
		r.stats.Replayed++
		r.noteAsked(call.req)
	}
	r.mu.Unlock()
	switch {
	case err != nil:
		call.Fail(err)
		return nil, err
	case found:
		if err := call.complete(answer, false); err != nil {
			return nil, err
		}
		return &Call{results: r, req: call.req, state: stateCompleted, answer: answer, ended: true}, nil
	}
	return call, nil
}

// forgottenByRecords returns the time of first sending before which Records may have
// forgotten an answer of c. They forget a long silent client, and c seemed silent if they
// took no mark of it.
func (r *Results) forgottenByRecords(c *client, now time.Duration) time.Duration {
	age := tombstoneAge * min(r.config.ClientSilence, math.MaxInt64/tombstoneAge)
	if now-c.confirmed >= age {
		c.forgot = max(c.forgot, now-age)
	}
	return c.forgot
}

// The rest runs under mu.

// renew notes for Records the clients with running requests, at least eight times within
// ClientSilence, so that they do not seem silent.
func (r *Results) renew(now time.Duration) {
	for c := r.busy.first; c != nil && now-c.renewed >= r.config.ClientSilence/4; c = r.busy.first {
		if !r.note(c.key, 0) {
			return // the next collection tries again
		}
		c.told = now
		c.renewed = now
		r.busy.moveBack(c)
	}
}

func (r *Results) addClient(p *principal, key clientKey, now time.Duration) *client {
	c := &client{principal: p, key: key, heard: now, told: now, confirmed: now, pages: map[int64]*page{}, forgot: r.forgot}
	if r.config.Records != nil {
		c.forgot = now - tombstoneAge*min(r.config.ClientSilence, math.MaxInt64/tombstoneAge) // as Records do
	}
	if e, ok := r.tombstones[key]; ok {
		c.before = e.before
		c.swept = e.before
		c.forgot = e.forgot
		r.dropTombstone(p, key)
	}
	r.clients[key] = c
	p.idle.pushBack(c)
	if p.used[ofClients] == 0 {
		r.silent.pushBack(p)
	}
	r.stats.Clients++
	r.use(p, ofClients, 1)
	r.use(p, ofBytes, clientCost)
	r.arm()
	return c
}

func (r *Results) addRecord(c *client, req exactlyonce.Request, now time.Duration) *record {
	f := &flight{principal: c.principal, handlers: 1}
	if r.slabs.needs() {
		r.used[ofBytes] += slabCost
	}
	rec := r.slabs.take()
	rec.client = c
	rec.seq = req.Sequence
	rec.step = req.Step
	rec.print = req.Fingerprint
	rec.flight = f
	f.record = rec
	f.first = Call{results: r, req: req, state: stateNew, flight: f}
	f.driver = &f.first
	if c.running == 0 {
		c.principal.idle.remove(c)
		c.renewed = now
		r.busy.pushBack(c)
	}
	c.principal.run(1, c.running == 0)
	c.running++
	c.pin()
	c.principal.used[ofBytes] += recordCost
	r.use(c.principal, ofRecords, 1)
	r.use(c.principal, ofBytes, pageCost*int64(c.put(rec))+rec.cost()+flightCost)
	r.stats.Records++
	r.stats.InProgress++
	return rec
}

// raise makes all requests of c below before STALE.
func (r *Results) raise(c *client, before int64) {
	if before > c.before {
		c.before = before
		cost := c.evicted.cost()
		c.evicted.dropBelow(before)
		r.use(c.principal, ofBytes, c.evicted.cost()-cost)
		c.pin()
	}
	r.sweep(c, 1024)
}

// sweep removes records below the mark of c, looking at no more than n numbers or
// records. The rest waits for the next call.
func (r *Results) sweep(c *client, n int) {
	if c.swept >= c.before {
		return
	}
	behind := c.before - c.swept
	switch {
	case c.count == 0:
		c.swept = c.before
	case behind > 2*int64(c.count) && c.count <= n:
		for rec := range c.all {
			if rec.seq < c.before {
				r.acknowledged(rec)
			}
		}
		c.swept = c.before
	default:
		for end := c.swept + min(behind, int64(n)); c.swept < end; c.swept++ {
			for rec := c.first(c.swept); rec != nil; {
				next := rec.other // of another step
				r.acknowledged(rec)
				rec = next
			}
		}
	}
	if c.swept < c.before {
		r.lagging[c] = struct{}{}
	} else if len(r.lagging) > 0 {
		delete(r.lagging, c)
	}
}

// acknowledged forgets a record below the mark, unless its request runs.
func (r *Results) acknowledged(rec *record) {
	if rec.flight == nil {
		r.stats.Acknowledged++
		r.forget(rec, false)
	}
}

// forget removes a record with an answer. If stale, the request is STALE from then on,
// unless Records have the answer.
func (r *Results) forget(rec *record, stale bool) {
	rec.client.principal.aged.remove(rec)
	r.dropRecord(rec, stale && r.config.Records == nil)
}

func (r *Results) dropRecord(rec *record, stale bool) {
	c, seq, step := rec.client, rec.seq, rec.step
	r.stats.Records--
	c.principal.used[ofBytes] -= recordCost
	r.use(c.principal, ofRecords, -1)
	r.use(c.principal, ofBytes, -rec.cost()-pageCost*int64(c.remove(rec)))
	if r.slabs.give(rec) {
		r.used[ofBytes] -= slabCost
	}
	if stale {
		r.markEvicted(c, seq, step)
	}
}

func (r *Results) markEvicted(c *client, seq int64, step string) {
	if seq < c.before {
		return
	}
	c.answered = max(c.answered, seq)
	cost := c.evicted.cost()
	before := c.evicted.add(seq, step)
	r.use(c.principal, ofBytes, c.evicted.cost()-cost)
	c.pin()
	if before > 0 {
		r.raise(c, before)
	}
}

func (r *Results) touch(rec *record, now time.Duration) {
	rec.touched = now
	rec.client.principal.aged.moveBack(rec)
}

type askedKey struct {
	clientKey
	seq  int64
	step string
}

// noteAsked notes for Records that an answer was asked for. If there is no room, a later
// attempt may note it.
func (r *Results) noteAsked(req exactlyonce.Request) {
	if r.toucher != nil && len(r.asked) < r.config.MaxClients {
		r.asked[askedKey{clientKey{req.Scope, req.Client}, req.Sequence, req.Step}] = struct{}{}
	}
}

// note keeps a mark for Records or, if before is 0, the fact that a client was active. If
// there is no room, a later request notes it.
func (r *Results) note(key clientKey, before int64) (fits bool) {
	last, known := r.marks[key]
	fits = known || len(r.marks) < r.config.MaxClients
	if fits {
		r.marks[key] = max(last, before)
	}
	return fits
}
