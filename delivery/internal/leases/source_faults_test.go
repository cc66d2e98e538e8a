package leases_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
)

// erring is a store whose methods return these errors.
type erring struct {
	*memory.Engine
	take, release error
}

func (f *erring) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	if f.take != nil {
		return nil, f.take
	}
	return f.Engine.Take(ctx, queue, limit, lease)
}

func (f *erring) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	if f.release != nil {
		return f.release
	}
	return f.Engine.Release(ctx, delay, leases...)
}

// Receive and Close return the errors of a store, and may be called again.
func TestSourceOfAStoreThatFails(t *testing.T) {
	down := errors.New("the disk is gone")
	synctest.Test(t, func(t *testing.T) {
		f := &erring{Engine: memory.Open(), take: down}
		put(t, f, "a")
		s := leases.NewSource(f, "q", "dead", codec.JSON[string](), quiet)
		_, err := s.Receive(t.Context(), 1)
		require.ErrorIs(t, err, down)
		f.take = nil
		require.Equal(t, 1, receive(t, s).Meta().Visit)
		f.release = down
		require.ErrorIs(t, s.Close(t.Context()), down, "a is still leased")
		f.release = nil
		require.NoError(t, s.Close(t.Context()))
		require.NoError(t, s.Close(t.Context()))
		_, err = s.Receive(t.Context(), 1)
		require.Error(t, err)

		s = leases.NewSource(f, "q", "dead", codec.JSON[string](), quiet)
		require.Equal(t, 1, receive(t, s).Meta().Visit, "it was released, and not tried")
		f.release = storearg.Lost([]store.Lease{{Queue: "q", Entry: "1", Fence: 2}})
		require.NoError(t, s.Close(t.Context()), "another consumer has it")
	})
}

// small is a store that refuses messages above a number of bytes.
type small struct {
	*memory.Engine
	limit int
}

func (s small) check(m store.Message) error {
	b, err := json.Marshal(m)
	if err == nil && len(b) > s.limit {
		err = fmt.Errorf("%d bytes: %w", len(b), message.ErrRefused)
	}
	return err
}

func (s small) Put(ctx context.Context, queue string, ms ...store.Message) error {
	for _, m := range ms {
		if err := s.check(m); err != nil {
			return err
		}
	}
	return s.Engine.Put(ctx, queue, ms...)
}

func (s small) HandOver(ctx context.Context, moves ...store.Move) error {
	for _, m := range moves {
		if err := s.check(m.Message); err != nil {
			return err
		}
	}
	return s.Engine.HandOver(ctx, moves...)
}

func (s small) Move(ctx context.Context, moves ...store.Move) error {
	for _, m := range moves {
		if err := s.check(m.Message); err != nil {
			return err
		}
	}
	return s.Engine.Move(ctx, moves...)
}

// Regression (law W2): a dead letter that does not fit has its bytes and less of its
// history; if that does not fit either, it names the place where the message stays. The
// settlement was tried again for ever, with others in its batch.
func TestDeadLettersThatDoNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := small{memory.Open(), 2000}
		for _, m := range []struct {
			id   string
			size int
		}{{"fits", 10}, {"shortened", 1300}, {"stays", 1850}} {
			encoded, err := leases.Encode(codec.JSON[string](), strings.Repeat("x", m.size), message.Meta{ID: m.id})
			require.NoError(t, err)
			require.NoError(t, s.Put(t.Context(), "q", encoded))
		}
		source := leases.NewSource(s, "q", "dead", codec.JSON[string](), quiet)
		for range 3 {
			receive(t, source).Reject(fmt.Errorf("%w: %s", message.ErrRefused, strings.Repeat("e", 700)))
		}
		require.NoError(t, source.Close(t.Context()))
		letters := dead(t, s.Engine)
		require.Len(t, letters, 3)
		for i, want := range []struct{ payload, errorLike int }{{12, 700}, {1302, 200}, {0, 400}} {
			require.Len(t, letters[i].Payload, want.payload, letters[i].Meta.ID)
			require.InDelta(t, want.errorLike, len(letters[i].Meta.LastError), 200, letters[i].Meta.LastError)
			require.Equal(t, store.Refused, letters[i].Cause)
		}
		require.Contains(t, letters[2].Meta.LastError, `stays in queue "q", entry 3`)
		stays, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 10})
		require.NoError(t, err)
		require.Len(t, stays, 1)
		require.Len(t, stays[0].Payload, 1852)
		time.Sleep(365 * 24 * time.Hour)
		taken, err := s.Take(t.Context(), "q", 1, time.Second)
		require.NoError(t, err)
		require.Empty(t, taken)
	})
}

