package leases_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

var quiet = leases.WithLogger(slog.New(slog.DiscardHandler))

func TestSource(t *testing.T) {
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		t.Parallel() // the rules wait
		return storeQueue(t, memory.Open())
	}, func(i int) string { return fmt.Sprint("value ", i) })
}

func storeQueue(t *testing.T, s store.Store) deliverytest.Queue[string] {
	n := 0
	return deliverytest.Queue[string]{
		Open: func() (delivery.Source[string], error) {
			return leases.NewSource(s, "q", "dead", codec.JSON[string](), leases.WithLease(600*time.Millisecond), quiet), nil
		},
		Put: func(values ...string) error {
			for _, v := range values {
				n++
				m, err := leases.Encode(codec.JSON[string](), v, message.Meta{ID: fmt.Sprint(n)})
				if err := errors.Join(err, s.Put(t.Context(), "q", m)); err != nil {
					return err
				}
			}
			return nil
		},
		Keeps: true, Shared: true, Lease: 600 * time.Millisecond,
		Kill: func(s delivery.Source[string]) { leases.KillSource(s.(*leases.Source[string])) },
	}
}

func receive(t *testing.T, s *leases.Source[string]) message.Message[string] {
	t.Helper()
	ms, err := s.Receive(t.Context(), 1)
	require.NoError(t, err)
	require.Len(t, ms, 1)
	return ms[0]
}

func put(t *testing.T, s store.Store, ids ...string) {
	t.Helper()
	for _, id := range ids {
		m, err := leases.Encode(codec.JSON[string](), "value of "+id, message.Meta{ID: id})
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), "q", m))
	}
}

func dead(t *testing.T, s store.Inspector) []store.Entry {
	t.Helper()
	entries, err := s.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 100})
	require.NoError(t, err)
	return entries
}

// Law D4.
func TestUndecodableStopsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		raw := store.Message{Meta: message.Meta{ID: "raw", Visit: 2}, Payload: []byte("no JSON\x00"), Schema: codec.SchemaOf(codec.JSON[string]())}
		other := store.Message{Meta: message.Meta{ID: "other"}, Payload: []byte(`"x"`), Schema: []byte("another codec")}
		require.NoError(t, memory.Put(t.Context(), "q", raw, other))
		put(t, memory, "good")
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), quiet)
		m := receive(t, s)
		require.Equal(t, "value of good", m.Value)
		m.Ack()
		require.NoError(t, s.Close(t.Context()))
		letters := dead(t, memory)
		require.Len(t, letters, 2)
		for i, want := range []store.Message{raw, other} {
			require.Equal(t, store.Undecodable, letters[i].Cause)
			require.NotEmpty(t, letters[i].Meta.LastError)
			require.Equal(t, want.Payload, letters[i].Payload)
			require.Equal(t, want.Schema, letters[i].Schema)
			want.Meta.Put = letters[i].Meta.Put
			require.Contains(t, want.Meta.Put, "q//")
			require.Equal(t, want.Identity(), letters[i].Identity())
		}
	})
}

// waking is an engine that notifies when messages are due.
type waking struct{ *memory.Engine }

func (w waking) Wake(ctx context.Context, _ string, wake func(misses bool)) error {
	wake(false)
	<-ctx.Done()
	return context.Cause(ctx)
}

// Law D4: a source that need not poll looks again behind a batch without a decodable
// message.
func TestUndecodableDoesNotPutASourceToSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := waking{memory.Open()}
		s := leases.NewSource(engine, "q", "dead", codec.JSON[string](), quiet)
		synctest.Wait() // it knows that the engine wakes it
		for i := range 3 {
			raw := store.Message{Meta: message.Meta{ID: strconv.Itoa(i)}, Payload: []byte("no JSON")}
			require.NoError(t, engine.Put(t.Context(), "q", raw))
		}
		put(t, engine, "good")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		ms, err := s.Receive(ctx, 1)
		assert.NoError(t, err)
		assert.Len(t, ms, 1)
		require.NoError(t, s.Close(t.Context()))
	})
}

func TestRejectedIsADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		put(t, memory, "a")
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string]())
		m := receive(t, s)
		require.Equal(t, 1, m.Meta().Visit)
		m.Reject(errors.New("no such account"))
		require.NoError(t, s.Close(t.Context()))
		letter := dead(t, memory)[0]
		require.Equal(t, store.Permanent, letter.Cause)
		require.Equal(t, "no such account", letter.Meta.LastError)
		require.Equal(t, 1, letter.Meta.Visit)
		require.True(t, letter.Meta.FirstFailure.Equal(time.Now()))
		require.Equal(t, `"value of a"`, string(letter.Payload))
	})
}

// Regression (laws D4, W2): a message that killed its process stopped the queue for ever,
// and its batch died with it each time.
func TestSource_MessageThatKillsItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		tries := map[string]int{}
		for i := range 100 {
			put(t, memory, strconv.Itoa(i))
		}
		work := func() (killed bool) { // a process
			s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), quiet)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			for {
				ms, err := s.Receive(ctx, 40)
				if err != nil {
					require.NoError(t, s.Close(t.Context()))
					return false
				}
				for _, m := range ms {
					tries[m.Meta().ID]++
				}
				for _, m := range ms {
					time.Sleep(10 * time.Millisecond)
					if m.Meta().ID == "50" {
						leases.KillSource(s)
						return true
					}
					m.Ack()
				}
			}
		}
		deaths := 0
		for work() {
			deaths++
			time.Sleep(30 * time.Second)
		}
		require.Equal(t, 5, deaths)
		letters := dead(t, memory)
		require.Len(t, letters, 1)
		require.Equal(t, "50", letters[0].Meta.ID)
		require.Equal(t, store.Lapsed, letters[0].Cause)
		require.Contains(t, letters[0].Meta.LastError, "ended 5 times")
		n, err := memory.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, n.Messages)
		for id, n := range tries {
			if id != "50" {
				require.LessOrEqual(t, n, 2, "%s was in one batch that died", id)
			}
		}
	})
}

// A slow message delays the others no longer than its head start.
func TestSource_HeadStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		put(t, memory, "a", "b", "c")
		_, err := memory.Take(t.Context(), "q", 2, time.Second)
		require.NoError(t, err)
		time.Sleep(time.Second)
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), quiet)
		begun := time.Now()
		for i, id := range []string{"a", "b", "c"} {
			ms, err := s.Receive(t.Context(), 10)
			require.NoError(t, err)
			require.Len(t, ms, 1)
			require.Equal(t, id, ms[0].Meta().ID)
			require.Equal(t, time.Duration(i)*100*time.Millisecond, time.Since(begun))
		}
		require.NoError(t, s.Close(t.Context()))
	})
}

// Law D4: sources that share head starts deliver one suspect at a time, even if both take
// at the same time. The next one follows after the head start, or when the first is
// settled.
func TestHeadStarts_OfTwoSources(t *testing.T) {
	for _, settled := range []time.Duration{30 * time.Millisecond, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			memory := memory.Open()
			shared := leases.WithHeadStarts(leases.NewHeadStarts())
			begun := time.Now()
			delivered := make(chan time.Duration, 2)
			for _, queue := range []string{"q", "q-retry-1"} {
				m, err := leases.Encode(codec.JSON[string](), "value", message.Meta{ID: "a"})
				require.NoError(t, err)
				require.NoError(t, memory.Put(t.Context(), queue, m))
				_, err = memory.Take(t.Context(), queue, 1, time.Second)
				require.NoError(t, err)
				s := leases.NewSource(memory, queue, "dead", codec.JSON[string](), quiet, shared)
				t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
				time.AfterFunc(time.Second, func() {
					ms, err := s.Receive(t.Context(), 10)
					if err != nil || len(ms) != 1 {
						t.Errorf("received %d messages, error %v", len(ms), err)
						return
					}
					delivered <- time.Since(begun) - time.Second
					time.AfterFunc(settled, ms[0].Ack)
				})
			}
			require.Zero(t, <-delivered)
			require.Equal(t, min(settled, 100*time.Millisecond), <-delivered)
		})
	}
}

// slowTake is a store whose Take answers late.
type slowTake struct {
	store.Inspector
	late time.Duration
}

func (s slowTake) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	taken, err := s.Inspector.Take(ctx, queue, limit, lease)
	time.Sleep(s.late)
	return taken, err
}

