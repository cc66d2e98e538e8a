package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// workerSink keeps its messages and calls full when it has enough.
type workerSink[T any] struct {
	enough int
	full   func()
	sticks bool // Put waits for its context and fails

	mu  sync.Mutex
	got []message.Message[T]
}

func (s *workerSink[T]) PutAll(ctx context.Context, ms []message.Message[T]) error {
	s.mu.Lock()
	s.got = append(s.got, ms...)
	if len(s.got) >= s.enough {
		s.full()
	}
	s.mu.Unlock()
	if s.sticks {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return nil
}

// work runs a worker until its sink has enough messages.
func (q *queue[T]) work(source delivery.Source[T], enough int, sticks bool) (*workerSink[T], delivery.Summary, error) {
	sink := &workerSink[T]{enough: enough, sticks: sticks}
	quiet := slog.New(slog.DiscardHandler)
	summary, err := within(q.patience, "delivery.Run", func(limit context.Context) (delivery.Summary, error) {
		ctx, stop := context.WithCancel(limit)
		defer stop()
		sink.full = stop
		opts := []delivery.RunOption{delivery.WithLogger(quiet)}
		if sticks {
			opts = append(opts, delivery.WithDrain(0))
		}
		op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, v T) (T, error) { return v, nil }), 0, 10,
			asyncop.WithDropOnFailure(), asyncop.WithLogger(quiet))
		return delivery.Run(ctx, source, op, sink, opts...)
	})
	return sink, summary, err
}

// worker checks a source under delivery.Run.
func (q *queue[T]) worker() error {
	const n = 50
	s, err := q.filled(n)
	if err != nil {
		return err
	}
	if q.Keeps {
		_, summary, err := q.work(s, 1, true)
		if err != nil {
			return fmt.Errorf("delivery.Run: %w", err)
		}
		if summary.Released != summary.Received || summary.Received == 0 {
			return fmt.Errorf("delivery.Run, whose sink is idle, did not release all: %v", summary)
		}
		s, err = q.source()
		if err != nil {
			return err
		}
	}
	sink, summary, err := q.work(s, n, false)
	if err != nil {
		return fmt.Errorf("delivery.Run: %w: %v", err, summary)
	}
	want := make([]int, n)
	for i := range want {
		want[i] = i
	}
	if err := q.have(sink.got, want...); err != nil {
		return err
	}
	if summary.Done != n {
		return fmt.Errorf("delivery.Run did not acknowledge %d messages: %v", n, summary)
	}
	if !q.Keeps {
		return nil
	}
	s, err = q.source()
	if err != nil {
		return err
	}
	return errors.Join(q.nothing(s), q.close(s))
}

// snoozed checks that a message is released for the delay its call asked for.
func (q *queue[T]) snoozed() error {
	const delay = time.Second // the minimum
	s, err := q.filled(1)
	if err != nil {
		return err
	}
	var calls []time.Time
	var visits []int
	summary, err := within(q.patience, "delivery.Run", func(limit context.Context) (delivery.Summary, error) {
		ctx, stop := context.WithCancel(limit)
		defer stop()
		op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, v T) (T, error) {
			calls = append(calls, time.Now())
			meta, _ := message.MetaFromContext(ctx)
			visits = append(visits, meta.Visit)
			if len(calls) == 1 {
				return v, predicates.WithSnooze(errors.New("later"), delay)
			}
			return v, nil
		}), 0, 10, asyncop.WithDropOnFailure(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
		return delivery.Run(ctx, s, op, &workerSink[T]{enough: 1, full: stop}, delivery.WithLogger(slog.New(slog.DiscardHandler)))
	})
	if err != nil {
		return fmt.Errorf("delivery.Run: %w: %v", err, summary)
	}
	if summary.Released != 1 || summary.Done != 1 || summary.Received != 2 {
		return fmt.Errorf("a message that was snoozed once and is then done: %v", summary)
	}
	if waited := calls[1].Sub(calls[0]); waited < delay {
		return fmt.Errorf("snoozed for %v, and called again after %v", delay, waited)
	}
	if visits[0] != visits[1] {
		return fmt.Errorf("snoozed in visit %d, and called again in visit %d", visits[0], visits[1])
	}
	return nil
}