// busy is a store whose writes take a second. In each, the worker settles one more
// message.
type busy struct {
	*memory.Engine
	settle func()
}

func (b *busy) Done(ctx context.Context, leases ...store.Lease) error {
	time.Sleep(time.Second)
	b.settle()
	return b.Engine.Done(ctx, leases...)
}

func (b *busy) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	time.Sleep(time.Second)
	b.settle()
	return b.Engine.Release(ctx, delay, leases...)
}

// Regression (law D2): a worker that always has settlements to record keeps its leases.
// Leases were extended only after all settlements were written.
func TestLeasesAreExtendedUnderLoad(t *testing.T) {
	const others = 50
	ack := func(m message.Message[string], _ int) { m.Ack() }
	nack := func(m message.Message[string], i int) { m.Nack(time.Hour + time.Duration(i)) }
	for name, tc := range map[string]struct {
		settle func(m message.Message[string], i int)
		first  int // how many are settled before the first write
	}{
		"one after the other": {ack, 1},
		"with other delays":   {nack, 1},
		"many delays at once": {nack, others},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &busy{Engine: memory.Open()}
				put(t, b, "slow")
				for i := range others {
					put(t, b, fmt.Sprint(i))
				}
				s := leases.NewSource(b, "q", "dead", codec.JSON[string](), quiet)
				ms, err := s.Receive(t.Context(), 1+others)
				require.NoError(t, err)
				require.Len(t, ms, 1+others)
				var settled atomic.Int64 // by this goroutine, and by the goroutines that write
				b.settle = func() {
					if i := int(settled.Add(1)); i < len(ms) {
						tc.settle(ms[i], i)
					}
				}
				for range tc.first {
					b.settle()
				}
				time.Sleep(leases.DefaultLease + time.Second)
				taken, err := b.Take(t.Context(), "q", 1, time.Hour)
				require.NoError(t, err)
				assert.Empty(t, taken, "a lease has ended while its message was in flight")
				time.Sleep(time.Hour / 2)
				require.NoError(t, s.Close(t.Context()))
				require.Zero(t, s.LeasesLost())
			})
		})
	}
}

// full is a store whose dead letters are full.
type full struct{ *memory.Engine }

func (full) Move(context.Context, ...store.Move) error { return store.ErrFull }

// Law D3: a dead letter that cannot be stored does not delay nacks, neither while a
// worker runs nor when it ends.
func TestSource_DeadLetterThatCannotBeStored(t *testing.T) {
	for name, ends := range map[string]bool{"while it runs": false, "when it ends": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := full{memory.Open()}
				const others = 20
				put(t, f, "rejected")
				for i := range others {
					put(t, f, fmt.Sprint(i))
				}
				s := leases.NewSource(f, "q", "dead", codec.JSON[string](), quiet)
				ms, err := s.Receive(t.Context(), 1+others)
				require.NoError(t, err)
				require.Len(t, ms, 1+others)
				for i, m := range ms {
					if i == 0 {
						m.Reject(errors.New("poison"))
					} else {
						m.Nack(time.Duration(i) * time.Hour)
					}
				}
				if ends {
					require.ErrorIs(t, s.Close(t.Context()), store.ErrFull)
				} else {
					synctest.Wait()
				}
				entries, err := f.List(t.Context(), "q", store.Filter{}, store.Page{Max: 100})
				require.NoError(t, err)
				var waits []time.Duration
				for _, e := range entries {
					if e.LeasedUntil.IsZero() {
						waits = append(waits, time.Until(e.Meta.Due).Round(time.Hour))
					}
				}
				require.Len(t, waits, others)
				for i, wait := range waits {
					require.Equal(t, time.Duration(i+1)*time.Hour, wait, "the delay of another one")
				}
				if !ends {
					require.ErrorIs(t, s.Close(t.Context()), store.ErrFull)
				}
			})
		})
	}
}

