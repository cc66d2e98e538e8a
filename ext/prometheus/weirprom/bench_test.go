package weirprom_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
	"github.com/weirflow/weir/internal/counting"
)

// BenchmarkResults measures an element with metrics, with an idle observer, and without
// an observer.
//
//	go test -run - -bench Results -benchtime 2000000x -count 5 ./weirprom
func BenchmarkResults(b *testing.B) {
	for _, bc := range []struct {
		name string
		opts []asyncop.Option
	}{
		{"observer=none", nil},
		{"observer=idle", []asyncop.Option{asyncop.WithObserver(idle{})}},
		{"observer=prometheus", []asyncop.Option{asyncop.WithObserver(weirprom.New("rows"))}},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			op := asyncop.OrderedWait(asyncop.Func(double), 0, 1024, bc.opts...)
			for _, err := range op.Results(func(yield func(int) bool) {
				for i := range b.N {
					if !yield(i) {
						return
					}
				}
			}) {
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

type idle struct{}

func (idle) Accepted(context.Context, any, bool) context.Context { return nil }
func (idle) AttemptStarted(context.Context, int) context.Context { return nil }
func (idle) AttemptEnded(context.Context, observe.Outcome)       {}
func (idle) Ended(context.Context, observe.Ending)               {}

// BenchmarkCount measures the metrics themselves, for an element of one attempt, in a
// step of 100 elements.
func BenchmarkCount(b *testing.B) {
	m := weirprom.New("rows")
	c := counting.Of(m)
	attempts, elements := make([]counting.AttemptEnd, 100), make([]counting.Element, 100)
	for i := range attempts {
		attempts[i] = counting.AttemptEnd{Duration: 3 * time.Millisecond}
		elements[i] = counting.Element{Accepted: true, Queued: 40 * time.Microsecond, Total: 3 * time.Millisecond}
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if n%len(attempts) == 0 {
			c.Count(attempts, elements)
		}
	}
}
