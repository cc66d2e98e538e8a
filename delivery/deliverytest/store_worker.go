package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

var workerRules = []storeRule{
	{name: "a worker takes no more than it has slots", check: workerTakesBySlots},
	{name: "by key: rounds", check: byKeyRounds},
	{name: "by key: never early, and not what is leased", check: byKeyDue},
	{name: "by key: a worker", check: byKeyWorker},
	{name: "by key: one limit for a queue and its layers", check: byKeyLayers},
	{name: "in order: workers", check: orderedWorkers},
}

func (b *storeBench) byKey() store.ByKey {
	k, ok := b.Store.(store.ByKey)
	if !ok {
		panic(notApplicable{})
	}
	return k
}

// ofKey returns n messages of a key, whose ids begin with it.
func ofKey(key string, n int) (ms []store.Message) {
	for i := range n {
		m := newMessage(key + "#" + strconv.Itoa(i))
		m.Meta.Key = key
		ms = append(ms, m)
	}
	return ms
}

// round takes messages by key until a round that begins at from has ended, and counts
// them by key.
func (b *storeBench) round(from string, limit, each int, except ...string) (got map[string]int, keys []string) {
	got = map[string]int{}
	for r := (store.KeyRound{After: from, Each: each, Except: except}); ; {
		taken, next, err := b.byKey().TakeByKey(b.ctx, "q", r, limit, b.units(100))
		b.ok(err, "TakeByKey")
		b.must(len(taken) <= limit, "TakeByKey returned %d messages, more than %d", len(taken), limit)
		of := map[string]int{}
		for _, l := range taken {
			of[l.Meta.Key]++
			got[l.Meta.Key]++
			b.must(l.Lease.Queue == "q" && l.Lease.Fence > 0, "the lease of %q is %+v", l.Meta.ID, l.Lease)
		}
		for key, n := range of {
			b.must(n <= each && !slices.Contains(except, key), "TakeByKey returned %d messages of key %q: at most %d are allowed, and no messages of %q", n, key, each, except)
			keys = append(keys, key)
		}
		if next == "" {
			return got, keys
		}
		b.must(next != r.After, "TakeByKey does not go on")
		r.After = next
	}
}

// byKeyRounds checks that a key with many messages does not delay others.
func byKeyRounds(b *storeBench) {
	b.byKey()
	b.put("q", ofKey("flood", 300)...)
	odd := []string{"a", "z", "flood2", "\xff\x00", "k", "ä"}
	for _, key := range odd {
		b.put("q", ofKey(key, 3)...)
	}
	b.put("other", ofKey("b", 3)...)
	got, keys := b.round("", 1, 1)
	b.must(len(got) == 7 && len(keys) == 7, "a round of one message each took %v", got)
	got, keys = b.round("", 100, 2, "flood", "\xff\x00")
	b.must(len(got) == 5 && len(keys) == 5 && got["a"] == 2 && got["ä"] == 2, "a round of two each, but for two keys, took %v", got)
	got, _ = b.round("", 50, 50)
	b.must(len(got) == 2 && got["\xff\x00"] == 2 && got["flood"] == 25, "a round of 50 of two keys took %v", got) // half for each
	got, _ = b.round("", 100, 100)
	b.must(len(got) == 1 && got["flood"] == 100, "a round of 100 took %v", got)
	b.put("q", newMessage("keyless"))
	for range 300 {
		got, _ = b.round("", 1, 1)
		if got[""] == 1 {
			return
		}
	}
	b.fail("a message without a key was not taken")
}

// byKeyDue checks law D3, and that each message is taken once.
func byKeyDue(b *storeBench) {
	b.byKey()
	for i, key := range []string{"a", "b", "c"} {
		ms := ofKey(key, 4)
		for n := range ms {
			ms[n].Delay = b.units(10 * n * (i % 2)) // b's messages are due one by one
		}
		b.put("q", ms...)
	}
	got, _ := b.round("", 100, 100)
	b.must(got["a"] == 4 && got["b"] == 1 && got["c"] == 4, "of 9 messages that are due TakeByKey took %v", got)
	got, _ = b.round("", 100, 100)
	b.must(len(got) == 0, "TakeByKey took %v again", got)
	b.wait(11)
	got, _ = b.round("", 100, 100)
	b.must(b.RealTime && got["b"] >= 1 || got["b"] == 1 && len(got) == 1, "of one message that is due TakeByKey took %v", got)
}