// bounded is a store whose calls of Done take a second. most is the highest number of
// leases of a call.
type bounded struct {
	*memory.Engine
	most int
}

func (b *bounded) Done(ctx context.Context, leases ...store.Lease) error {
	b.most = max(b.most, len(leases))
	time.Sleep(time.Second)
	return b.Engine.Done(ctx, leases...)
}

// Settlements that come at once are all recorded, in calls of a bounded size.
func TestSource_ManySettlementsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bounded{Engine: memory.Open()}
		const n = 3500
		for i := range n {
			put(t, b, fmt.Sprint(i))
		}
		s := leases.NewSource(b, "q", "dead", codec.JSON[string](), quiet)
		var ms []message.Message[string]
		for len(ms) < n {
			more, err := s.Receive(t.Context(), 1000)
			require.NoError(t, err)
			ms = append(ms, more...)
		}
		for _, m := range ms {
			m.Ack()
		}
		time.Sleep(20 * time.Second)
		counts, err := b.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Zero(t, counts.Messages)
		require.LessOrEqual(t, b.most, 1000)
		require.NoError(t, s.Close(t.Context()))
	})
}

// refusing is a store that refuses some messages. The functions decide which; without a
// function all are accepted.
type refusing struct {
	*memory.Engine
	done, move func(entry string) bool

	mu      sync.Mutex
	release func(entry string) bool
	calls   map[string]int // calls of Done by entry
}

// doneCalls returns the number of calls of Done by entry.
func (r *refusing) doneCalls() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.calls)
}

// acceptReleases lets all later calls of Release pass.
func (r *refusing) acceptReleases() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release = nil
}

var errRefused = fmt.Errorf("a trigger: %w", message.ErrRefused)

func refuses(refuse func(entry string) bool, leases []store.Lease) error {
	if refuse != nil && slices.ContainsFunc(leases, func(l store.Lease) bool { return refuse(l.Entry) }) {
		return errRefused
	}
	return nil
}

func (r *refusing) Done(ctx context.Context, leases ...store.Lease) error {
	r.mu.Lock()
	for _, l := range leases {
		r.calls[l.Entry]++
	}
	r.mu.Unlock()
	err := refuses(r.done, leases)
	if err != nil {
		return err
	}
	return r.Engine.Done(ctx, leases...)
}

func (r *refusing) Release(ctx context.Context, delay time.Duration, leases ...store.Lease) error {
	r.mu.Lock()
	release := r.release
	r.mu.Unlock()
	err := refuses(release, leases)
	if err != nil {
		return err
	}
	return r.Engine.Release(ctx, delay, leases...)
}

func (r *refusing) Move(ctx context.Context, moves ...store.Move) error {
	for _, m := range moves {
		err := refuses(r.move, []store.Lease{m.Lease})
		if err != nil {
			return err
		}
	}
	return r.Engine.Move(ctx, moves...)
}

func (r *refusing) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if queue == "dead" && r.move != nil {
		return errRefused
	}
	return r.Engine.Put(ctx, queue, ms...)
}

func (r *refusing) HandOver(ctx context.Context, moves ...store.Move) error {
	if moves[0].Queue == "dead" && r.move != nil {
		return errRefused
	}
	return r.Engine.HandOver(ctx, moves...)
}

