package ladder

import (
	"context"
	"log/slog"
	"sync"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// consumed is the source of a queue and its layers on a [store.Consumer]. It opens with the first Receive, so that engines that are away are
// asked again.
type consumed[T any] struct {
	engine  store.Consumer
	what    store.Consumption
	codec   codec.Codec[T]
	decoder *decoder.Decoder[T]

	mu     sync.Mutex // guards what follows
	open   store.Receiver
	closed bool
}

func newConsumed[T any](c Config[T]) *consumed[T] {
	s := &consumed[T]{
		engine: c.Store.(store.Consumer), codec: c.Codec, decoder: decoder.New("ladder", c.Codec), // New has looked
		what: store.Consumption{Queue: c.Main, IsLayer: c.IsLayer, Dead: c.DeadLetters, Clock: c.Clock, Logger: c.Logger},
	}
	for _, l := range c.Layers {
		s.what.Layers = append(s.what.Layers, l.Queue)
	}
	return s
}

// receiver returns what is open; nil: nothing is yet.
func (s *consumed[T]) receiver() (r store.Receiver, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open, s.closed
}

// begin opens. It is called by one goroutine at a time.
func (s *consumed[T]) begin(ctx context.Context) (store.Receiver, error) {
	r, closed := s.receiver()
	if closed {
		return nil, errClosed
	}
	if r != nil {
		return r, nil
	}
	r, err := s.engine.Consume(ctx, s.what)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.open, closed = r, s.closed
	s.mu.Unlock()
	if closed { // meanwhile: nothing was received
		_ = r.Close(ctx)
		return nil, errClosed
	}
	return r, nil
}

// Receive implements [Source].
func (s *consumed[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	for {
		r, err := s.begin(ctx)
		if err != nil {
			return nil, err
		}
		raw, err := r.Receive(ctx, n)
		if err != nil {
			return nil, err
		}
		values := make([]T, len(raw))
		errs := guard.Each(len(raw), func(i int) (err error) {
			values[i], err = s.codec.Decode(raw[i].Value)
			return err
		}, func(recovered any) error { return guard.Recovered("ladder", recovered) })
		ms := make([]message.Message[T], 0, len(raw))
		for i, m := range raw {
			if err := errs[i]; err != nil {
				s.what.Logger.Warn("weir: a message cannot be decoded and goes to the dead letters",
					slog.String("queue", s.what.Queue), slog.String("id", m.Meta().ID), slog.Any("error", err))
				m.Reject(decoder.Unreadable(err))
				continue
			}
			ms = append(ms, message.With(m, values[i]))
		}
		if len(ms) > 0 {
			return ms, nil
		}
	}
}

// AsReceived is that of a leases.Source.
func (s *consumed[T]) AsReceived(id store.Identity, m *store.Message) (payload, schema []byte, ok bool) {
	r, _ := s.receiver()
	if r == nil {
		return nil, nil, false
	}
	if payload, ok = r.Received(id); !ok {
		return nil, nil, false
	}
	schema = codec.SchemaOf(s.codec)
	return payload, schema, leases.Same(s.decoder, s.codec, schema, payload, m)
}

// Close implements [Source].
func (s *consumed[T]) Close(ctx context.Context) error {
	s.mu.Lock()
	r := s.open
	s.closed = true
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	return r.Close(ctx)
}