// A source that was taking messages when another source began a head start delivers them,
// and takes again after the head start.
func TestHeadStarts_TakeThatHadBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		put(t, memory, "suspect")
		_, err := memory.Take(t.Context(), "q", 1, time.Second)
		require.NoError(t, err)
		time.Sleep(time.Second)
		for _, id := range []string{"new", "next"} {
			m, err := leases.Encode(codec.JSON[string](), "value", message.Meta{ID: id})
			require.NoError(t, err)
			require.NoError(t, memory.Put(t.Context(), "q-retry-1", m))
		}
		shared := leases.WithHeadStarts(leases.NewHeadStarts())
		a := leases.NewSource(memory, "q", "dead", codec.JSON[string](), quiet, shared)
		b := leases.NewSource(slowTake{memory, 10 * time.Millisecond}, "q-retry-1", "dead", codec.JSON[string](), quiet, shared)
		received := make(chan string, 2)
		go func() { // ends with the second message
			for range 2 {
				ms, err := b.Receive(t.Context(), 1)
				if err != nil || len(ms) != 1 {
					t.Errorf("received %d messages, error %v", len(ms), err)
					return
				}
				received <- ms[0].Meta().ID
				ms[0].Ack()
			}
		}()
		time.Sleep(5 * time.Millisecond) // the source of the layer is taking
		ms, err := a.Receive(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, "suspect", ms[0].Meta().ID)
		require.Equal(t, "new", <-received)
		time.Sleep(90 * time.Millisecond)
		require.Empty(t, received, "the head start lasts 100 ms")
		ms[0].Ack()
		require.Equal(t, "next", <-received)
		require.NoError(t, a.Close(t.Context()))
		require.NoError(t, b.Close(t.Context()))
	})
}

// failing is a store that cannot write for some time.
type failing struct {
	store.Inspector
	down *atomic.Bool
}

var errDown = errors.New("down")

func (f failing) Done(ctx context.Context, ls ...store.Lease) error {
	if f.down.Load() {
		return errDown
	}
	return f.Inspector.Done(ctx, ls...)
}

func (f failing) Extend(ctx context.Context, d time.Duration, ls ...store.Lease) error {
	if f.down.Load() {
		return errDown
	}
	return f.Inspector.Extend(ctx, d, ls...)
}

// Law D2: the acknowledgement survives the store's outage, and the message is not
// delivered again here.
func TestAcknowledgementsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		put(t, memory, "a")
		var down atomic.Bool
		s := leases.NewSource(failing{memory, &down}, "q", "dead", codec.JSON[string](), leases.WithLease(10*time.Second), quiet)
		m := receive(t, s)
		down.Store(true)
		m.Ack()
		synctest.Wait()
		_, err := s.Receive(t.Context(), 1)
		require.ErrorIs(t, err, errDown)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // longer than the lease
		defer cancel()
		for ctx.Err() == nil {
			ms, err := s.Receive(ctx, 1)
			require.Empty(t, ms, "a message that was acknowledged is delivered again")
			require.Error(t, err)
		}
		down.Store(false)
		time.Sleep(2 * time.Second)
		counts, err := memory.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counts.Messages)
		require.NoError(t, ignore(s.Close(t.Context()), errDown))
	})
}

// Law D2: after a pause in which the lease was lost, the redelivery joins the message in
// flight.
func TestRedeliveryJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		put(t, memory, "a")
		var down atomic.Bool
		down.Store(true)
		s := leases.NewSource(failing{memory, &down}, "q", "dead", codec.JSON[string](), leases.WithLease(time.Second), quiet)
		m := receive(t, s)
		time.Sleep(5 * time.Second) // no lease is extended
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := s.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		down.Store(false)
		time.Sleep(2 * time.Second)
		m.Ack()
		require.NoError(t, s.Close(t.Context()))
		counts, err := memory.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counts.Messages, "the acknowledgement is that of the newer lease")
	})
}

