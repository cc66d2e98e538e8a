package weirprom_test

import (
	"context"
	"testing"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/prometheus/weirprom"
)

// BenchmarkResults is what an element costs, beside an observer that does nothing and beside none.
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

// idle is an observer that does nothing.
type idle struct{}

func (idle) Accepted(context.Context, any, bool) context.Context { return nil }
func (idle) AttemptStarted(context.Context, int) context.Context { return nil }
func (idle) AttemptEnded(context.Context, asyncop.Outcome)       {}
func (idle) Ended(context.Context, asyncop.Ending)               {}

// BenchmarkElement is what the observer itself costs for an element of one attempt.
func BenchmarkElement(b *testing.B) {
	m := weirprom.New("rows")
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		m.Accepted(ctx, nil, false)
		m.AttemptStarted(ctx, 1)
		m.AttemptEnded(ctx, asyncop.Outcome{Attempt: 1, Results: 1, Duration: 3 * time.Millisecond})
		m.Ended(ctx, asyncop.Ending{Results: 1, Attempts: 1, Queued: 40 * time.Microsecond, Total: 3 * time.Millisecond})
	}
}
