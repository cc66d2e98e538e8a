package deliverytest

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

var keyLimitRules = []storeRule{
	{name: "by key: a limit", check: keyLimit},
	{name: "by key: a limit beside other keys", check: keyLimitBesideOthers},
	{name: "by key: leases count for a limit until they end", check: keyLimitUntilLeasesEnd},
	{name: "by key: leases without a limit do not count", check: keyLimitBesideUnlimited},
	{name: "by key: consumers of a key at its limit are woken", check: keyLimitWakes},
	{name: "by key: one limit for concurrent consumers", check: keyLimitOfConsumers},
	{name: "by key: one limit for all workers", check: keyLimitOfWorkers},
}

// putKeyed puts n messages of a key, with ids of their own.
func (b *storeBench) putKeyed(queue, key string, n int) {
	for _, m := range ofKey(key, n) {
		m.Meta.ID = queue + " " + m.Meta.ID
		b.put(queue, m)
	}
}

// takeBelow takes messages in a whole round of keys, for a lease of units.
func (b *storeBench) takeBelow(s store.ByKey, queue string, limit, each, most, units int) (all []store.Leased) {
	for r := (store.KeyRound{Each: each, Limit: limit}); ; {
		taken, next, err := s.TakeByKey(b.ctx, queue, r, most, b.units(units))
		b.ok(err, "TakeByKey")
		all = append(all, taken...)
		if next == "" {
			return all
		}
		r.After = next
	}
}

func keysOf(ms []store.Leased) (n map[string]int) {
	n = map[string]int{}
	for _, m := range ms {
		n[m.Meta.Key]++
	}
	return n
}

// keyLimit checks that the leases of a key count together in a queue and its layers, and
// only there.
func keyLimit(b *storeBench) {
	const limit, forLong = 3, 10_000
	stores := []store.ByKey{b.byKey(), b.open().(store.ByKey)}
	family := []string{"q-retry-1", "q", "q-retry-12", "q-blocked"}
	for _, queue := range []string{"q-dead", "q-retry-x", "q-retry-0", "q-retry-", "q-retry", "xq", "Q", "q-retry-1-retry-1"} {
		b.putKeyed(queue, "a", 2)
		others := b.takeBelow(stores[0], queue, 100, 100, 100, forLong) // leases that count elsewhere
		b.must(len(others) == 2, "queue %q lacks messages", queue)
	}
	for _, queue := range family {
		b.putKeyed(queue, "a", 5)
	}
	var taken []store.Leased
	for i, queue := range family {
		taken = append(taken, b.takeBelow(stores[i%2], queue, limit, 100, 100, forLong)...)
		b.must(len(taken) == limit, "with a limit of %d, %d messages of a key are leased, the last of queue %q", limit, len(taken), queue)
	}
	for i, queue := range family {
		b.ok(b.Done(b.ctx, taken[0].Lease), "Done")
		next := b.takeBelow(stores[i%2], queue, limit, 100, 100, forLong)
		b.must(len(next) == 1, "after a message of a key was done, %d messages of queue %q were taken", len(next), queue)
		taken = append(taken[1:], next...)
	}
	more := b.takeBelow(stores[0], "q-retry-1", limit, 100, 100, forLong)
	b.must(len(more) == 0, "leases of the other queues of a family do not count")
	b.ok(b.Release(b.ctx, 0, leasesOf(taken)...), "Release")
	_, _, err := stores[0].TakeByKey(b.ctx, "q", store.KeyRound{Each: 1, Limit: -1}, 1, b.units(1))
	b.must(err != nil, "TakeByKey accepts a limit of -1")
}

