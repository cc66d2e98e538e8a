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
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// consumed is the source of a queue and its layers on a [store.Consumer]. It calls
// Consume at the first Receive, and again after a failure.
type consumed[T any] struct {
	ladder      *Ladder[T]
	engine      store.Consumer
	consumption store.Consumption
	codec       codec.Codec[T]
	decoder     *decoder.Decoder[T]

	calls context.Context // of Consume; ends with Close
	end   context.CancelFunc

	mu      sync.Mutex // guards the fields below
	opening *opening   // nil before the first Receive, and after a failed one
	closed  bool
}

// opening is a call of Consume. It outlasts the Receive that began it, which ends each
// time another input has messages.
type opening struct {
	done     chan struct{} // closed after the call; then the fields below are read
	receiver store.Receiver
	err      error
}

func newConsumed[T any](l *Ladder[T]) *consumed[T] {
	c := l.c
	s := &consumed[T]{
		ladder: l,
		engine: c.Store.(store.Consumer), codec: c.Codec, decoder: decoder.New("ladder", c.Codec), // New has checked the type
		consumption: store.Consumption{Queue: c.Main, IsLayer: c.IsLayer, Dead: c.DeadLetters, Clock: c.Clock, Logger: c.Logger},
	}
	s.calls, s.end = context.WithCancel(context.Background())
	for _, l := range c.Layers {
		s.consumption.Layers = append(s.consumption.Layers, l.Queue)
	}
	return s
}

func (s *consumed[T]) receiver() store.Receiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.opening; o != nil {
		select {
		case <-o.done:
			return o.receiver
		default:
		}
	}
	return nil
}

// begin opens. One goroutine at a time calls it.
func (s *consumed[T]) begin(ctx context.Context) (store.Receiver, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed
	}
	if s.opening == nil {
		o := &opening{done: make(chan struct{})}
		s.opening = o
		go func() { // ends with the call
			defer close(o.done)
			o.err = guard.Call(func() (err error) {
				o.receiver, err = s.engine.Consume(s.calls, s.consumption)
				return err
			}, broken)
		}()
	}
	o := s.opening
	s.mu.Unlock()
	select {
	case <-o.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, errClosed
	case o.err != nil:
		s.opening = nil // the next Receive tries again
	}
	return o.receiver, o.err
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
		}, broken)
		ms := make([]message.Message[T], 0, len(raw))
		for i, m := range raw {
			if err := errs[i]; err != nil {
				s.consumption.Logger.Warn("weir: a message cannot be decoded and goes to the dead letters",
					slog.String("queue", s.consumption.Queue), slog.String("id", m.Meta().ID), slog.Any("error", err))
				m.Reject(decoder.Unreadable(err))
				continue
			}
			of := store.Message{Meta: m.Meta()}
			d := &consumedDelivery[T]{source: s, identity: of.Identity(), provider: of.Meta.Provider, payload: m.Value}
			ms = append(ms, message.Attach(message.With(m, values[i]), d))
		}
		if len(ms) > 0 {
			return ms, nil
		}
	}
}

// consumedDelivery is the [message.Delivery] of a message of a [store.Consumer], which
// does not keep providers or purge messages.
type consumedDelivery[T any] struct {
	source   *consumed[T]
	identity store.Identity
	provider string
	payload  []byte
}

func (d *consumedDelivery[T]) Owner() any { return d.source.ladder }

func (d *consumedDelivery[T]) Visit() (id string, visit, merges int) {
	return d.identity.ID, d.identity.Visit, d.identity.Merges
}

func (d *consumedDelivery[T]) AsReceived(encoded []byte) (payload, schema []byte, isSame bool) {
	s := d.source
	schema = codec.SchemaOf(s.codec)
	return d.payload, schema, leases.Same(s.decoder, s.codec, schema, d.payload, encoded)
}

func (d *consumedDelivery[T]) IsPurged() bool { return false }

func (d *consumedDelivery[T]) Provider() string { return d.provider }

func (d *consumedDelivery[T]) SetProvider(context.Context, string) (canKeep bool, err error) {
	return false, nil
}

var _ settle.LeaseCounter = (*consumed[any])(nil)

// LeasesLost implements [settle.LeaseCounter]. It is 0 if the receiver does not count
// lost leases.
func (s *consumed[T]) LeasesLost() int {
	if counter, ok := s.receiver().(settle.LeaseCounter); ok {
		return counter.LeasesLost()
	}
	return 0
}

// Close implements [Source].
func (s *consumed[T]) Close(ctx context.Context) error {
	s.mu.Lock()
	o := s.opening
	s.closed = true
	s.mu.Unlock()
	s.end()
	if o == nil {
		return nil
	}
	select {
	case <-o.done:
		return o.close(ctx)
	case <-ctx.Done():
		go func() { // ends with the call and the Close
			<-o.done
			_ = guard.Call(func() error { return o.close(context.WithoutCancel(ctx)) }, broken)
		}()
		return context.Cause(ctx)
	}
}

// close closes the receiver, if any. It is called after done is closed.
func (o *opening) close(ctx context.Context) error {
	if o.receiver == nil {
		return nil
	}
	return o.receiver.Close(ctx)
}

func broken(recovered any) error { return guard.Recovered("ladder", recovered) }