// Laws D4 and W2: a settlement that the store refuses delays no other settlement, never
// fails Receive, and its tries end.
func TestSource_RefusedSettlement(t *testing.T) {
	fifth := func(entry string) bool { return entry == "5" }
	for name, c := range map[string]struct {
		store  *refusing
		settle func(m message.Message[string])
		lease  bool // the message is delivered again when its lease ends
	}{
		"done":             {&refusing{done: fifth}, func(m message.Message[string]) { m.Ack() }, false},
		"dead letter":      {&refusing{move: fifth}, func(m message.Message[string]) { m.Reject(errDown) }, false},
		"done and release": {&refusing{done: fifth, release: fifth}, func(m message.Message[string]) { m.Ack() }, true},
		"release":          {&refusing{release: fifth}, func(m message.Message[string]) { m.Nack(time.Hour) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := c.store
				r.Engine, r.calls = memory.Open(), map[string]int{}
				for i := range 100 {
					put(t, r.Engine, strconv.Itoa(i))
				}
				var log strings.Builder
				s := leases.NewSource(r, "q", "dead", codec.JSON[string](), leases.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
				ms, err := s.Receive(t.Context(), 100)
				require.NoError(t, err)
				require.Len(t, ms, 100)
				for i, m := range ms {
					if i == 4 {
						c.settle(m)
					} else {
						m.Ack()
					}
				}
				time.Sleep(10 * time.Millisecond)
				synctest.Wait()
				left, err := r.List(t.Context(), "q", store.Filter{}, store.Page{Max: 100})
				require.NoError(t, err)
				require.Len(t, left, 1, "the others are done at once")
				for _, n := range r.doneCalls() {
					require.LessOrEqual(t, n, 9, "Done is called too often for a batch with a refused message")
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				require.Equal(t, 6, s.SettlementsRefused())
				left, err = r.List(t.Context(), "q", store.Filter{}, store.Page{Max: 100})
				require.NoError(t, err)
				require.Len(t, left, 1)
				require.Equal(t, c.lease, !left[0].LeasedUntil.IsZero())
				require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), log.String())
				require.Contains(t, log.String(), `entry=5`)
				r.acceptReleases()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				again, err := s.Receive(ctx, 100)
				if c.lease {
					require.NoError(t, err)
					require.Len(t, again, 1)
				} else {
					require.ErrorIs(t, err, context.DeadlineExceeded)
				}
				require.NoError(t, s.Close(t.Context()))
			})
		})
	}
}

// Close tries once more, and sets the message aside then: Close never fails because of
// it.
func TestSourceClose_RefusedSettlement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &refusing{Engine: memory.Open(), calls: map[string]int{}, done: func(string) bool { return true }}
		put(t, r.Engine, "a")
		s := leases.NewSource(r, "q", "dead", codec.JSON[string](), quiet)
		receive(t, s).Ack()
		synctest.Wait()
		require.NoError(t, s.Close(t.Context()))
		require.Equal(t, 2, r.doneCalls()["1"])
		left, err := r.List(t.Context(), "q", store.Filter{}, store.Page{Max: 100})
		require.NoError(t, err)
		require.Len(t, left, 1)
		require.True(t, left[0].Meta.Due.After(time.Now().AddDate(50, 0, 0)))
	})
}

// A message whose settlement the store refuses is purged meanwhile. The log does not say
// that it stays in its queue.
func TestSource_RefusedSettlementOfAMessageThatWasPurged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &refusing{Engine: memory.Open(), calls: map[string]int{}, done: func(string) bool { return true }}
		put(t, r.Engine, "a")
		var log strings.Builder
		s := leases.NewSource(r, "q", "dead", codec.JSON[string](), leases.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		receive(t, s).Ack()
		time.Sleep(time.Second)
		_, err := r.Purge(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.NotContains(t, log.String(), "stays in its queue")
		require.Contains(t, log.String(), "was purged")
		require.NoError(t, s.Close(t.Context()))
	})
}
