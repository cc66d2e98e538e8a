package deadletters_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deadletters"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var toOrders = deadletters.Config{From: "dead", To: "orders"}

// dead puts n dead letters, of alternating providers.
func dead(t *testing.T, s store.Store, n int) {
	t.Helper()
	for i := range n {
		m := store.Message{
			Meta: delivery.Meta{
				ID: strconv.Itoa(i), Visit: 4, Attempts: 9, LastError: "no answer", Provider: "bank" + strconv.Itoa(i%2),
				FirstFailure: time.Unix(1000, 0).UTC(), Reasons: []string{"TIMED_OUT"}, Headers: map[string]string{"a": "b"},
			},
			Payload: []byte(strconv.Itoa(i)), Cause: store.Exhausted,
		}
		require.NoError(t, s.Put(t.Context(), "dead", m))
	}
}

func newMemory() (*memory.Engine, *clock.Mock) {
	mock := clock.NewMock()
	return memory.Open(memory.WithClock(mock)), mock
}

func count(t *testing.T, s store.Inspector, queue string) int {
	t.Helper()
	c, err := s.Count(t.Context(), queue, store.Filter{})
	require.NoError(t, err)
	return c.Messages
}

func TestMergeByFilter(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 250)
	c := toOrders
	c.Filter = store.Filter{Provider: "bank1"}
	var progress []int
	c.Progress = func(m deadletters.Merged) { progress = append(progress, m.Merged) }
	merged, err := deadletters.Merge(t.Context(), s, c)
	require.NoError(t, err)
	require.Equal(t, deadletters.Merged{Merged: 125}, merged)
	require.Equal(t, []int{100, 125}, progress)
	require.Equal(t, 125, count(t, s, "dead"))

	taken, err := s.Take(t.Context(), "orders", 1000, time.Minute)
	require.NoError(t, err)
	require.Len(t, taken, 125)
	m := taken[0].Message
	m.Meta.Due = time.Time{}
	require.Equal(t, store.Message{
		Meta: delivery.Meta{
			ID: "1", Merges: 1, LastError: "no answer", Provider: "bank1",
			FirstFailure: time.Unix(1000, 0).UTC(), Reasons: []string{"TIMED_OUT"}, Headers: map[string]string{"a": "b"},
		},
		Payload: []byte("1"),
	}, m, "attempts are reset, the history is kept, merges are counted")
}

func TestMergeAtMost(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 250)
	c := toOrders
	c.Max = 120
	merged, err := deadletters.Merge(t.Context(), s, c)
	require.NoError(t, err)
	require.Equal(t, deadletters.Merged{Merged: 120}, merged)
	require.Equal(t, 130, count(t, s, "dead"))
}

func TestMergeRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		dead(t, s, 25)
		c := toOrders
		c.Rate = 10
		begun := time.Now()
		var at []time.Duration
		c.Progress = func(deadletters.Merged) { at = append(at, time.Since(begun)) }
		_, err := deadletters.Merge(t.Context(), s, c)
		require.NoError(t, err)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second}, at)

		dead(t, s, 25)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("enough")
		time.AfterFunc(1500*time.Millisecond, func() { cancel(cause) })
		merged, err := deadletters.Merge(ctx, s, c)
		require.ErrorIs(t, err, cause)
		require.Equal(t, 20, merged.Merged)
	})
}

func TestMergeEndsLoops(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 2)
	c := toOrders
	c.MaxMerges = 2
	for round := 1; round <= 3; round++ {
		merged, err := deadletters.Merge(t.Context(), s, c)
		require.NoError(t, err)
		if round == 3 {
			require.Equal(t, deadletters.Merged{Looping: 2}, merged)
			require.Equal(t, 2, count(t, s, "dead"))
			return
		}
		require.Equal(t, deadletters.Merged{Merged: 2}, merged)
		taken, err := s.Take(t.Context(), "orders", 10, time.Minute)
		require.NoError(t, err)
		for _, l := range taken { // it fails again
			l.Cause, l.Meta.Visit = store.Permanent, 1
			require.Equal(t, round, l.Meta.Merges)
			require.NoError(t, s.Move(t.Context(), store.Move{Lease: l.Lease, Queue: "dead", Message: l.Message}))
		}
	}
}

// What comes back while a merge runs is not merged again by it.
func TestMergeReturnsWhatWasThere(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 150)
	calls := 0
	merged, err := deadletters.Merge(t.Context(), s, deadletters.Config{From: "dead", Publish: func(ctx context.Context, ms []store.Message) error {
		calls++
		for i := range ms {
			ms[i].Cause = store.Permanent
		}
		return s.Put(ctx, "dead", ms...) // they fail at once
	}})
	require.NoError(t, err)
	require.Equal(t, 150, merged.Merged)
	require.Equal(t, 2, calls)
	require.Equal(t, 150, count(t, s, "dead"), "an entry that failed again before it had left is a new entry")
}

