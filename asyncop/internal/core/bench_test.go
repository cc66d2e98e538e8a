package core

import (
	"context"
	"testing"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/timers"
)

// BenchmarkAtOnce measures the cost of an element whose call completes immediately,
// without a driver, with a step every 128 elements.
//
//	go test ./asyncop/internal/core -run '^$' -bench AtOnce
func BenchmarkAtOnce(b *testing.B) {
	for name, armed := range map[string]bool{"armed": true, "bare": false} {
		b.Run(name, func(b *testing.B) {
			var strategy strategies.Retry[string]
			if armed {
				strategy = retries(3, time.Second)
			}
			r := newRig(b, strategy, func(c *setup) {
				c.Queue = queue.NewOrdered[*Slot[string, string]](1000)
				c.Timers = timers.NewService[*Slot[string, string]](clock.New(), func() {})
				if !armed {
					c.Timeout = 0
				}
				c.Invoke = func(_ context.Context, in string, a *call.Attempt[string]) error {
					a.Complete(in)
					return nil
				}
				c.IsControl = nil
			})
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				if n%128 == 0 {
					r.Step()
				}
				r.Accept("x", call.Message{})
				for results, _ := r.Head(); len(results) > 0; results, _ = r.Head() {
					r.PopHead(observe.Emitted)
				}
			}
		})
	}
}
