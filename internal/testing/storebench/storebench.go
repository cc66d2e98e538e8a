// Package storebench measures stores of delivery/store.
package storebench

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// Run puts and takes messages of 256 bytes on several goroutines, measures the lateness
// of messages, and compares a pipeline with the bare store.
func Run(b *testing.B, open func(b *testing.B) store.Store) {
	b.Helper()
	for _, workers := range []int{16, 256} {
		b.Run(fmt.Sprintf("op=put/workers=%d", workers), func(b *testing.B) {
			s := open(b)
			b.ResetTimer()
			put(b, s, workers, b.N, 0)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
	for _, batch := range []int{1, 100} {
		b.Run(fmt.Sprintf("op=take/batch=%d", batch), func(b *testing.B) {
			s := open(b)
			put(b, s, 256, b.N, 0)
			var taken atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range max(4, 256/batch) {
				wg.Go(func() {
					for taken.Load() < int64(b.N) {
						ms, err := s.Take(b.Context(), "q", batch, time.Minute)
						if err != nil {
							b.Error(err)
							return
						}
						if err := s.Done(b.Context(), leases(ms)...); err != nil {
							b.Error(err)
							return
						}
						taken.Add(int64(len(ms)))
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
	for _, limit := range []int{0, 5} {
		b.Run(fmt.Sprintf("op=take-by-key/limit=%d", limit), func(b *testing.B) { takeByKey(b, open(b), store.KeyRound{Each: 1, Limit: limit}) })
	}
	b.Run("op=delayed", func(b *testing.B) { delayed(b, open(b)) })
	b.Run("op=pipeline", func(b *testing.B) { pipeline(b, open(b)) })
}

// takeByKey takes messages of 300 keys, with or without a limit of leases for each.
func takeByKey(b *testing.B, s store.Store, round store.KeyRound) {
	b.Helper()
	byKey, ok := s.(store.ByKey)
	if !ok {
		b.Skip("the store does not take by key")
	}
	putKeyed(b, s, b.N)
	var taken atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range 4 {
		r := round
		wg.Go(func() {
			for taken.Load() < int64(b.N) {
				ms, next, err := byKey.TakeByKey(b.Context(), "q", r, 20, time.Minute)
				if err != nil {
					b.Error(err)
					return
				}
				r.After = next
				if err := s.Done(b.Context(), leases(ms)...); err != nil {
					b.Error(err)
					return
				}
				taken.Add(int64(len(ms)))
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
}

func putKeyed(b *testing.B, s store.Store, n int) {
	b.Helper()
	payload := make([]byte, 256)
	for i := 0; i < n; {
		var ms []store.Message
		for ; i < n && len(ms) < 1000; i++ {
			ms = append(ms, store.Message{Meta: message.Meta{ID: strconv.Itoa(i), Key: strconv.Itoa(i % 300)}, Payload: payload})
		}
		if err := s.Put(b.Context(), "q", ms...); err != nil {
			b.Fatal(err)
		}
	}
}

func put(b *testing.B, s store.Store, workers, n int, delay time.Duration) {
	b.Helper()
	payload := make([]byte, 256)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				at := message.Origin{Source: "orders", Partition: "0", Position: strconv.FormatInt(i, 10)}
				m := store.Message{Meta: message.Meta{ID: at.ID(), Origin: at, Visit: 1, Attempts: 3, LastError: "no answer", LastFailure: time.Unix(1_700_000_000, 0)}, Payload: payload, Delay: delay}
				if err := s.Put(b.Context(), "q", m); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
