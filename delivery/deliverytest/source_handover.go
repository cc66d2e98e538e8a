package deliverytest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/message"
)

// given opens the next source and checks which messages come.
func (q *queue[T]) given(want ...int) (delivery.Source[T], error) {
	s, err := q.source()
	if err != nil {
		return nil, err
	}
	ms, err := q.all(s, len(want))
	if err == nil {
		err = q.have(ms, want...)
	}
	if err != nil {
		return nil, fmt.Errorf("from the next source: %w", err)
	}
	ackAll(ms)
	return s, nil
}

func (q *queue[T]) byValue(ms []message.Message[T]) []message.Message[T] {
	sorted := make([]message.Message[T], len(ms))
	for i := range ms {
		for _, m := range ms {
			if q.Equal(m.Value, q.value(i)) {
				sorted[i] = m
			}
		}
	}
	return sorted
}

func (q *queue[T]) releases() error {
	got, err := q.delivered(6)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
	if err := q.have(ms, indices(6)...); err != nil {
		return err
	}
	ms = q.byValue(ms)
	ms[0].Ack()
	ms[1].Reject(errors.New("rejected by the suite"))
	ms[2].Nack(0)
	id := ms[3].Meta().ID
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	next, err := q.source()
	if err != nil {
		return err
	}
	again, err := q.all(next, 4)
	if err != nil {
		return fmt.Errorf("from the next source: %w", err)
	}
	if err := q.have(again, 2, 3, 4, 5); err != nil {
		return fmt.Errorf("from the next source: %w", err)
	}
	for _, m := range again {
		if q.Equal(m.Value, q.value(3)) && m.Meta().ID != id {
			return fmt.Errorf("%+v came with the id %q, before %q", m.Value, m.Meta().ID, id)
		}
	}
	ackAll(again)
	return q.nothingLeft(next)
}

func (q *queue[T]) settledAfterClose() error {
	got, err := q.delivered(3)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	ms[0].Ack()
	ms[1].Nack(time.Hour)
	ms[2].Reject(errors.New("rejected by the suite"))
	next, err := q.given(indices(3)...)
	if err != nil {
		return err
	}
	return q.nothingLeft(next)
}

func (q *queue[T]) delayOverClose() error {
	got, err := q.delivered(1)
	if err != nil {
		return err
	}
	s, ms := got.source, got.messages
	start := time.Now()
	ms[0].Nack(2 * q.Delay)
	if err := q.close(s); err != nil {
		return fmt.Errorf("Close: %w", err)
	}
	next, err := q.given(0)
	if err != nil {
		return err
	}
	if waited := time.Since(start); waited < 2*q.Delay {
		return fmt.Errorf("nacked for %v, and back after %v", 2*q.Delay, waited)
	}
	return q.nothingLeft(next)
}

func (q *queue[T]) two(n int) ([2]delivery.Source[T], error) {
	a, err := q.filled(n)
	if err != nil {
		return [2]delivery.Source[T]{}, err
	}
	b, err := q.source()
	return [2]delivery.Source[T]{a, b}, err
}

func (q *queue[T]) shared() error {
	const many = 20
	both, err := q.two(many)
	if err != nil {
		return err
	}
	a, b := both[0], both[1]
	var all []message.Message[T]
	for i, s := range []delivery.Source[T]{a, b} {
		ms, err := q.receive(s, 1+i)
		if err != nil {
			return err
		}
		all = append(all, ms...)
	}
	got := make(chan []message.Message[T])
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), q.patience)
		defer cancel()
		for {
			ms, err := b.Receive(ctx, 2)
			if err != nil {
				close(got)
				return
			}
			got <- ms
		}
	}()
	defer func() {
		for range got {
		}
	}()
	defer func() { _ = q.close(b) }()
	for len(all) < many {
		select {
		case ms, ok := <-got:
			if !ok {
				return fmt.Errorf("the second source has failed, after %d of %d messages", len(all), many)
			}
			all = append(all, ms...)
		default:
			ctx, cancel := context.WithTimeout(context.Background(), q.Delay)
			ms, err := a.Receive(ctx, 2)
			cancel()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("Receive: %w", err)
			}
			all = append(all, ms...)
		}
	}
	ackAll(all)
	if err := q.have(all, indices(many)...); err != nil {
		return err
	}
	return q.nothing(a)
}

func (q *queue[T]) nackedToOther() error {
	both, err := q.two(1)
	if err != nil {
		return err
	}
	a, b := both[0], both[1]
	ms, err := q.all(a, 1)
	if err != nil {
		return err
	}
	if err := q.nothing(b); err != nil {
		return err
	}
	ms[0].Nack(0)
	again, err := q.all(b, 1)
	if err != nil {
		return err
	}
	ackAll(again)
	if err := q.nothing(a); err != nil {
		return err
	}
	return q.nothing(b)
}

func (q *queue[T]) leaseExtended() error {
	both, err := q.two(1)
	if err != nil {
		return err
	}
	a, b := both[0], both[1]
	ms, err := q.all(a, 1)
	if err != nil {
		return err
	}
	for start := time.Now(); time.Since(start) < 3*q.Lease; {
		if err := q.nothing(b); err != nil {
			return fmt.Errorf("%v after it was received: %w", time.Since(start), err)
		}
	}
	ackAll(ms)
	return q.nothing(b)
}

func (q *queue[T]) killed() error {
	both, err := q.two(few)
	if err != nil {
		return err
	}
	a, b := both[0], both[1]
	ms, err := q.all(a, few)
	if err != nil {
		return err
	}
	q.Kill(a)
	again, err := q.all(b, few)
	if err != nil {
		return fmt.Errorf("after a source was killed: %w", err)
	}
	if err := q.have(again, indices(few)...); err != nil {
		return fmt.Errorf("after a source was killed: %w", err)
	}
	for _, m := range ms { // of the dead source; another has their leases
		m.Nack(0)
	}
	if err := q.nothing(b); err != nil {
		return fmt.Errorf("after a settlement of a source that had lost its lease: %w", err)
	}
	ackAll(again)
	return q.nothing(b)
}