func TestMergeLeavesUnknownOutcomes(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 3)
	m := store.Message{Meta: delivery.Meta{ID: "unknown", OutcomeUnknown: true}, Cause: store.OutcomeUnknown}
	require.NoError(t, s.Put(t.Context(), "dead", m))
	merged, err := deadletters.Merge(t.Context(), s, toOrders)
	require.NoError(t, err)
	require.Equal(t, deadletters.Merged{Merged: 3, OutcomeUnknown: 1}, merged)
	c := toOrders
	c.OutcomeUnknown = true
	merged, err = deadletters.Merge(t.Context(), s, c)
	require.NoError(t, err)
	require.Equal(t, deadletters.Merged{Merged: 1}, merged)
	require.Equal(t, 0, count(t, s, "dead"))
}

func TestTwoMergesAtOnce(t *testing.T) {
	s := memory.Open()
	dead(t, s, 1000)
	var mu sync.Mutex
	published := map[string]int{}
	publish := func(_ context.Context, ms []store.Message) error {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range ms {
			published[m.Meta.ID]++
		}
		return nil
	}
	results := make([]deadletters.Merged, 4)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			c := deadletters.Config{From: "dead", Publish: publish}
			if i%2 == 0 {
				c = toOrders
			}
			var err error
			results[i], err = deadletters.Merge(t.Context(), s, c)
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	sum := 0
	for _, r := range results {
		sum += r.Merged
	}
	require.Equal(t, 1000, sum)
	require.Equal(t, 1000, len(published)+count(t, s, "orders"))
	for id, n := range published {
		require.Equal(t, 1, n, "%s was published %d times", id, n)
	}
	require.Equal(t, 0, count(t, s, "dead"))
}

var errKilled = errors.New("killed")

// mortal is a store whose client dies at a call: before it has taken effect, or after.
type mortal struct {
	store.Inspector
	calls *int // until then
	after bool
}

func (m mortal) step(f func() error) error {
	if *m.calls--; *m.calls > 0 {
		return f()
	}
	if m.after && *m.calls == 0 {
		if err := f(); err != nil {
			return err
		}
	}
	return errKilled
}

func (m mortal) Claim(ctx context.Context, queue string, f store.Filter, p store.Page, d time.Duration) (ls []store.Leased, err error) {
	return ls, m.step(func() error { ls, err = m.Inspector.Claim(ctx, queue, f, p, d); return err })
}

func (m mortal) Move(ctx context.Context, moves ...store.Move) error {
	return m.step(func() error { return m.Inspector.Move(ctx, moves...) })
}

func (m mortal) Done(ctx context.Context, ls ...store.Lease) error {
	return m.step(func() error { return m.Inspector.Done(ctx, ls...) })
}

func (m mortal) Release(ctx context.Context, d time.Duration, ls ...store.Lease) error {
	if len(ls) == 0 {
		return nil
	}
	return m.step(func() error { return m.Inspector.Release(ctx, d, ls...) })
}

// Laws D1, D5.
func TestMergeThatWasKilledGoesOn(t *testing.T) {
	for _, publishing := range []bool{false, true} {
		for step := 2; step <= 20; step++ {
			killed, after := step/2, step%2 == 1
			t.Run(fmt.Sprintf("publishing=%v/call=%d/after=%v", publishing, killed, after), func(t *testing.T) {
				s, mock := newMemory()
				dead(t, s, 250)
				c := toOrders
				if publishing {
					c.To, c.Publish = "", func(ctx context.Context, ms []store.Message) error { return s.Put(ctx, "orders", ms...) }
				}
				calls := killed
				first, err := deadletters.Merge(t.Context(), mortal{s, &calls, after}, c)
				if err != nil {
					require.ErrorIs(t, err, errKilled)
				}
				require.Equal(t, 250, distinct(t, s), "an entry is lost")
				second, err := deadletters.Merge(t.Context(), s, c)
				require.NoError(t, err)
				require.Equal(t, count(t, s, "dead"), second.Busy, "what is not merged is leased by the one that was killed")
				mock.Add(30 * time.Second)
				_, err = deadletters.Merge(t.Context(), s, c)
				require.NoError(t, err)
				require.Equal(t, 0, count(t, s, "dead"))
				require.Equal(t, 250, count(t, s, "orders"), "after %d and %d", first.Merged, second.Merged)
			})
		}
	}
}

