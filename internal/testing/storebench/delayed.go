package storebench

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// delayed puts 8,000 messages per second, half of them due after a second, and measures
// how late those are taken.
func delayed(b *testing.B, s store.Store) {
	b.Helper()
	const (
		tick    = 10 * time.Millisecond
		perTick = 80
		delay   = time.Second
	)
	lasts := 10 * time.Second
	if testing.Short() {
		lasts = 200 * time.Millisecond
	}
	ticks := int(lasts / tick)
	ctx, cancel := context.WithTimeout(b.Context(), lasts+time.Minute)
	defer cancel()
	start := time.Now()
	var put time.Duration
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range ticks {
			time.Sleep(time.Until(start.Add(time.Duration(i) * tick)))
			ms := make([]store.Message, perTick)
			for j := range ms {
				ms[j] = store.Message{Meta: message.Meta{ID: strconv.Itoa(i*perTick + j)}, Payload: make([]byte, 256), Delay: delay}
				if j%2 == 1 {
					ms[j].Delay = time.Hour
				}
			}
			if !assert.NoError(b, s.Put(ctx, "q", ms...)) {
				return
			}
		}
		put = time.Since(start)
	})
	var late []time.Duration
	for len(late) < ticks*perTick/2 {
		ms, err := s.Take(ctx, "q", 500, time.Minute)
		now := time.Now()
		require.NoError(b, err)
		if len(ms) == 0 {
			time.Sleep(5 * time.Millisecond)
			continue
		}
		for i := range ms {
			late = append(late, now.Sub(ms[i].Meta.Due))
		}
		wg.Go(func() { assert.NoError(b, s.Done(ctx, leases(ms)...)) })
	}
	taken := time.Since(start) - delay
	wg.Wait()
	slices.Sort(late)
	require.GreaterOrEqual(b, late[0], time.Duration(0), "law D3: a message came early")
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(ticks*perTick)/put.Seconds(), "in/s")
	b.ReportMetric(float64(len(late))/taken.Seconds(), "due/s")
	b.ReportMetric(float64(late[len(late)/2].Milliseconds()), "ms-late-p50")
	b.ReportMetric(float64(late[len(late)*99/100].Milliseconds()), "ms-late-p99")
}