// keyLimitBesideOthers checks that keys at the limit do not delay others, and that no key
// exceeds the limit within a call.
func keyLimitBesideOthers(b *storeBench) {
	const limit, keys, forLong = 2, 20, 10_000
	s := b.byKey()
	for i := range keys {
		b.putKeyed("q", "full"+strconv.Itoa(i), 4)
	}
	got := keysOf(b.takeBelow(s, "q", limit, 100, 100, forLong))
	b.must(len(got) == keys, "a round took messages of %d of %d keys", len(got), keys)
	for key, n := range got {
		b.must(n <= limit, "with a limit of %d, %d messages of key %q were taken", limit, n, key)
	}
	b.takeBelow(s, "q", limit, 100, 100, forLong) // up to the limit of each key
	b.putKeyed("q", "z", 4)
	calls := 0
	got = keysOf(nil)
	for r := (store.KeyRound{Each: 1, Limit: limit}); len(got) == 0; calls++ {
		b.must(calls < keys/2, "%d calls took no message, although a key is below its limit", calls)
		taken, next, err := s.TakeByKey(b.ctx, "q", r, 1, b.units(forLong))
		b.ok(err, "TakeByKey")
		got = keysOf(taken)
		r.After = next
	}
	b.must(got["z"] == 1, "a round with a key below its limit took %v", got)
	b.putKeyed("q", "y", 4)
	got = keysOf(b.takeBelow(s, "q", limit, 100, 100, forLong))
	b.must(got["z"] == 1 && got["y"] >= 1 && got["y"] <= limit, "a round with a key near its limit took %v", got)
	b.put("q", newMessage("keyless"))
	got = keysOf(b.takeBelow(s, "q", limit, 100, 100, forLong))
	b.must(got[""] >= 1, "no message without a key was taken")
}

// keyLimitUntilLeasesEnd checks that a killed consumer's messages count until their
// leases end, and extended leases longer.
func keyLimitUntilLeasesEnd(b *storeBench) {
	const limit, lease = 3, 20
	s := b.byKey()
	b.putKeyed("q", "a", 10)
	b.putKeyed("q-retry-1", "a", 10)
	killed := b.takeBelow(s, "q", limit, 100, 100, lease)
	b.must(len(killed) == limit, "%d messages were taken in place of %d", len(killed), limit)
	b.ok(b.Extend(b.ctx, b.units(10_000), killed[0].Lease), "Extend")
	b.must(len(b.takeBelow(s, "q-retry-1", limit, 100, 100, lease)) == 0, "leases that have not ended do not count")
	b.wait(lease + 1)
	next := b.takeBelow(s, "q-retry-1", limit, 100, 100, 10_000)
	b.must(len(next) == limit-1, "after all leases but one had ended, %d messages were taken in place of %d", len(next), limit)
	b.must(len(b.takeBelow(s, "q", limit, 100, 100, lease)) == 0, "messages whose leases have ended are taken again, above the limit")
	b.ok(b.Done(b.ctx, leasesOf(next)...), "Done")
	again := b.takeBelow(s, "q", limit, 100, 100, 10_000)
	b.must(len(again) == limit-1, "%d messages were taken in place of %d", len(again), limit-1)
}

// keyLimitBesideUnlimited checks that leases do not count if they were granted without a
// limit, even if an earlier lease of the message counted.
func keyLimitBesideUnlimited(b *storeBench) {
	const limit, lease, forLong = 2, 20, 10_000
	s := b.byKey()
	b.putKeyed("q", "a", 5)
	b.putKeyed("q-retry-1", "a", 5)
	killed := b.takeBelow(s, "q", limit, 100, 100, lease)
	b.must(len(killed) == limit, "%d messages were taken in place of %d", len(killed), limit)
	b.wait(lease + 1)
	released := b.takeBelow(s, "q", limit, 100, 100, forLong)
	b.must(len(released) == limit, "after the leases had ended, %d messages were taken in place of %d", len(released), limit)
	b.ok(b.Release(b.ctx, 0, leasesOf(released)...), "Release")
	byKey := b.takeBelow(s, "q", 0, 1, 1, forLong)
	b.must(len(byKey) == 1, "without a limit, %d messages were taken in place of 1", len(byKey))
	plain, err := b.Take(b.ctx, "q", 100, b.units(forLong))
	b.ok(err, "Take")
	b.must(len(plain) == 4, "Take has taken %d of 4 messages", len(plain))
	b.ok(b.Extend(b.ctx, b.units(forLong), leasesOf(plain)...), "Extend")
	counted := b.takeBelow(s, "q-retry-1", limit, 100, 100, forLong)
	b.must(len(counted) == limit, "beside leases without a limit, %d messages were taken in place of %d", len(counted), limit)
}

