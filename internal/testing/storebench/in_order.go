package storebench

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// OrderedEngine is an engine that keeps the order of keys, and wakes its consumers.
type OrderedEngine interface {
	store.Keeper
	store.InOrder
	store.Waker
}

// InOrder measures a queue whose keys are in order: ten thousand keys alone, and behind a
// million messages of another key. It logs the p99 of the other keys, and how long calls
// of TakeInOrder take, while the messages of the flood are parked and afterwards. It
// takes minutes of real time, so it needs WEIR_LONG. open also returns a function that
// counts the parked messages.
func InOrder(t *testing.T, open func() (s OrderedEngine, countParked func() int)) {
	t.Helper()
	if !suite.Long() {
		t.Skip("takes minutes of real time: WEIR_LONG=1")
	}
	for _, flood := range []int{0, 1_000_000} {
		s, countParked := open()
		inOrder(t, s, flood, countParked)
	}
}

// inOrder puts a flood and a message of each other key. Two workers process them, and
// then other messages that are put meanwhile.
func inOrder(t *testing.T, s OrderedEngine, flood int, countParked func() int) {
	t.Helper()
	const keys, slots, rate = 10_000, 50, 200
	putMany(t, s, flood, func(int) string { return "flood" })
	putMany(t, s, keys, func(n int) string { return "key " + strconv.Itoa(n) })
	timed := &timedTakes{OrderedEngine: s}
	q := delivery.NewQueue[parcel](timed, "q", delivery.WithOrdered())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	sink := &orderedParcels{begun: time.Now()}
	quiet := slog.New(slog.DiscardHandler)
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, p parcel) (parcel, error) {
				time.Sleep(5 * time.Millisecond)
				return p, nil
			}), time.Minute, slots, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet))
			_, err := delivery.Run(ctx, q, op, sink, delivery.WithLogger(quiet))
			if err != nil {
				t.Error(err)
			}
		})
	}
	sink.wait(keys)
	passed := time.Since(sink.begun)
	t.Logf("flood of %d: the first message of another key was done after %v, the last of %d after %v",
		flood, sink.first.Round(time.Millisecond), keys, passed.Round(time.Millisecond))
	t.Logf("calls of TakeInOrder until then: %s", timed.report())
	measure := func() {
		for range 3 {
			sink.reset()
			putAtRate(ctx, q, rate, 10*time.Second, keys)
			t.Logf("flood of %d, after %v, with %d messages parked: p99 of other keys %v, calls of TakeInOrder: %s",
				flood, time.Since(sink.begun).Round(time.Second), countParked(), sink.p99(), timed.report())
		}
	}
	measure()
	if flood > 0 {
		waitForParked(countParked)
		t.Logf("the flood was parked after %v; calls of TakeInOrder until then: %s", time.Since(sink.begun).Round(time.Second), timed.report())
		measure()
	}
	stop()
	workers.Wait()
}

// waitForParked waits until the workers have stopped parking messages. They take parked
// messages meanwhile.
func waitForParked(countParked func() int) {
	for last := -1; ; {
		time.Sleep(5 * time.Second)
		parked := countParked()
		if parked <= last {
			return
		}
		last = parked
	}
}

// putMany puts thousands of messages with the keys that key returns.
func putMany(t *testing.T, s store.Engine, n int, key func(n int) string) {
	t.Helper()
	const batch = 1000
	for i := 0; i < n; i += batch {
		ms := make([]store.Message, batch)
		for j := range ms {
			ms[j] = keyed(key(i+j), i+j)
		}
		require.NoError(t, s.Put(t.Context(), "q", ms...))
	}
}

// putSome puts messages of a key, one after the other.
func putSome(t *testing.T, s store.Engine, n int, key string) {
	t.Helper()
	for i := range n {
		require.NoError(t, s.Put(t.Context(), "q", keyed(key, i)))
	}
}

// keyed returns a message of a key.
func keyed(key string, n int) store.Message {
	return store.Message{Meta: message.Meta{ID: key + "/" + strconv.Itoa(n), Key: key}, Payload: []byte(`{"Tenant":"` + key[:1] + `"}`)}
}

// putAtRate puts messages of random keys for a while, each on a goroutine of its own, so
// that a slow call does not delay the next.
func putAtRate(ctx context.Context, q *delivery.Queue[parcel], rate float64, length time.Duration, keys int) {
	var puts sync.WaitGroup
	next := time.Now()
	for end := next.Add(length); next.Before(end); next = next.Add(time.Duration(rand.ExpFloat64() / rate * float64(time.Second))) {
		time.Sleep(time.Until(next))
		m := message.New(parcel{"timed", next}, &message.Meta{Key: "key " + strconv.Itoa(rand.IntN(keys))}, nil)
		puts.Go(func() { _ = q.PutAll(ctx, []message.Message[parcel]{m}) })
	}
	puts.Wait()
	time.Sleep(time.Second) // the last ones are processed
}

// timedTakes notes how long calls of TakeInOrder take.
type timedTakes struct {
	OrderedEngine

	mu    sync.Mutex
	some  []time.Duration // of calls that return messages
	empty []time.Duration // of the others
}

func (s *timedTakes) TakeInOrder(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	begun := time.Now()
	taken, err := s.OrderedEngine.TakeInOrder(ctx, queue, limit, lease)
	took := time.Since(begun)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(taken) == 0 {
		s.empty = append(s.empty, took)
	} else {
		s.some = append(s.some, took)
	}
	return taken, err
}

// report describes the calls since the last report.
func (s *timedTakes) report() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := "with messages " + quantiles(s.some) + "; without " + quantiles(s.empty)
	s.some, s.empty = nil, nil
	return text
}

func quantiles(took []time.Duration) string {
	if len(took) == 0 {
		return "0"
	}
	slices.Sort(took)
	at := func(q int) string { return took[(len(took)-1)*q/100].Round(10 * time.Microsecond).String() }
	return strconv.Itoa(len(took)) + ", p50 " + at(50) + ", p99 " + at(99) + ", longest " + at(100)
}

// orderedParcels is a sink that records the latency of the keys that do not flood.
type orderedParcels struct {
	begun time.Time

	mu     sync.Mutex
	first  time.Duration
	others int
	took   []time.Duration
}

func (s *orderedParcels) PutAll(_ context.Context, ms []message.Message[parcel]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range ms {
		switch m.Value.Tenant {
		case "timed":
			s.took = append(s.took, time.Since(m.Value.Put))
		case "k":
			s.others++
			if s.others == 1 {
				s.first = time.Since(s.begun)
			}
		}
	}
	return nil
}

func (s *orderedParcels) wait(others int) {
	for {
		s.mu.Lock()
		isDone := s.others >= others
		s.mu.Unlock()
		if isDone {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *orderedParcels) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = nil
}

func (s *orderedParcels) p99() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.took)
	return s.took[len(s.took)*99/100].Round(10 * time.Microsecond)
}