// byKeyWorker checks that a worker gets messages of all keys, within the limit of each.
func byKeyWorker(b *storeBench) {
	b.byKey()
	quiet := slog.New(slog.DiscardHandler)
	const most = 2
	in := delivery.NewQueue[string](b.Store, "in", delivery.WithFairByKey(most), delivery.WithLogger(quiet))
	b.must(errors.Is(in.Put(b.ctx, "none"), message.ErrRefused), "a message without a key was put")
	for i := range 200 {
		b.ok(in.Put(b.ctx, "flood", delivery.Key("flood"), delivery.ID(strconv.Itoa(i))), "Put")
	}
	for _, key := range []string{"a", "b", "z"} {
		b.ok(in.Put(b.ctx, key, delivery.Key(key), delivery.ID(key)), "Put")
	}
	var mu sync.Mutex
	running := 0
	order := []string{}
	exceeded := false
	ctx, stop := context.WithCancel(b.ctx)
	defer stop()
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, v string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, v)
		if v == "flood" {
			running++
			exceeded = exceeded || running > most
		}
		if len(order) == 203 {
			stop()
		}
		return v, nil
	}), 0, 5, asyncop.WithFailureSink(in.TakeFailure), asyncop.WithLogger(quiet))
	_, err := delivery.Run(ctx, in, op, sinkOf(func(ms []message.Message[string]) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range ms {
			if m.Value == "flood" {
				running--
			}
		}
	}), delivery.WithLogger(quiet))
	b.ok(err, "Run")
	b.must(!exceeded, "more than %d messages of a key were in flight", most)
	for i, v := range order[20:] {
		b.must(v == "flood", "key %q was first called after %d messages", v, i+20)
	}
}

// byKeyLayers checks that the limit per key holds for a queue with its layers, and that a
// key at its limit blocks no other key.
func byKeyLayers(b *storeBench) {
	b.byKey()
	const most, each = 2, 4
	in := b.quietQueue("in", delivery.WithFairByKey(most), delivery.RetryAfter(b.units(1), b.units(1)))
	queues := []string{"in", "in-retry-1", "in-retry-2"}
	put := func(queue, key, id string) {
		m := newMessage(queue + "-" + id)
		m.Meta.Key, m.Payload = key, []byte(strconv.Quote(key))
		b.put(queue, m)
	}
	for i := range each {
		for _, queue := range queues {
			put(queue, "slow", strconv.Itoa(i))
		}
	}
	ctx, cancel := context.WithCancel(b.ctx)
	arrived := make(chan message.Message[string], each*len(queues)+len(queues))
	source := b.source(in)
	var receiving sync.WaitGroup
	receiving.Go(func() { // ends with ctx
		for {
			ms, err := source.Receive(ctx, 100)
			if err != nil {
				return
			}
			for _, m := range ms {
				arrived <- m
			}
		}
	})
	defer receiving.Wait()
	defer cancel()
	next := func() message.Message[string] {
		select {
		case m := <-arrived:
			return m
		case <-time.After(putPatience):
		}
		b.fail("no message was delivered within %v", putPatience)
		panic("not reached")
	}
	noMore := func() {
		select {
		case m := <-arrived:
			b.fail("%d messages of key %q are in flight, with a limit of %d", most+1, m.Meta().Key, most)
		case <-time.After(50 * time.Millisecond): // sources have asked again by now
		}
	}
	var flying []message.Message[string]
	for len(flying) < most {
		flying = append(flying, next())
	}
	noMore()
	for _, queue := range queues {
		put(queue, "other"+queue, "other")
		m := next()
		b.must(m.Meta().Key == "other"+queue, "a message of key %q was delivered in place of key %q", m.Meta().Key, "other"+queue)
		m.Ack()
	}
	for left := each*len(queues) - most; left > 0; left-- {
		flying[0].Ack()
		flying = append(flying[1:], next())
		if left%5 == 0 {
			noMore()
		}
	}
	for _, m := range flying {
		m.Ack()
	}
}

// orderedJob is a job whose key has an order. Each fourth job of a key fails at its first
// visit, and each fourth at all its visits.
type orderedJob struct {
	Key string
	N   int
}

func (orderedJob) Idempotent() bool { return true }

func (j orderedJob) call(ctx context.Context) error {
	meta, _ := message.MetaFromContext(ctx)
	if j.N%4 == 1 && meta.Visit == 1 || j.N%4 == 3 {
		return errors.New("it fails")
	}
	return nil
}

// orderedCalls checks the calls for jobs. Safe for concurrent use.
type orderedCalls struct {
	mu      sync.Mutex
	running map[string]bool
	last    map[string]int // each key's last called job
	calls   int
	wrong   []error
}

func (c *orderedCalls) begin(j orderedJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, isCalled := c.last[j.Key]
	isNext := !isCalled && j.N == 0 || isCalled && (j.N == last || j.N == last+1)
	if c.running[j.Key] || !isNext {
		c.wrong = append(c.wrong, fmt.Errorf("job %d of key %q is called after job %d, which is running: %v", j.N, j.Key, last, c.running[j.Key]))
	}
	c.running[j.Key], c.last[j.Key] = true, j.N
	c.calls++
}

