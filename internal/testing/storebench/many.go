package storebench

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// Many runs the operations of workers and commands on a store with many messages, with
// WEIR_LONG a million waiting and then a million due, and logs their times. It checks
// that memory use stays flat and that every message is kept.
func Many(t *testing.T, s store.Inspector) {
	t.Helper()
	n := 5000
	if suite.Long() {
		n = 1_000_000
	}
	const batch = 1000
	before := heap()
	put := func(queue, name string, n int, delay time.Duration) {
		t.Helper()
		for i := 0; i < n; i += batch {
			ms := make([]store.Message, min(batch, n-i))
			for j := range ms {
				ms[j] = store.Message{Meta: message.Meta{ID: name + strconv.Itoa(i+j), Reasons: []string{"timeout"}}, Payload: make([]byte, 256), Delay: delay}
			}
			require.NoError(t, s.Put(t.Context(), queue, ms...))
		}
	}
	take := func(queue string, want int) (took []time.Duration) {
		t.Helper()
		for left := want; left > 0; {
			start := time.Now()
			ms, err := s.Take(t.Context(), queue, batch, time.Hour)
			took = append(took, time.Since(start))
			require.NoError(t, err)
			require.NotEmpty(t, ms)
			require.NoError(t, s.Done(t.Context(), leases(ms)...))
			left -= len(ms)
		}
		return took
	}
	timed := func(what string, f func()) {
		start := time.Now()
		f()
		t.Logf("%-50s %v", what, time.Since(start).Round(time.Millisecond))
	}
	some := min(n, 20_000)
	for _, waiting := range []int{0, n} {
		timed(strconv.Itoa(waiting)+" messages are put that wait", func() { put("q", "waiting ", waiting, time.Hour) })
		timed(strconv.Itoa(some)+" others put beside them", func() { put("q", strconv.Itoa(waiting)+" ", some, 0) })
		timed("... taken and done, a thousand a call", func() { t.Logf("a Take took %v", middle(take("q", some))) })
	}
	timed("Count", func() {
		c, err := s.Count(t.Context(), "q", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, n, c.Messages)
	})
	timed("Count with a filter", func() {
		c, err := s.Count(t.Context(), "q", store.Filter{Error: "no such text"})
		require.NoError(t, err)
		require.Zero(t, c.Messages)
	})
	timed("List of a thousand in the middle", func() {
		first, err := s.List(t.Context(), "q", store.Filter{}, store.Page{Max: 1})
		require.NoError(t, err)
		list, err := s.List(t.Context(), "q", store.Filter{}, store.Page{After: first[0].Position + int64(n/2), Max: batch})
		require.NoError(t, err)
		require.Len(t, list, batch)
	})
	timed(strconv.Itoa(n)+" messages are put that are due", func() { put("due", "due ", n, 0) })
	timed("... taken and done, a thousand a call", func() {
		took := take("due", n)
		part := max(1, len(took)/10)
		t.Logf("a Take took %v in the first tenth, %v in the last", middle(took[:part]), middle(took[len(took)-part:]))
	})
	timed("Purge of all that wait", func() { purge(t, s, "q", n) })
	grown := heap() - before
	t.Logf("the heap has grown by %d kB", grown/1024)
	require.Less(t, grown, int64(16<<20), "messages that wait take memory")
}

// purge purges a queue while another goroutine puts messages, and logs how long those
// puts waited.
func purge(t *testing.T, s store.Inspector, queue string, want int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var puts, took []time.Duration
	begun := make(chan struct{}) // closed by the first Put
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			start := time.Now()
			assert.NoError(t, s.Put(t.Context(), "other", store.Message{Meta: message.Meta{ID: "other " + strconv.Itoa(i)}}))
			puts = append(puts, time.Since(start))
			if i == 0 {
				close(begun)
			}
		}
	})
	<-begun
	start := time.Now()
	n, err := s.Purge(t.Context(), queue, store.Filter{})
	took = append(took, time.Since(start))
	stop()
	wg.Wait()
	require.NoError(t, err)
	require.Equal(t, want, n)
	t.Logf("Purge took %v; %d calls of Put beside it, the longest %v", took[0].Round(time.Millisecond), len(puts), slices.Max(puts).Round(time.Millisecond))
}

func middle(took []time.Duration) time.Duration {
	took = slices.Sorted(slices.Values(took))
	return took[len(took)/2].Round(10 * time.Microsecond)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
