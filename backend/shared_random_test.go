package backend_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/lookup"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/store"
)

// driverSchedules is how many random schedules of the driver a plain run simulates. The
// environment variable WEIR_FLEET_DRIVER_SCHEDULES has another number, such as 500.
const driverSchedules = 2

// longestInFleet is the longest call of the random test. Calls obey their contexts.
const longestInFleet = 3 * time.Second

// lossyKeeper is the engine of a fleet. A failover makes it lose its last writes.
type lossyKeeper struct {
	store.Keeper // not used
	mu           sync.Mutex
	records      []written // of the record with the shares, oldest first
	shadow       store.Record
	down         time.Time
}

type written struct {
	at     time.Time
	record store.Record
}

// update runs f with the record that the engine has after the failovers.
func (k *lossyKeeper) update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Now().Before(k.down) {
		return errEngineDown
	}
	tx := &lossyTx{record: k.shadow}
	err := f(ctx, tx)
	if err != nil {
		return err
	}
	if tx.wrote {
		k.shadow = tx.record
		k.records = append(k.records, written{time.Now(), tx.record})
	}
	return nil
}

// failover loses the writes of the last time d.
func (k *lossyKeeper) failover(d, outage time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down = time.Now().Add(outage)
	k.shadow = store.Record{}
	for i, s := range k.records {
		if time.Since(s.at) <= d {
			k.records = k.records[:i]
			break
		}
		k.shadow = s.record
	}
}

// lossyTx is a transaction of a lossyKeeper.
type lossyTx struct {
	store.Tx
	record store.Record
	wrote  bool
}

func (x *lossyTx) Records(context.Context, string, string, int) ([]store.Record, error) {
	if x.record.Version == 0 {
		return nil, nil
	}
	return []store.Record{x.record}, nil
}

func (x *lossyTx) Write(_ context.Context, r store.Record) error {
	if r.Version != x.record.Version {
		return store.ErrChanged
	}
	r.Version++
	x.record, x.wrote = r, true
	return nil
}

// link is the connection of a process to its engine.
type link struct {
	*lossyKeeper
	mu     sync.Mutex
	cut    time.Time // until when the process does not reach the engine
	slow   time.Time // until when a step takes long
	paused time.Time // until when no call begins
}

func (l *link) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	l.mu.Lock()
	cut, slow := l.cut, l.slow
	l.mu.Unlock()
	if time.Now().Before(slow) {
		time.Sleep(700 * time.Millisecond)
	}
	if time.Now().Before(cut) {
		return errEngineDown
	}
	err := l.update(ctx, f)
	if err == nil && time.Now().Before(slow) {
		return errors.New("the answer of the engine was lost")
	}
	return err
}

// fleetProcess is a process of the fleet: several operators of all kinds at one backend.
type fleetProcess struct {
	*backend.Backend
	link *link
	stop context.CancelFunc
	gone sync.WaitGroup
}

// fleetTest is a random schedule.
type fleetTest struct {
	*rand.Rand
	t       *testing.T
	limit   int
	engine  *lossyKeeper
	service *limited
	begin   time.Time
	// A failover happens with a chance of 1 in failovers at each opportunity; 0 means
	// never. Failovers stop growth, so with many of them little else happens.
	failovers int

	fleet  []*fleetProcess
	killed []*fleetProcess

	limits []limitSince // the last ones
}

type limitSince struct {
	n     int
	since time.Time
}

// allowed returns the calls that the service may get now. A limit that was lowered
// applies when the shares from before and their calls have ended.
func (f *fleetTest) allowed() int {
	n := f.limit
	for i, l := range f.limits {
		isLast := i == len(f.limits)-1
		if isLast || time.Since(f.limits[i+1].since) < 5*time.Second+longestInFleet {
			n = max(n, l.n)
		}
	}
	return n
}

// limited is a service that counts its calls by itself.
type limited struct {
	mu        sync.Mutex
	now, most int
	down      time.Time // until when its calls are lost
}

// goDown makes the service lose calls until an instant.
func (s *limited) goDown(until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = until
}

// isDown reports whether the service loses its calls.
func (s *limited) isDown() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.down)
}

func (s *limited) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now++
	s.most = max(s.most, s.now)
}

func (s *limited) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now--
}