func (c *orderedCalls) end(j orderedJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[j.Key] = false
}

// orderedWorkers checks that workers call a key's jobs in order, although jobs fail and
// wait for another visit.
func orderedWorkers(b *storeBench) {
	b.inOrder()
	const keys, each, workers = 6, 8, 3
	quiet := slog.New(slog.DiscardHandler)
	calls := &orderedCalls{running: map[string]bool{}, last: map[string]int{}}
	ctx, stop := context.WithCancel(b.ctx)
	var all sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	var queues []*delivery.Queue[orderedJob]
	for range workers {
		in := delivery.NewQueue[orderedJob](b.open(), "in", delivery.WithOrdered(), delivery.RetryAfter(b.units(1)),
			delivery.WithLease(b.units(100_000)), delivery.WithLogger(quiet))
		queues = append(queues, in)
	}
	for n := range each {
		for k := range keys {
			key := "key" + strconv.Itoa(k)
			b.ok(queues[n%workers].Put(b.ctx, orderedJob{key, n}, delivery.Key(key)), "Put")
		}
	}
	for _, in := range queues {
		op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, j orderedJob) (string, error) {
			calls.begin(j)
			defer calls.end(j)
			return j.Key, j.call(ctx)
		}), 0, 4, asyncop.WithFailureSink(in.TakeFailure), asyncop.WithLogger(quiet))
		all.Go(func() { // ends with ctx
			_, err := delivery.Run(ctx, in, op, sinkOf(func([]message.Message[string]) {}), delivery.WithLogger(quiet))
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	patience := time.After(4 * putPatience)
	left := keys * each
	for left > 0 {
		b.wait(1)
		select {
		case <-time.After(5 * time.Millisecond):
		case <-patience:
			stop()
		}
		counts, err := queues[0].Counts(b.ctx)
		if err != nil || ctx.Err() != nil {
			break
		}
		left = counts.Waiting + counts.Retrying
	}
	stop()
	all.Wait()
	b.ok(errors.Join(errs...), "Run")
	b.ok(errors.Join(calls.wrong...), "the order of calls")
	b.must(left == 0, "%d messages are left after %v", left, 4*putPatience)
	// Of four jobs, two are called once and two twice.
	b.must(calls.calls == keys*each*6/4, "%d calls in place of %d", calls.calls, keys*each*6/4)
	b.must(len(b.list(queues[0].DeadLetters(), store.Filter{}, everything)) == keys*each/4, "the dead letters are not the jobs that fail at both visits")
}

type sinkOf func(ms []message.Message[string])

func (f sinkOf) PutAll(_ context.Context, ms []message.Message[string]) error { f(ms); return nil }

// workerTakesBySlots checks that a worker leaves messages to others if it has no slot for
// them: at first all of these, then all but two for each freed slot, which may be free
// again at once.
func workerTakesBySlots(b *storeBench) {
	b.inspector()
	const slots = 3
	quiet := slog.New(slog.DiscardHandler)
	in := delivery.NewQueue[int](b.Store, "in", delivery.RetryAfter(b.units(1)), delivery.WithLogger(quiet))
	for i := range 20 {
		b.ok(in.Put(b.ctx, i, delivery.ID(strconv.Itoa(i))), "Put")
	}
	done := make(idSink, 20)
	began, end := make(chan struct{}, 20), make(chan struct{}, 20)
	op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, v int) (int, error) {
		began <- struct{}{}
		select {
		case <-end:
			return v, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}), 0, slots, asyncop.WithFailureSink(in.TakeFailure), asyncop.WithLogger(quiet))
	ctx, stop := context.WithCancel(b.ctx)
	ended := make(chan error, 1)
	go func() { // ends with ctx
		_, err := delivery.Run(ctx, in, op, done, delivery.WithLogger(quiet), delivery.WithDrain(0))
		ended <- err
	}()
	defer func() {
		stop()
		b.ok(<-ended, "Run")
	}()
	for range slots {
		<-began
	}
	completed := map[string]bool{} // the store may not know it
	for range 5 {
		taken := 0
		for _, e := range b.list("in", store.Filter{}, everything) {
			if !e.LeasedUntil.IsZero() && !completed[e.Meta.ID] {
				taken++
			}
		}
		b.must(taken <= slots+2*len(completed), "a worker with %d slots has taken %d messages, after %d were done", slots, taken, len(completed))
		end <- struct{}{}
		<-began
		completed[<-done] = true
	}
}

// idSink takes everything and sends the ids.
type idSink chan string

func (s idSink) PutAll(_ context.Context, ms []message.Message[int]) error {
	for _, m := range ms {
		s <- m.Meta().ID
	}
	return nil
}
