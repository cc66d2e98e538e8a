package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
)

// Layer is a topic in which failed messages wait.
type Layer struct {
	Topic  string
	Delay  time.Duration // at least 0
	Jitter float64       // the share of the delay that is added at random, at most: 0 to 1
}

// RetriesConfig is what [Retries] are made of. Codec and DeadLetters are required.
type RetriesConfig[T any] struct {
	Client      []kgo.Opt // kgo.SeedBrokers, kgo.DialTLSConfig, kgo.SASL and others
	Codec       codec.Codec[T]
	Layers      []Layer // in order; they may be none
	DeadLetters string  // a topic

	// Permanent says whether the error of a failure will not go away: then it goes to the dead letters. The default is what is known to be
	// so: a rejection, which the strategy's classifier names, the error has itself (predicates.WithReason), or httpretry knows of the
	// status of a response; and an error before anything was sent that is not about a connection.
	Permanent func(asyncop.Failure[T]) bool
	// Clock is that of failures and delays; the default is the machine's.
	Clock clock.Clock
}

// Retries takes failed messages to topics: from layer to layer, and in the end to the dead letters. It is to topics what a
// delivery.Queue is to a store. The topics must exist. Safe for concurrent use.
//
//	visit 1 fails ──▶ layer 1 ─▶ visit 2 fails ──▶ layer 2 ─▶ visit 3 fails ──▶ dead letters
//	permanent error, or outcome unknown, at any visit ──────────────────────▶ dead letters
//
// A [Source] that reads the topics of the layers, too, brings the messages back when they are due: [Retries.Topics].
type Retries[T any] struct {
	c        RetriesConfig[T]
	router   failed.Router[T]
	producer *producer
}

// NewRetries returns retries. They must be closed.
func NewRetries[T any](c RetriesConfig[T]) (*Retries[T], error) {
	switch {
	case guard.IsNil(c.Codec):
		return nil, errors.New("kafka: NewRetries: Codec is nil")
	case c.DeadLetters == "":
		return nil, errors.New("kafka: NewRetries: DeadLetters is empty")
	}
	seen := map[string]bool{c.DeadLetters: true}
	for i, l := range c.Layers {
		switch {
		case l.Topic == "" || seen[l.Topic]:
			return nil, fmt.Errorf("kafka: NewRetries: layer %d: the topic %q must have a name that no other one has", i+1, l.Topic)
		case l.Delay < 0 || !(l.Jitter >= 0 && l.Jitter <= 1):
			return nil, fmt.Errorf("kafka: NewRetries: layer %q: Delay %v must not be negative, Jitter %v from 0 to 1", l.Topic, l.Delay, l.Jitter)
		}
		seen[l.Topic] = true
	}
	c.Layers = slices.Clone(c.Layers)
	router := failed.Router[T]{Permanent: c.Permanent}
	for _, l := range c.Layers {
		router.Layers = append(router.Layers, failed.Layer{Delay: l.Delay, Jitter: l.Jitter})
	}
	p, err := newProducer(c.Client)
	if err != nil {
		return nil, err
	}
	if c.Clock != nil {
		p.clock = c.Clock
	}
	return &Retries[T]{c, router, p}, nil
}

// Topics returns the topics of the layers.
func (r *Retries[T]) Topics() []string {
	topics := make([]string, len(r.c.Layers))
	for i, l := range r.c.Layers {
		topics[i] = l.Topic
	}
	return topics
}

// Take hands an element that an operator has given up over to the next layer or to the dead letters: for asyncop.WithFailureSink. When it
// returns nil, all replicas in sync have it, and its delivery can be acknowledged (law D1). The history of the message comes from ctx
// ([delivery.MetaFromContext]), and what the operator knows of the failure is added to it. A wait that the server demands, such as by
// Retry-After, is kept if it is longer than the layer's delay.
//
// A message that would have to wait beyond its deadline is a dead letter. An element that is no message gets a random id. One that was cut
// off by the end of its operator is not taken: it did not fail.
func (r *Retries[T]) Take(ctx context.Context, f asyncop.Failure[T]) error {
	to, err := r.router.Route(ctx, f, r.producer.clock.Now())
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	m, err := store.Encode(r.c.Codec, f.Element, to.Meta)
	if err != nil {
		return fmt.Errorf("kafka: message %q cannot be encoded: %w", to.Meta.ID, err)
	}
	topic := r.c.DeadLetters
	if m.Cause, m.Delay = to.Cause, to.Delay; m.Cause == "" {
		topic = r.c.Layers[to.Layer].Topic
	}
	return r.producer.put(ctx, topic, []store.Message{m})
}

// PutDead writes messages to the topic of the dead letters: a [PutFunc] for [WithDeadLetters].
func (r *Retries[T]) PutDead(ctx context.Context, ms ...store.Message) error {
	return r.producer.put(ctx, r.c.DeadLetters, ms)
}

// PutFirst writes messages to the first layer, or to the dead letters if there is no layer: a [PutFunc] for [WithBlockers]. They are due
// when their own delay has passed.
func (r *Retries[T]) PutFirst(ctx context.Context, ms ...store.Message) error {
	if len(r.c.Layers) == 0 {
		return r.PutDead(ctx, ms...)
	}
	return r.producer.put(ctx, r.c.Layers[0].Topic, ms)
}

// Close closes the client.
func (r *Retries[T]) Close() { r.producer.close() }
