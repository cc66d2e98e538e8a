package ladder

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/nils"
)

// Layer is a queue in which failed messages wait.
type Layer struct {
	Queue         string
	Delay         time.Duration // at least 0
	Jitter        float64       // the share of the delay that is added at random, at most: 0 to 1
	MaxConcurrent int           // messages of the layer in flight in this process at once; 0: no limit
	Rate          float64       // messages a second that come back in this process, at most; 0: no limit
}

// Config is what a ladder is made of. The first four fields are required.
type Config[T any] struct {
	Store       store.Store
	Codec       codec.Codec[T]
	Layers      []Layer // at least one, in order
	DeadLetters string  // a queue of the store

	// Permanent says whether the error of a failure will not go away: then it goes to the dead letters. The default is what was
	// refused for good (a rejection), and what the operator's strategy did not want to try again. With an operator that has no
	// retries that would be each error, so give a function there.
	Permanent func(asyncop.Failure[T]) bool
	// ID names elements that are no messages, the same element always the same. Nil: such elements are not taken.
	ID func(T) string

	Clock   clock.Clock          // of the failures' times and of rates; the default is the machine's
	Options []store.SourceOption // of the sources of the layers
}

// Ladder takes failed messages and brings them back. Safe for concurrent use.
type Ladder[T any] struct{ c Config[T] }

// New returns a ladder.
func New[T any](c Config[T]) (*Ladder[T], error) {
	if nils.Is(c.Store) || nils.Is(c.Codec) {
		return nil, errors.New("ladder: New: Store and Codec must be set")
	}
	if len(c.Layers) == 0 || c.DeadLetters == "" {
		return nil, errors.New("ladder: New: a ladder needs layers and a queue of dead letters")
	}
	seen := map[string]bool{c.DeadLetters: true}
	for i, l := range c.Layers {
		switch {
		case l.Queue == "" || seen[l.Queue]:
			return nil, fmt.Errorf("ladder: New: layer %d: the queue %q must have a name that no other one has", i+1, l.Queue)
		case l.Delay < 0 || l.MaxConcurrent < 0 || !(l.Rate >= 0) || !(l.Jitter >= 0 && l.Jitter <= 1):
			return nil, fmt.Errorf("ladder: New: layer %q: Delay %v, MaxConcurrent %d and Rate %v must not be negative, Jitter %v from 0 to 1",
				l.Queue, l.Delay, l.MaxConcurrent, l.Rate, l.Jitter)
		}
		seen[l.Queue] = true
	}
	c.Layers = slices.Clone(c.Layers)
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	if c.Permanent == nil {
		c.Permanent = failed.Permanent[T]
	}
	return &Ladder[T]{c}, nil
}

// Take hands an element that an operator has given up over to the next layer or to the dead letters. When it returns nil, it is
// durable there, and its delivery can be acknowledged. Its error means that it was not taken: offer it again, or give the
// message back. The history of the message comes from ctx ([delivery.MetaFromContext]), and what the operator knows of the
// failure is added to it.
//
// An element that was cut off by the end of its operator is not taken: it did not fail.
func (l *Ladder[T]) Take(ctx context.Context, f asyncop.Failure[T]) error {
	if f.Abandoned {
		return fmt.Errorf("ladder: the element was cut off, and has not failed: %w", f.Err)
	}
	meta := failed.History(ctx, f, l.c.Clock.Now())
	if meta.ID == "" && l.c.ID != nil {
		meta.ID = l.c.ID(f.Element)
	}
	if meta.ID == "" {
		return errors.New("ladder: Take: a message without an id, and Config.ID gives none")
	}
	m, err := store.Encode(l.c.Codec, f.Element, meta)
	if err != nil {
		return fmt.Errorf("ladder: message %q cannot be encoded: %w", meta.ID, err)
	}
	queue := l.c.DeadLetters
	switch {
	case meta.OutcomeUnknown:
		m.Cause = store.OutcomeUnknown
	case l.c.Permanent(f):
		m.Cause = store.Permanent
	case meta.Visit > len(l.c.Layers):
		m.Cause = store.Exhausted
	default:
		layer := l.c.Layers[meta.Visit-1]
		queue, m.Delay = layer.Queue, layer.delay()
	}
	if err := l.c.Store.Put(ctx, queue, m); err != nil {
		return fmt.Errorf("ladder: message %q: %w", meta.ID, err)
	}
	return nil
}

// delay returns the delay of a message: never less than the layer's (law D3).
func (l Layer) delay() time.Duration {
	extra := time.Duration(rand.Float64() * l.Jitter * float64(l.Delay))
	if d := l.Delay + extra; d >= l.Delay {
		return d
	}
	return l.Delay // too long for a Duration
}
