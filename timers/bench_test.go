package timers

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// Start and stop one timer while many others are pending, in a heap and with
// time.AfterFunc.
//
//	go test ./timers -run '^$' -bench StartStop -count 10 | benchstat -col /impl -
func BenchmarkStartStop(b *testing.B) {
	forEachPending(b, func(b *testing.B, pending int) {
		delays := randomDelays()
		b.Run("impl=heap", func(b *testing.B) {
			h, _ := heapOf(pending)
			var timer Timer[int]
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				h.Arm(&timer, delays[i%len(delays)])
				h.Cancel(&timer)
				i++
			}
		})
		b.Run("impl=AfterFunc", func(b *testing.B) {
			defer stopAll(afterFuncs(pending))
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				time.AfterFunc(delays[i%len(delays)], func() {}).Stop()
				i++
			}
		})
	})
}

// Stop any of the pending timers and start it again, as a retry does.
func BenchmarkRestart(b *testing.B) {
	forEachPending(b, func(b *testing.B, pending int) {
		delays := randomDelays()
		b.Run("impl=heap", func(b *testing.B) {
			h, timers := heapOf(pending)
			r := rand.New(rand.NewPCG(1, 1))
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				timer := &timers[r.IntN(pending)]
				h.Cancel(timer)
				h.Arm(timer, delays[i%len(delays)])
				i++
			}
		})
		b.Run("impl=AfterFunc", func(b *testing.B) {
			timers := afterFuncs(pending)
			defer stopAll(timers)
			r := rand.New(rand.NewPCG(1, 1))
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				timer := timers[r.IntN(pending)]
				timer.Stop()
				timer.Reset(delays[i%len(delays)])
				i++
			}
		})
	})
}

// Pop the first timer and arm it again after the others.
func BenchmarkPop(b *testing.B) {
	forEachPending(b, func(b *testing.B, pending int) {
		b.Run("impl=heap", func(b *testing.B) {
			h, _ := heapOf(pending)
			b.ReportAllocs()
			for b.Loop() {
				due, _ := h.Next()
				h.Arm(h.Pop(), due+time.Hour)
			}
		})
	})
}

func forEachPending(b *testing.B, bench func(b *testing.B, pending int)) {
	b.Helper()
	for _, pending := range []int{1000, 1_000_000} {
		b.Run(fmt.Sprintf("pending=%d", pending), func(b *testing.B) {
			if testing.Short() && pending > 1000 {
				b.Skip("short")
			}
			bench(b, pending)
		})
	}
}

// randomDelays returns delays of 1 to 2 hours, so that timers do not fire during the
// test.
func randomDelays() []time.Duration {
	r := rand.New(rand.NewPCG(1, 2))
	delays := make([]time.Duration, 8192)
	for i := range delays {
		delays[i] = time.Hour + time.Duration(r.Int64N(int64(time.Hour)))
	}
	return delays
}

func heapOf(n int) (*Heap[int], []Timer[int]) {
	h := new(Heap[int])
	timers := make([]Timer[int], n)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range timers {
		h.Arm(&timers[i], time.Hour+time.Duration(r.Int64N(int64(time.Hour))))
	}
	return h, timers
}

func afterFuncs(n int) []*time.Timer {
	timers := make([]*time.Timer, n)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range timers {
		timers[i] = time.AfterFunc(time.Hour+time.Duration(r.Int64N(int64(time.Hour))), func() {})
	}
	return timers
}

func stopAll(timers []*time.Timer) {
	for _, timer := range timers {
		timer.Stop()
	}
}
