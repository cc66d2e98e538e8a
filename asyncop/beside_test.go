package asyncop_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/strategies"
)

// stubborn counts how many of it run at once, and ignores its context.
type stubborn struct {
	running, most atomic.Int32
	release       chan struct{}
}

func (s *stubborn) run() {
	defer s.running.Add(-1)
	if n := s.running.Add(1); n > s.most.Load() {
		s.most.Store(n)
	}
	<-s.release
}

// User code that ignores its context is bounded by the slots, though its elements do not wait for it. Those of others wait for
// their turn no longer than until their deadline, which comes in time.
func TestStubbornUserCodeIsBounded(t *testing.T) {
	const slots, rounds = 10, 30
	for name, limits := range map[string]func(*stubborn) (setup, time.Duration){
		"strategy": func(u *stubborn) (setup, time.Duration) {
			return setup{timeout: time.Second, strategy: because(safeReason, decides(
				func(context.Context, *view) (strategies.Action, error) { u.run(); return strategies.RetryAfter(0), nil }))}, time.Second
		},
		"before": func(u *stubborn) (setup, time.Duration) {
			return setup{timeout: time.Second, strategy: because(safeReason, always(true, strategies.RetryAfter(0).WithBefore(
				func(context.Context) error { u.run(); return nil })))}, time.Second
		},
		"before, attempt timeouts": func(u *stubborn) (setup, time.Duration) {
			return setup{
				timeout: time.Second, opts: options(asyncop.WithAttemptTimeout(time.Second / 10)),
				strategy: because(safeReason, always(true, strategies.RetryAfter(0).WithBefore(
					func(context.Context) error { u.run(); return nil }))),
			}, time.Second
		},
		"timeout handler": func(u *stubborn) (setup, time.Duration) {
			return setup{
				timeout: time.Second, opts: options(asyncop.WithHandlerLimit(time.Second)),
				wrap: withHandler(func(context.Context, string) ([]string, error) { u.run(); return nil, nil }),
			}, 2 * time.Second
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEachMode(t, func(t *testing.T, m mode) {
				u := &stubborn{release: make(chan struct{})}
				side := newSideSink(false)
				s, every := limits(u)
				s.opts = append(s.opts, asyncop.WithFailureSink(side.take))
				r := newRig(t, m, s)
				if name != "timeout handler" {
					r.answer = fails
				}
				for round := range rounds {
					for i := range slots {
						r.op.In() <- fmt.Sprint(i)
					}
					r.advance(every - 1)
					require.Len(t, side.got(), round*slots)
					r.advance(1)
					require.Len(t, side.got(), (round+1)*slots)
				}
				require.EqualValues(t, slots, u.most.Load())
				require.LessOrEqual(t, asyncop.WaitingBeside(r.op), 2*slots, "what is over is let go of")
				for _, f := range side.got() {
					require.Equal(t, every, f.Elapsed)
				}

				// When they return, others have their turn, oldest first, and what is over has none.
				r.answer = func(c *call) error {
					if c.attempt == 1 && name != "timeout handler" {
						return errBroken
					}
					return nil
				}
				r.sendEach("xyz")
				if name == "timeout handler" {
					r.advance(time.Second)
				}
				require.EqualValues(t, slots, u.running.Load())
				close(u.release)
				r.advance(0)
				require.Zero(t, u.running.Load())
				if name != "timeout handler" {
					for _, e := range []string{"x#2", "y#2", "z#2"} {
						r.complete(e, e)
					}
					require.Equal(t, "x#2 y#2 z#2", r.outputs())
				}
				require.NoError(t, r.end())
				require.Len(t, side.got(), rounds*slots)
				checkBalance(t, r.stats())
			}, slots)
		})
	}
}