// What stays is given back, before anything leaves: the next merge does not take it for another one's.
func TestMergeGivesBackWhatStays(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 1)
	for _, m := range []delivery.Meta{{ID: "unknown", OutcomeUnknown: true}, {ID: "loops", Merges: 2}} {
		require.NoError(t, s.Put(t.Context(), "dead", store.Message{Meta: m, Cause: store.Exhausted}))
	}
	c := toOrders
	c.MaxMerges = 2
	broken := errors.New("the store is broken")
	merged, err := deadletters.Merge(t.Context(), releases{s, broken}, c)
	require.ErrorIs(t, err, broken)
	require.Zero(t, merged.Merged)
	require.Zero(t, count(t, s, "orders"))

	s, _ = newMemory()
	dead(t, s, 1)
	for _, m := range []delivery.Meta{{ID: "unknown", OutcomeUnknown: true}, {ID: "loops", Merges: 2}} {
		require.NoError(t, s.Put(t.Context(), "dead", store.Message{Meta: m, Cause: store.Exhausted}))
	}
	merged, err = deadletters.Merge(t.Context(), s, c)
	require.NoError(t, err)
	require.Equal(t, deadletters.Merged{Merged: 1, Looping: 1, OutcomeUnknown: 1}, merged)
	entries, err := s.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	for _, e := range entries {
		require.Zero(t, e.LeasedUntil, e.Meta.ID)
	}
	merged, err = deadletters.Merge(t.Context(), releases{s, store.ErrLeaseLost}, c) // purged meanwhile
	require.NoError(t, err)
	require.Equal(t, deadletters.Merged{Looping: 1, OutcomeUnknown: 1}, merged)
}

// releases is a store whose Release fails.
type releases struct {
	store.Inspector
	err error
}

func (r releases) Release(_ context.Context, _ time.Duration, ls ...store.Lease) error {
	if len(ls) == 0 {
		return nil
	}
	return r.err
}

// distinct returns how many ids there are.
func distinct(t *testing.T, s store.Inspector) int {
	t.Helper()
	ids := map[string]bool{}
	for _, q := range []string{"dead", "orders"} {
		entries, err := s.List(t.Context(), q, store.Filter{}, store.Page{Max: 10_000})
		require.NoError(t, err)
		for _, e := range entries {
			ids[e.Meta.ID] = true
		}
	}
	return len(ids)
}

func TestMergeRefusesAWrongConfig(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 1)
	publish := func(context.Context, []store.Message) error { return nil }
	for _, c := range []deadletters.Config{
		{},
		{From: "dead"},
		{To: "orders"},
		{From: "dead", To: "dead"},
		{From: "dead", To: "orders", Publish: publish},
		{From: "dead", To: "orders", Max: -1},
		{From: "dead", To: "orders", Rate: -1},
		{From: "dead", To: "orders", MaxMerges: -1},
	} {
		_, err := deadletters.Merge(t.Context(), s, c)
		require.Error(t, err, "%+v", c)
	}
	require.Equal(t, 1, count(t, s, "dead"))
}

// hangs is a store whose Release waits for the end of its context.
type hangs struct{ store.Inspector }

func (hangs) Release(ctx context.Context, _ time.Duration, ls ...store.Lease) error {
	if len(ls) == 0 {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

// A store that hangs does not hold up a merge that is broken off.
func TestPublishThatFailsAtAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.Open()
		dead(t, s, 3)
		broken := errors.New("broken")
		_, err := deadletters.Merge(t.Context(), hangs{s}, deadletters.Config{From: "dead", Publish: func(context.Context, []store.Message) error { return broken }})
		require.ErrorIs(t, err, broken)
	})
}

func TestPublishThatFailsLeavesEntries(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 3)
	broken := errors.New("broken")
	_, err := deadletters.Merge(t.Context(), s, deadletters.Config{From: "dead", Publish: func(context.Context, []store.Message) error { return broken }})
	require.ErrorIs(t, err, broken)
	merged, err := deadletters.Merge(t.Context(), s, toOrders)
	require.NoError(t, err)
	require.Equal(t, deadletters.Merged{Merged: 3}, merged, "what was not published is free at once")
}

func TestExportAndImport(t *testing.T) {
	s, _ := newMemory()
	dead(t, s, 250)
	var file bytes.Buffer
	n, err := deadletters.Export(t.Context(), s, "dead", store.Filter{Provider: "bank0"}, &file)
	require.NoError(t, err)
	require.Equal(t, 125, n)
	require.Equal(t, 125, strings.Count(file.String(), "\n"))
	require.Equal(t, 250, count(t, s, "dead"))

	for range 2 { // again changes nothing
		n, err = deadletters.Import(t.Context(), s, "copy", bytes.NewReader(file.Bytes()))
		require.NoError(t, err)
		require.Equal(t, 125, n)
	}
	want, err := s.List(t.Context(), "dead", store.Filter{Provider: "bank0"}, store.Page{Max: 1000})
	require.NoError(t, err)
	got, err := s.List(t.Context(), "copy", store.Filter{}, store.Page{Max: 1000})
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].Message, got[i].Message)
	}

	lines := strings.SplitAfter(file.String(), "\n")
	n, err = deadletters.Import(t.Context(), s, "broken", strings.NewReader(lines[0]+"\n"+lines[1]+`{"meta":`+"\n"+lines[2]))
	require.ErrorContains(t, err, "line 4")
	require.Equal(t, 2, n)
	require.Equal(t, 2, count(t, s, "broken"))
}