// peak returns the most calls at the same time since it was called last.
func (s *limited) peak() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := s.most
	s.most = s.now
	return most
}

func (s *limited) call(ctx context.Context, d time.Duration) error {
	s.enter()
	defer s.leave()
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.isDown() {
		return errBusy
	}
	return nil
}

// takesFor returns how long the call of an element takes.
func takesFor(i int) time.Duration {
	return time.Duration(20+i*7919%1500) * time.Millisecond
}

// calling is a function that calls the service by itself, on a goroutine.
type calling struct{ service *limited }

func (c calling) AsyncInvoke(ctx context.Context, i int, result asyncop.ResultFuture[int]) error {
	c.service.enter()
	go func() {
		select {
		case <-time.After(takesFor(i)):
		case <-ctx.Done():
		}
		c.service.leave()
		result.Complete(i)
	}()
	return nil
}

// pausing is a function of a process that may be paused directly before a call: after its
// operator has taken a permit.
type pausing struct {
	asyncop.AsyncFunction[int, int]
	process *fleetProcess
}

func (p pausing) AsyncInvoke(ctx context.Context, i int, result asyncop.ResultFuture[int]) error {
	p.process.pause()
	return p.AsyncFunction.AsyncInvoke(ctx, i, result)
}

// pause sleeps while the process is paused.
func (p *fleetProcess) pause() {
	p.link.mu.Lock()
	until := p.link.paused
	p.link.mu.Unlock()
	time.Sleep(time.Until(until))
}

// twice calls a function twice for an element, as a hedge does.
type twice struct {
	asyncop.AsyncFunction[int, int]
}

func (h twice) AsyncInvoke(ctx context.Context, i int, result asyncop.ResultFuture[int]) error {
	first := h.AsyncFunction.AsyncInvoke(ctx, i, result)
	return errors.Join(first, h.AsyncFunction.AsyncInvoke(ctx, i+1, result))
}

func elementsUntil(ctx context.Context, n int) func(func(int) bool) {
	return func(yield func(int) bool) {
		for i := range n {
			if ctx.Err() != nil || !yield(i/2) { // lookups share calls
				return
			}
		}
	}
}

// start starts a process with an operator of a random kind.
func (f *fleetTest) start() {
	p := &fleetProcess{link: &link{lossyKeeper: f.engine}}
	p.Backend = backend.New("payments", backend.WithLogger(slog.New(slog.DiscardHandler)), backend.Limit(f.limit), backend.Shared(p.link), backend.LongestCall(longestInFleet))
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	s := f.service
	plain := asyncop.Blocking(func(ctx context.Context, i int) (int, error) { return i, s.call(ctx, takesFor(i)) })
	var fn asyncop.AsyncFunction[int, int]
	plain = pausing{plain, p}
	switch f.IntN(6) {
	case 0:
		fn = plain
	case 1:
		fn = calling{s}
	case 2:
		fn = asyncop.Batched(func(ctx context.Context, in []int) ([]asyncop.Result[int], error) {
			return make([]asyncop.Result[int], len(in)), s.call(ctx, takesFor(in[0]))
		}, 3, 10*time.Millisecond)
	case 3:
		fn = lookup.New(plain, nil)
	case 4:
		fn = twice{plain}
	case 5: // nested, without a call of its own
		fn = asyncop.Blocking(func(ctx context.Context, i int) (int, error) {
			inner := asyncop.UnorderedWait(plain, time.Minute, 2, asyncop.WithBackend(p.Backend), asyncop.WithContext(ctx),
				asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)), asyncop.WithTimeoutFromFirstAttempt())
			p.pause()
			for _, err := range inner.Results(elementsUntil(ctx, 2)) {
				if err != nil {
					return 0, err
				}
			}
			return i, nil
		})
	}
	op := asyncop.UnorderedWait(fn, time.Minute, 20, asyncop.WithBackend(p.Backend), asyncop.WithContext(ctx),
		asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)), asyncop.WithTimeoutFromFirstAttempt())
	p.gone.Go(func() {
		for range op.Results(elementsUntil(ctx, 1000000)) {
			if ctx.Err() != nil {
				return
			}
		}
	})
	f.fleet = append(f.fleet, p)
}

// setLimit sets the limit of all processes.
func (f *fleetTest) setLimit(n int) {
	f.limit = n
	f.limits = append(f.limits, limitSince{n, time.Now()})
	for _, p := range f.fleet {
		p.SetLimit(n)
	}
}