// A redelivery that joins a message in flight brings the provider that another worker has
// chosen meanwhile: a call there may be in doubt, so the message keeps it.
func TestSource_RedeliveryJoinsWithTheProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		put(t, memory, "a")
		var down atomic.Bool
		down.Store(true)
		s := leases.NewSource(failing{memory, &down}, "q", "dead", codec.JSON[string](), leases.WithLease(time.Second), quiet)
		m := receive(t, s)
		require.Empty(t, m.Meta().Provider)
		time.Sleep(5 * time.Second) // no lease is extended
		other := leases.NewSource(memory, "q", "dead", codec.JSON[string](), leases.WithLease(time.Hour), quiet)
		isKept, err := message.DeliveryOf(receive(t, other)).SetProvider(t.Context(), "north")
		require.NoError(t, err)
		require.True(t, isKept)
		require.NoError(t, other.Close(t.Context()), "releases the message")
		down.Store(false)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = s.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded, "the redelivery joins")
		require.Equal(t, "north", m.Meta().Provider)
		isKept, err = message.DeliveryOf(m).SetProvider(t.Context(), "south")
		require.NoError(t, err)
		require.True(t, isKept)
		m.Reject(errors.New("no such account"))
		require.NoError(t, s.Close(t.Context()))
		require.Equal(t, "south", dead(t, memory)[0].Meta.Provider)
	})
}

// A lease that is lost counts once: when another source has the message, or this one has
// it again.
func TestLeasesLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memory.Open()
		put(t, memory, "a", "b", "c")
		var down atomic.Bool
		s := leases.NewSource(failing{memory, &down}, "q", "dead", codec.JSON[string](), leases.WithLease(time.Second), quiet)
		a, b, c := receive(t, s), receive(t, s), receive(t, s)
		time.Sleep(5 * time.Second)
		require.Zero(t, s.LeasesLost())
		down.Store(true)
		time.Sleep(5 * time.Second) // no lease is extended
		require.Zero(t, s.LeasesLost(), "they have ended, and nobody has the messages")
		other := leases.NewSource(memory, "q", "dead", codec.JSON[string](), leases.WithLease(time.Hour), quiet)
		receive(t, other)
		down.Store(false)
		time.Sleep(5 * time.Second)
		require.Equal(t, 1, s.LeasesLost())
		down.Store(true)
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		_, err := s.Receive(ctx, 2)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3, s.LeasesLost(), "the others join")
		down.Store(false)
		a.Ack()
		b.Ack()
		c.Ack()
		require.NoError(t, s.Close(t.Context()))
		require.Equal(t, 3, s.LeasesLost())
		require.NoError(t, other.Close(t.Context()))
	})
}

// slowRelease is a store whose Release returns some time after it has taken effect.
type slowRelease struct {
	*memory.Engine
	returns chan struct{}
}

func (s slowRelease) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	err := s.Engine.Release(ctx, delay, leases...)
	<-s.returns
	return err
}

// doneWaits is a store whose Done waits.
type doneWaits struct {
	store.Store
	entered, release chan struct{}
}

func (s *doneWaits) Done(ctx context.Context, leases ...store.Lease) error {
	s.entered <- struct{}{}
	<-s.release
	return s.Store.Done(ctx, leases...)
}

// A store that records slowly delays no message.
func TestReceiveGoesOnWhileSettlementsAreRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &doneWaits{Store: memory.Open(), entered: make(chan struct{}), release: make(chan struct{})}
		put(t, slow, "1", "2")
		s := leases.NewSource(slow, "q", "dead", codec.JSON[string]())
		receive(t, s).Ack()
		<-slow.entered
		second := make(chan message.Message[string], 1)
		go func() { second <- receive(t, s) }()
		synctest.Wait()
		require.Len(t, second, 1, "it waits for Done")
		close(slow.release)
		(<-second).Ack()
		<-slow.entered
		require.NoError(t, s.Close(t.Context()))
	})
}

// A message that was released is taken again before Release has returned: it is received
// again, and does not join itself.
func TestTakenAgainBeforeReleaseReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := slowRelease{memory.Open(), make(chan struct{})}
		put(t, memory.Engine, "a")
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), leases.WithLease(time.Minute), quiet)
		receive(t, s).Nack(0)
		synctest.Wait()
		again := make(chan message.Message[string])
		go func() { again <- receive(t, s) }()
		time.Sleep(time.Second) // it polls
		close(memory.returns)
		select {
		case m := <-again:
			m.Ack()
		case <-time.After(time.Second):
			require.Fail(t, "the message is leased, and nobody has it")
		}
		require.NoError(t, s.Close(t.Context()))
		counts, err := memory.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counts.Messages)
	})
}

