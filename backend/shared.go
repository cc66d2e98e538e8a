package backend

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	mathrand "math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/weirflow/weir/backend/internal/fleet"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/gate"
)

// fleetShare is this process's share of a shared limit. A goroutine renews it by the
// steps of package fleet, and sets the backend's limit to it. The goroutine starts with
// the first seat or a person's order, and ends when all seats have left, their calls have
// ended, and the order is recorded.
//
//	off ─▶ attending ─▶ off        when the last seat has left
//	          │   ▲
//	          ▼   │ a call is to start
//	         resting               after a minute without calls: no entry in the table, no steps
type fleetShare struct {
	backend *Backend
	kick    chan struct{} // capacity 1; makes the goroutine take a step early
	over    chan struct{} // capacity 1; makes the goroutine look at once whether it must end

	// Guarded by Backend.mu.
	machine   *fleet.Machine
	limit     int // of the fleet; Backend.limit is the share
	divided   int // fleet's limit when the rates were divided last
	permits   permits
	longest   time.Duration // longest time of a call
	recorded  time.Duration // Longest in the process's recorded entry; at most longest
	seats     int           // seats that have not left
	isRunning bool          // the goroutine
	ended     chan struct{} // closed by the goroutine when it ends
	peak      int           // highest need since the last step
	told      int           // need in the last step
	waits     int           // calls that wait for the lease
	changed   chan struct{} // closed and replaced when they should check again
	why       error         // error of the last step, or nil
	busy      time.Duration // when the process last needed a permit
	ordered   time.Duration // when a person last gave an order

	joined bool // owned by the goroutine: the table may have the process's entry
}

// source is the source of calls that may start. The zero source allows no calls.
type source struct {
	isLeased bool
	lease    int  // how many leases ended before
	isAlone  bool // the engine does not answer: WithoutEngine
}

const (
	restsAfter   = time.Minute            // without calls
	leastPeriod  = 100 * time.Millisecond // between two steps
	stepTimeout  = 3 * time.Second        // for the engine to answer
	stepTries    = 20                     // while other processes are faster
	leaveTimeout = time.Second            // for the engine to record that a process has ended
	ordersFor    = 50 * time.Second       // for the engine to record an order without operators
	tableName    = "shares"
)

// tableKind is the kind of the record with a backend's table. It has only one record, so
// that listing finds it.
func tableKind(backend string) string { return "fleet " + backend }

func newFleetShare(b *Backend) *fleetShare {
	f := &fleetShare{
		backend: b, kick: make(chan struct{}, 1), over: make(chan struct{}, 1), changed: make(chan struct{}), machine: fleet.New(rand.Text()),
		limit: b.limit, divided: b.limit, longest: min(b.longestCall, fleet.MaxLongest), permits: newPermits(),
	}
	b.limit = 0
	return f
}

func (f *fleetShare) instant() fleet.Instant {
	now, epoch := f.backend.clock.Now(), f.backend.epoch
	return fleet.Instant{Mono: now.Sub(epoch), Wall: now.Round(0).Sub(epoch.Round(0))}
}

// attach notes a new seat, and returns its operator's longest call. calls is the time of
// a call, or 0 if unknown.
func (f *fleetShare) attach(calls time.Duration) (longest time.Duration) {
	b := f.backend
	switch {
	case b.longestCall > 0:
		longest = b.longestCall
	case calls == 0:
		longest = unknownCall
	default:
		longest = calls
	}
	longest = min(longest, fleet.MaxLongest)
	b.mu.Lock()
	f.longest = max(f.longest, longest)
	f.seats++
	b.mu.Unlock()
	f.start()
	return longest
}

// start starts the goroutine, unless it is running. If another backend of the name uses
// another engine, start holds this backend instead. That hold is for this process only,
// and not for the fleet.
func (f *fleetShare) start() {
	b := f.backend
	b.mu.Lock()
	defer b.unlock()
	if f.isRunning {
		return
	}
	err := inUse.enter(b.name, b.keeper)
	if err != nil {
		if b.state != Held {
			b.hold(nil, b.now(), err.Error())
		}
		return
	}
	f.isRunning, f.ended = true, make(chan struct{})
	f.busy = b.now()
	f.why = nil
	go f.run()
}