// disturb makes a random fault or change.
func (f *fleetTest) disturb() {
	if len(f.fleet) == 0 || f.IntN(10) == 0 && len(f.fleet) < 6 {
		f.start()
		return
	}
	i := f.IntN(len(f.fleet))
	p := f.fleet[i]
	upTo := func(d time.Duration) time.Time { return time.Now().Add(time.Duration(f.Int64N(int64(d)))) }
	switch f.IntN(19) {
	case 0, 1:
		p.link.set(&p.link.cut, upTo(12*time.Second))
	case 2:
		p.link.set(&p.link.slow, upTo(4*time.Second))
	case 16, 17, 18:
		until := upTo(20 * time.Second)
		p.link.set(&p.link.cut, until)
		p.link.set(&p.link.paused, until)
	case 3: // killed: it does not reach the engine again, and its running calls continue
		p.link.set(&p.link.cut, time.Now().Add(time.Hour))
		f.killed = append(f.killed, p)
		f.fleet = append(f.fleet[:i], f.fleet[i+1:]...)
	case 4:
		p.stop()
		p.gone.Wait()
		f.fleet = append(f.fleet[:i], f.fleet[i+1:]...)
	case 5:
		if f.IntN(4) == 0 {
			p.Hold("test")
		}
	case 6, 7:
		p.Resume()
	case 8:
		if f.IntN(8) == 0 { // for a while after a change, the service may get as many calls as before
			f.setLimit(1 + f.IntN(10))
		}
	case 12, 13:
		f.service.goDown(upTo(8 * time.Second))
	case 9, 10, 11:
		if f.failovers == 0 || f.IntN(f.failovers) > 0 {
			return
		}
		if time.Since(f.begin) <= 3*time.Second { // it could lose the entries of the whole fleet
			return
		}
		lost := []time.Duration{500 * time.Millisecond, 3 * time.Second}[f.IntN(2)]
		outage := []time.Duration{1, 600 * time.Millisecond, 8 * time.Second}[f.IntN(3)]
		f.engine.failover(time.Until(upTo(lost)), time.Until(upTo(outage)))
	}
}

// Law B5: in random schedules of several processes the service never counts more calls
// than the limit. When the faults have ended, all processes make calls.
func TestShared_RandomSchedules(t *testing.T) {
	n := driverSchedules
	if text := os.Getenv("WEIR_FLEET_DRIVER_SCHEDULES"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for seed := range uint64(n) {
		synctest.Test(t, func(t *testing.T) { runFleet(t, seed) })
	}
}

func runFleet(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	f := &fleetTest{Rand: r, t: t, engine: &lossyKeeper{}, service: &limited{}, begin: time.Now()}
	f.failovers = []int{0, 10, 2}[seed%3]
	f.setLimit(1 + r.IntN(10))
	for range 2 + r.IntN(3) {
		f.start()
	}
	for range 200 {
		time.Sleep(time.Duration(r.IntN(600)) * time.Millisecond)
		f.disturb()
		require.LessOrEqual(t, f.service.peak(), f.allowed(), "seed %d", seed)
	}
	f.setLimit(10)
	for _, p := range f.fleet {
		p.link.set(&p.link.cut, time.Now())
		p.link.set(&p.link.slow, time.Now())
		p.link.set(&p.link.paused, time.Now())
	}
	time.Sleep(30 * time.Second) // all have read a hold
	for _, p := range f.fleet {
		p.Resume()
	}
	f.service.goDown(time.Now())
	time.Sleep(2 * time.Minute)
	before := map[*fleetProcess]int64{}
	for _, p := range f.fleet {
		before[p] = p.Stats().Started
	}
	time.Sleep(time.Minute)
	require.LessOrEqual(t, f.service.peak(), 10, "seed %d", seed)
	for i, p := range f.fleet {
		require.Greater(t, p.Stats().Started, before[p], "seed %d: process %d: %+v", seed, i, p.Stats())
	}
	for _, p := range append(f.fleet, f.killed...) {
		p.stop()
	}
	time.Sleep(time.Minute)
	for _, p := range append(f.fleet, f.killed...) {
		p.gone.Wait()
	}
}

func (l *link) set(until *time.Time, to time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*until = to
}