// While Close releases at a store that hangs, a Receive that begins returns.
func TestReceiveWhileCloseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := slowRelease{memory.Open(), make(chan struct{})}
		put(t, memory.Engine, "a")
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), quiet)
		receive(t, s)
		closed := make(chan error)
		go func() { closed <- s.Close(context.WithoutCancel(t.Context())) }()
		synctest.Wait() // in Release
		received := make(chan error, 1)
		go func() {
			_, err := s.Receive(t.Context(), 1)
			received <- err
		}()
		synctest.Wait()
		require.Len(t, received, 1, "Receive waits for Close")
		require.ErrorContains(t, <-received, "the source is closed")
		close(memory.returns)
		require.NoError(t, <-closed)
	})
}

// doneUntil is a store whose Done takes effect, and then waits for release or the end of
// its context.
type doneUntil struct {
	*memory.Engine
	entered, release chan struct{}
}

func (s doneUntil) Done(ctx context.Context, leases ...store.Lease) error {
	err := s.Engine.Done(ctx, leases...)
	s.entered <- struct{}{}
	select {
	case <-s.release:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Law D2: Close waits for settlements that are being recorded. Interrupted and repeated,
// it would look as if the leases were lost.
func TestCloseDoesNotBreakOffARecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := doneUntil{memory.Open(), make(chan struct{}, 9), make(chan struct{})}
		put(t, memory, "a")
		var log strings.Builder
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), leases.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		receive(t, s).Ack()
		<-memory.entered
		time.AfterFunc(time.Second, func() { close(memory.release) })
		require.NoError(t, s.Close(t.Context()))
		require.Empty(t, log.String())
	})
}

// A store that does not answer delays Close until its context ends, and no longer.
func TestCloseOverAStoreThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := doneUntil{memory.Open(), make(chan struct{}, 9), make(chan struct{})}
		put(t, memory, "a")
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), quiet)
		receive(t, s).Ack()
		<-memory.entered
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.Close(ctx), context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(begun))
	})
}

// takeUntil is a store whose Take takes effect, and then waits for release or the end of
// its context.
type takeUntil struct {
	*memory.Engine
	entered, release chan struct{}
}

func (s takeUntil) Take(ctx context.Context, queue string, n int, lease time.Duration) ([]store.Leased, error) {
	taken, err := s.Engine.Take(ctx, queue, n, lease)
	s.entered <- struct{}{}
	select {
	case <-s.release:
		return taken, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Messages of a Take during Close are released, and need not wait for the end of their
// leases.
func TestCloseDoesNotBreakOffATake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := takeUntil{memory.Open(), make(chan struct{}, 9), make(chan struct{})}
		put(t, memory, "a")
		s := leases.NewSource(memory, "q", "dead", codec.JSON[string](), quiet)
		received := make(chan error)
		go func() {
			_, err := s.Receive(t.Context(), 1)
			received <- err
		}()
		<-memory.entered
		time.AfterFunc(time.Second, func() { close(memory.release) })
		closed := make(chan error)
		go func() { closed <- s.Close(t.Context()) }()
		require.Error(t, <-received)
		require.NoError(t, <-closed)
		taken, err := memory.Engine.Take(t.Context(), "q", 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, 1)
	})
}

func ignore(err, other error) error {
	if errors.Is(err, other) {
		return nil
	}
	return err
}

// An idle source asks less and less, and is back at once when something was released.
func TestIdlePolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		counting := counting{memory.Open(), &asked}
		s := leases.NewSource(counting, "q", "dead", codec.JSON[string](), leases.WithMaxPoll(time.Second))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, 68, asked, 3)

		put(t, counting, "a", "b")
		m := receive(t, s)
		begun := time.Now()
		m.Nack(0)
		receive(t, s)
		receive(t, s)
		require.Less(t, time.Since(begun), 10*time.Millisecond)
		require.NoError(t, s.Close(t.Context()))
	})
}

type counting struct {
	store.Store
	takes *int
}

func (c counting) Take(ctx context.Context, queue string, n int, lease time.Duration) ([]store.Leased, error) {
	*c.takes++
	return c.Store.Take(ctx, queue, n, lease)
}