// keyLimitWakes checks that a store wakes consumers, as long as keys at their limit keep
// them from messages, unless consumers poll.
func keyLimitWakes(b *storeBench) {
	const queue = "woken" // other rules may put into other queues of the server meanwhile
	s := b.byKey()
	waker, isWaker := b.Store.(store.Waker)
	if !isWaker {
		panic(notApplicable{})
	}
	b.putKeyed(queue, "a", 2)
	b.must(len(b.takeBelow(s, queue, 1, 1, 1, 10_000)) == 1, "no message was taken")
	ctx, stop := context.WithCancel(b.ctx)
	wakes := make(chan bool, 1) // whether consumers must poll
	var waking sync.WaitGroup
	waking.Go(func() { // ends with ctx
		_ = waker.Wake(ctx, queue, func(misses bool) {
			select {
			case wakes <- misses:
			default:
			}
		})
	})
	defer waking.Wait()
	defer stop()
	if <-wakes {
		return
	}
	for range 3 {
		select {
		case <-wakes:
		default:
		}
		b.must(len(b.takeBelow(s, queue, 1, 1, 1, 10_000)) == 0, "a message of a key at its limit was taken")
		select {
		case <-wakes:
		case <-time.After(10 * time.Second): // longer than any busy machine needs for 100 ms
			b.fail("consumers were not woken within 10 s, although a message is due")
		}
	}
}

// keyLimitOfConsumers lets many consumers take messages of a few keys, from two queues.
func keyLimitOfConsumers(b *storeBench) {
	b.byKey()
	const keys, each, consumers, limit = 3, 40, 8, 3
	queues := []string{"q", "q-retry-1"}
	stores := []store.Store{b.Store, b.open()}
	for _, queue := range queues {
		for k := range keys {
			b.putKeyed(queue, "key"+strconv.Itoa(k), each)
		}
	}
	w := &limitWatch{limit: limit, running: map[string]int{}, left: keys * each * len(queues)}
	var all sync.WaitGroup
	for c := range consumers {
		random := rand.New(rand.NewPCG(48, uint64(c)))
		s := stores[c%2]
		byKey := s.(store.ByKey)
		all.Go(func() { // ends when all messages are done
			var before []store.Leased // kept until the next call, so that calls find leases
			for w.isOpen() {
				r := store.KeyRound{Each: 1 + random.IntN(limit), Limit: limit}
				taken, _, err := byKey.TakeByKey(b.ctx, queues[random.IntN(2)], r, 1+random.IntN(8), b.units(100_000))
				w.note(err)
				w.begin(taken)
				w.end(before)
				w.note(s.Done(b.ctx, leasesOf(before)...))
				before = taken
				if len(taken) == 0 {
					time.Sleep(time.Millisecond) // others settle meanwhile
				}
			}
		})
	}
	all.Wait()
	b.ok(errors.Join(w.errs...), "concurrent use")
}

// limitWatch checks how many messages of a key are in flight. Safe for concurrent use.
type limitWatch struct {
	limit int

	mu      sync.Mutex
	running map[string]int // by key
	most    int
	left    int
	errs    []error
}

func (w *limitWatch) isOpen() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left > 0 && len(w.errs) == 0
}

func (w *limitWatch) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.errs = append(w.errs, err)
	}
}

func (w *limitWatch) begin(ms []store.Leased) {
	for _, m := range ms {
		w.beginCall(m.Meta.Key)
	}
}

func (w *limitWatch) beginCall(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[key]++
	w.most = max(w.most, w.running[key])
	if w.running[key] > w.limit {
		w.errs = append(w.errs, errors.New(strconv.Itoa(w.running[key])+" messages of key "+key+" are in flight, with a limit of "+strconv.Itoa(w.limit)))
	}
}

