package ladder

import (
	"context"
	"sync"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
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

	receiving   chan struct{}                                     // capacity 1: held by a Receive, and by Close at its end
	undecodable *counting.FailureLog                              // guarded by receiving
	onReject    func(meta message.Meta, err error) (rejects bool) // set before the first Receive; may be nil

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
	s.receiving = make(chan struct{}, 1)
	s.undecodable = counting.NewFailureLog(c.Logger, c.Clock, "weir: a message cannot be decoded and goes to the dead letters", "queue", c.Main)
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
			if rejecter, ok := o.receiver.(settle.Rejecter); ok && s.onReject != nil {
				rejecter.OnReject(s.onReject)
			}
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
	s.receiving <- struct{}{}
	defer func() { <-s.receiving }()
	for {
		s.undecodable.FlushDue()
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
				s.reject(m, decoder.Unreadable(err))
				continue
			}
			of := store.Message{Meta: m.Meta()}
			d := &consumedDelivery[T]{source: s, identity: of.Identity(), provider: of.Meta.Provider, payload: m.Value}
			ms = append(ms, message.Attach(message.With(m, values[i]), d))
		}
		if len(ms) > 0 {
			return ms, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}

var _ settle.Rejecter = (*consumed[any])(nil)

// OnReject implements [settle.Rejecter].
func (s *consumed[T]) OnReject(f func(meta message.Meta, err error) (rejects bool)) { s.onReject = f }

// reject rejects a message that cannot be decoded, or releases it if the receiver has
// stopped.
func (s *consumed[T]) reject(m message.Message[[]byte], err error) {
	rejects := s.onReject == nil || s.onReject(m.Meta(), err)
	if !rejects {
		m.Release()
		return
	}
	s.undecodable.Add(err, "id", m.Meta().ID)
	m.Reject(err)
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
	defer s.flush(ctx)
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

// flush writes the log lines about counted failures, unless a Receive is still running.
func (s *consumed[T]) flush(ctx context.Context) {
	select {
	case s.receiving <- struct{}{}:
		s.undecodable.Flush()
		<-s.receiving
	case <-ctx.Done():
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