// order makes the goroutine record a person's order, even if the process rests or has no
// operators.
func (f *fleetShare) order() {
	f.backend.mu.Lock()
	hasOrder := f.machine.HasOrder()
	f.ordered = f.backend.now()
	f.backend.mu.Unlock()
	if hasOrder {
		f.start()
		f.wake()
	}
}

func (f *fleetShare) wake() { trySend(f.kick) }

// trySend sends on a channel with a capacity of 1, unless it is full.
func trySend(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// willStart prepares for a seat's request: it ends the use of a share whose lease has
// ended, and notes the need.
func (f *fleetShare) willStart() {
	b := f.backend
	b.mu.Lock()
	f.refresh()
	f.peak = max(f.peak, b.used+1)
	b.unlock()
}

// noteShortage notes the need, and makes a step early if it exceeds the recorded need.
func (f *fleetShare) noteShortage() {
	b := f.backend
	b.mu.Lock()
	need := f.need()
	f.peak = max(f.peak, need)
	isNew := need > b.limit && need > f.told
	b.mu.Unlock()
	if isNew {
		f.wake()
	}
}

// leave notes that a seat has left. After the last seat and call, it waits until the
// share is given up.
func (f *fleetShare) leave() {
	b := f.backend
	b.mu.Lock()
	f.seats--
	hasEnded, ended := f.hasEnded() && f.isRunning, f.ended
	b.mu.Unlock()
	if !hasEnded {
		return
	}
	trySend(f.over)
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

func (f *fleetShare) need() int {
	b := f.backend
	n := b.used
	if b.state != Held {
		for _, p := range b.waiting {
			n += max(0, max(p.wants, 1)-p.reserved)
		}
	}
	return min(n, f.limit)
}

// refresh sets the backend's limit and rates to the present share.
func (f *fleetShare) refresh() {
	b := f.backend
	now := f.instant()
	isLeased := f.machine.IsLeased(now)
	from, n := source{}, 0
	switch {
	case isLeased:
		from, n = source{isLeased: true, lease: f.machine.Leases()}, f.machine.Share(now)
	case faultOf(f.why) == noEngine && b.withoutEngine > 0:
		from, n = source{isAlone: true}, b.withoutEngine
	}
	hasChanged := from != f.permits.source
	if hasChanged {
		f.permits.change(from)
	}
	n = min(n, f.limit)
	if n != b.limit || f.divided != f.limit {
		t := b.now()
		f.divide(t, n)
		b.bound(n)
		b.handOut(t, nil)
		hasChanged = true
	}
	if hasChanged {
		f.notify()
	}
}

// notify makes waiting calls check again.
func (f *fleetShare) notify() {
	if f.waits > 0 {
		close(f.changed)
		f.changed = make(chan struct{})
	}
}

// admit reports whether the lease lets a call with p, which takes longest, begin now (law
// B5). It makes p valid again if the share allows that. If the process dies, its permits
// move after the recorded time, so a longer call waits until a step has recorded it.
// Calls without the engine have no record. A call with an earlier permit waits while the
// backend is down or held.
func (f *fleetShare) admit(p *permit, longest time.Duration) bool {
	f.refresh()
	source := f.permits.source
	isRecorded := longest <= f.recorded || source.isAlone
	isFromBefore := p.root.source != source
	if isFromBefore && !f.callStarts(p) {
		return false
	}
	isAdmitted := (source.isLeased || source.isAlone) && isRecorded && f.permits.renew(p, f.backend.limit)
	if isAdmitted && isFromBefore {
		f.noteLateCall(p)
	}
	return isAdmitted
}

// begin begins a call with p, and returns the permit that it uses: p, or an additional
// one if p has a call already. It returns nil if the call must wait.
func (f *fleetShare) begin(p *permit, longest time.Duration) *permit {
	b := f.backend
	switch {
	case !f.admit(p, longest):
		return nil
	case !p.isBusy():
		f.permits.begin(p)
		return p
	case b.used >= b.limit:
		return nil
	}
	b.used++
	more := &permit{source: f.permits.source, isReleased: true}
	more.root = more
	f.permits.add(more)
	f.permits.begin(more)
	return more
}

// beginFunc reports whether a function that makes its call by itself may be called with
// p.
func (f *fleetShare) beginFunc(p *permit, longest time.Duration) bool {
	if !f.admit(p, longest) || p.isBusy() {
		return false
	}
	p.calledFunc = true
	f.permits.count(p.root)
	p.beginLending()
	return true
}

func (f *fleetShare) await(ctx context.Context, stamp gate.Stamp, begin func(*permit) bool) error {
	b := f.backend
	b.mu.Lock()
	defer b.unlock()
	p := f.permits.find(stamp)
	if begin(p) {
		return nil
	}
	f.countWait(p, 1)
	defer f.countWait(p, -1)
	f.wake()
	for {
		changed := f.changed
		b.unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		b.mu.Lock()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if begin(p) {
			return nil
		}
	}
}

func (f *fleetShare) countWait(p *permit, n int) {
	f.waits += n
	f.permits.wait(p, n)
}

// freeIfOver frees p if it was released and its calls have ended.
func (f *fleetShare) freeIfOver(p *permit) {
	b := f.backend
	if !p.isOver() || f.permits.all[p.stamp] != p {
		f.notify()
		return
	}
	f.permits.remove(p)
	if p.seat != nil {
		p.seat.free(b.now(), p.isLent)
	} else {
		b.used--
		b.handOut(b.now(), nil)
	}
	f.notify()
	if f.hasEnded() {
		trySend(f.over)
	}
}

// divide sets the rates and the fixed part of the retry budget in proportion to a share.
// Rates that move to this process begin with an empty bucket.
func (f *fleetShare) divide(t time.Duration, share int) {
	b := f.backend
	b.fillRates(t)
	b.retries.fill(t)
	f.divided = f.limit
	part := float64(max(share, 1)) / float64(max(f.limit, 1)) // without a share no call starts
	b.rate.scale(b.settings.rate, part, b.limit == 0)
	b.callRate.scale(b.settings.callRate, part, b.limit == 0)
	b.setPart(t, min(t, f.machine.LeaseEnd()), f.part(share))
	if b.retries.isSet() {
		b.retries.scale(wholeRetries, part, false)
	}
}

func (f *fleetShare) setLimit(n int) {
	f.limit = n
	f.refresh()
	f.wake()
}

// run is the share's goroutine. It takes steps until all seats have left.
func (f *fleetShare) run() {
	b := f.backend
	for {
		now := b.now()
		b.mu.Lock()
		hasEnded := f.hasEnded()
		if max(f.peak, f.need()) > 0 || b.state == Held || f.machine.HasOrder() { // the record shows the end of the hold
			f.busy = now
		}
		rests := now-f.busy >= restsAfter
		if hasEnded && !f.joined {
			f.isRunning = false
			close(f.ended)
			inUse.leave(b.name)
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		switch {
		case hasEnded || rests && f.joined:
			f.stepOut()
		case rests:
			select {
			case <-f.kick:
			case <-f.over:
			}
		default:
			f.pause(f.step())
		}
	}
}

// pause waits for the next step: for d, or until a kick, but at least for leastPeriod
// unless the process has ended.
func (f *fleetShare) pause(d time.Duration) {
	least, whole := f.backend.clock.Timer(leastPeriod), f.backend.clock.Timer(d)
	defer least.Stop()
	defer whole.Stop()
	select {
	case <-least.C:
	case <-f.over:
		return
	}
	select {
	case <-whole.C:
	case <-f.kick:
	case <-f.over:
	}
}

// hasEnded reports whether all seats have left, their calls have ended, and no order
// waits for the engine, for ordersFor at most.
func (f *fleetShare) hasEnded() bool {
	b := f.backend
	return f.seats == 0 && b.used == 0 && !(f.machine.HasOrder() && b.now()-f.ordered < ordersFor)
}

func (f *fleetShare) step() time.Duration {
	b := f.backend
	f.joined = true
	need, longest := 0, time.Duration(0)
	version, err := f.update(func(start fleet.Instant, r store.Record, read fleet.Table) fleet.Table {
		b.mu.Lock()
		defer b.mu.Unlock() // log lines are written after the transaction
		need = max(f.peak, f.need())
		f.told, longest = need, f.longest
		f.refresh() // before the machine begins another lease
		next := f.machine.Begin(start, f.instant(), r.Version, read, f.local(need))
		f.refresh()
		f.adopt()
		return next
	})
	b.mu.Lock()
	defer b.unlock()
	switch {
	case err == nil:
		f.machine.Commit(f.instant(), version)
		if longest > f.recorded {
			f.recorded = longest
			f.notify()
		}
		f.note(nil)
		f.peak = b.used
	case errors.Is(err, store.ErrChanged): // the lease stays as it is
		f.note(err)
	default:
		f.machine.Fail()
		f.note(err)
	}
	f.refresh()
	if f.mayProbe() {
		t := b.now()
		b.advance(nil, t)
		f.notify()
		b.rouse(t, nil) // operators that wait for the right to probe
	}
	switch {
	case f.machine.IsPending():
		return fleet.PendingPeriod
	case need == 0:
		return fleet.IdlePeriod
	}
	return fleet.Period
}

func (f *fleetShare) local(need int) fleet.Local {
	b := f.backend
	t := b.now()
	b.advance(nil, t)
	isPaced := false
	for _, p := range b.waiting {
		isPaced = isPaced || b.startWait(t, p.cost) > 0
	}
	return fleet.Local{
		Limit: f.limit, Running: f.permits.counted, Need: min(need, f.limit), Longest: f.longest,
		Started: b.counts.Started, IsPaced: isPaced, Pace: math.Round(b.health.pace.perSecond(t)*10) / 10,
		Waits: !b.dryRun && (len(b.waiting) > 0 || f.waits > 0), Probing: f.isProbing(t),
	}
}

// stepOut removes the entry of a process without calls. If that fails, the entry counts
// until its lease has ended.
func (f *fleetShare) stepOut() {
	b := f.backend
	f.joined = false
	_, err := f.update(func(_ fleet.Instant, _ store.Record, read fleet.Table) fleet.Table {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.used > 0 { // a call came in between
			f.joined = true
			return read
		}
		next := f.machine.Leave(read)
		f.why = nil
		f.refresh()
		return next
	})
	if err != nil {
		b.mu.Lock()
		f.machine.Fail()
		b.mu.Unlock()
	}
}

// update replaces the table by the result of change, and returns its new version. change
// may run several times.
func (f *fleetShare) update(change func(start fleet.Instant, r store.Record, read fleet.Table) fleet.Table) (version int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	for try := range stepTries {
		if try > 0 {
			f.backend.clock.Sleep(time.Duration(1+mathrand.IntN(10)) * time.Millisecond)
		}
		err = f.backend.keeper.Update(ctx, func(ctx context.Context, tx store.Tx) error {
			start := f.instant()
			r, read, err := f.read(ctx, tx)
			if err != nil {
				return err
			}
			text, err := json.Marshal(change(start, r, read))
			if err != nil {
				return err
			}
			version, r.Value = r.Version+1, string(text)
			return tx.Write(ctx, r)
		})
		if !errors.Is(err, store.ErrChanged) {
			break
		}
	}
	return version, err
}

// read reads the table, which is empty before the fleet's first step.
func (f *fleetShare) read(ctx context.Context, tx store.Tx) (r store.Record, t fleet.Table, err error) {
	kind := tableKind(f.backend.name)
	records, err := tx.Records(ctx, kind, "", 1)
	if err != nil || len(records) == 0 {
		return store.Record{Kind: kind, Name: tableName}, t, err
	}
	r = records[0]
	err = json.Unmarshal([]byte(r.Value), &t)
	if err != nil {
		return r, t, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return r, t, nil
}

// inUse are the engines of this process's running shared backends.
var inUse = engines{all: map[string]engineOf{}}

type engines struct {
	mu  sync.Mutex
	all map[string]engineOf // by the backend's name; guarded by mu
}

// engineOf is an engine's type, and how many backends of a name use it.
type engineOf struct {
	kind     reflect.Type
	backends int
}

// enter notes a backend's engine. It returns an error if another backend of the name uses
// another type of engine: then the service would have two limits.
func (e *engines) enter(name string, keeper store.Keeper) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	kind := reflect.TypeOf(keeper)
	of, ok := e.all[name]
	if ok && of.kind != kind {
		return fmt.Errorf("backend %s is shared on two engines, %v and %v, so its service would get two limits: use one engine", name, of.kind, kind)
	}
	e.all[name] = engineOf{kind, of.backends + 1}
	return nil
}

func (e *engines) leave(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := e.all[name]
	e.all[name] = engineOf{of.kind, of.backends - 1}
	if of.backends == 1 {
		delete(e.all, name)
	}
}