func (w *limitWatch) end(ms []store.Leased) {
	for _, m := range ms {
		w.endCall(m.Meta.Key)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left -= len(ms)
}

func (w *limitWatch) endCall(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[key]--
}

// keyedJob is a job for a customer, which may be repeated.
type keyedJob string

func (keyedJob) Idempotent() bool { return true }

// slowService is a service whose first calls of the key "slow" last until as many run as
// the limit allows, and all other keys were called. Safe for concurrent use.
type slowService struct {
	limitWatch
	others int           // keys that were not called; guarded by mu
	isFree chan struct{} // closed when the first calls of "slow" end
}

// call fails once or twice for some messages, depending on their ids.
func (s *slowService) call(ctx context.Context, job keyedJob) (string, error) {
	key := string(job)
	s.beginCall(key)
	defer s.endCall(key)
	s.noteCall(key)
	if key == "slow" {
		select {
		case <-s.isFree:
		case <-time.After(2 * putPatience):
			s.note(errors.New("calls of other keys, or further calls of the key, waited for calls of a slow key"))
		}
		time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
	}
	meta, _ := message.MetaFromContext(ctx)
	if meta.Visit <= len(meta.ID)%3 {
		return "", errors.New("it fails")
	}
	return key, nil
}

func (s *slowService) noteCall(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key != "slow" {
		s.others--
	}
	if s.others > 0 || s.running["slow"] < s.limit {
		return
	}
	select {
	case <-s.isFree:
	default:
		close(s.isFree)
	}
}

// keyLimitOfWorkers checks that two workers together call a slow service for a key at most
// five times at a time, from the queue and its layers, and that other keys do not wait for
// it.
func keyLimitOfWorkers(b *storeBench) {
	b.byKey()
	const most, slow, others = 5, 60, 10
	quiet := slog.New(slog.DiscardHandler)
	service := &slowService{limitWatch: limitWatch{limit: most, running: map[string]int{}}, others: others, isFree: make(chan struct{})}
	var queues []*delivery.Queue[keyedJob]
	for _, s := range []store.Store{b.Store, b.open()} {
		queues = append(queues, delivery.NewQueue[keyedJob](s, "in", delivery.WithFairByKey(most), delivery.RetryAfter(b.units(1), b.units(1)),
			delivery.WithLease(b.units(100_000)), delivery.WithLogger(quiet)))
	}
	for i := range slow {
		id := delivery.ID("slow" + strconv.Itoa(i) + "xx"[:i%3])
		b.ok(queues[i%2].Put(b.ctx, "slow", delivery.Key("slow"), id), "Put")
	}
	for i := range others {
		key := "other" + strconv.Itoa(i)
		b.ok(queues[i%2].Put(b.ctx, keyedJob(key), delivery.Key(key), delivery.ID(key)), "Put")
	}
	ctx, stop := context.WithCancel(b.ctx)
	var all sync.WaitGroup
	for _, in := range queues {
		op := asyncop.UnorderedWait(asyncop.Blocking(service.call), 0, 10, asyncop.WithFailureSink(in.TakeFailure), asyncop.WithLogger(quiet))
		all.Go(func() { // ends with ctx
			_, err := delivery.Run(ctx, in, op, sinkOf(func([]message.Message[string]) {}), delivery.WithLogger(quiet))
			service.note(err)
		})
	}
	patience := time.Now().Add(4 * putPatience)
	left := slow + others
	for left > 0 && time.Now().Before(patience) {
		b.wait(1)
		time.Sleep(5 * time.Millisecond)
		counts, err := queues[0].Counts(b.ctx)
		service.note(err)
		left = counts.Waiting + counts.Retrying + counts.Dead
	}
	stop()
	all.Wait()
	b.ok(errors.Join(service.errs...), "two workers")
	b.must(left == 0, "%d messages are left after %v", left, 4*putPatience)
	b.must(service.most == most, "at most %d calls of a key ran at the same time, in place of %d", service.most, most)
}
