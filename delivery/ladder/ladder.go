package ladder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/nils"
)

// Layer is a queue in which failed messages wait.
type Layer struct {
	Queue         string
	Delay         time.Duration // required: above 0
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

	// Permanent says whether the error of a failure will not go away: then it goes to the dead letters. The default is what is known to be
	// so: a rejection, which the strategy's classifier names, the error has itself (predicates.WithReason), or httpretry knows of the status
	// of a response; and an error before anything was sent that is not about a connection.
	Permanent func(asyncop.Failure[T]) bool
	// Remembers is how long the called side remembers a request that has an id (exactlyonce.ResultsConfig.AnswerAge), less what
	// clocks differ. It allows calls in doubt in the layers: the next visit makes the call again under the same id, as the
	// messages of an exactlyonce.Tracker with a name do. Without a Tracker, the ids must be made of the message's by your own
	// code, and be reported (predicates.WithTracked). 0: each call in doubt goes to the dead letters.
	Remembers time.Duration

	// Blocked is a queue in which messages wait behind an earlier one of their key (delivery.Meta.Key): while one of a key
	// waits in a layer, those that come after it wait there, in order. "": they overtake it. The store must be a
	// [store.Inspector], and the order is kept among the messages that come to one process: see the package's documentation.
	Blocked string
	// MaxBlocked bounds the messages that wait in layers, in Blocked, and in memory behind one in flight; the default is
	// 10,000. When there are so many, no new ones are received (one batch more may come).
	MaxBlocked int

	// ID names elements that are no messages, the same element always the same. Nil: such elements are not taken.
	ID func(T) string

	Clock   clock.Clock          // of the failures' times and of rates; the default is the machine's
	Options []store.SourceOption // of the sources of the layers
}

// Ladder takes failed messages and brings them back. Safe for concurrent use.
type Ladder[T any] struct {
	c    Config[T]
	keys atomic.Pointer[keys[T]] // of the Source that is open; nil: none is, or messages of a key overtake each other
}

// New returns a ladder.
func New[T any](c Config[T]) (*Ladder[T], error) {
	switch {
	case nils.Is(c.Store):
		return nil, errors.New("ladder: New: Store is nil")
	case nils.Is(c.Codec):
		return nil, errors.New("ladder: New: Codec is nil")
	case len(c.Layers) == 0:
		return nil, errors.New("ladder: New: Layers is empty: a ladder needs one at least")
	case c.DeadLetters == "":
		return nil, errors.New("ladder: New: DeadLetters is empty: a ladder needs a queue for them")
	}
	seen := map[string]bool{c.DeadLetters: true}
	for i, l := range c.Layers {
		switch {
		case l.Queue == "" || seen[l.Queue]:
			return nil, fmt.Errorf("ladder: New: layer %d: the queue %q must have a name that no other one has", i+1, l.Queue)
		case l.Delay == 0: // a message would go through all layers at once
			return nil, fmt.Errorf("ladder: New: layer %q: Delay is 0: how long do its messages wait?", l.Queue)
		case l.Delay < 0 || l.MaxConcurrent < 0 || !(l.Rate >= 0) || !(l.Jitter >= 0 && l.Jitter <= 1):
			return nil, fmt.Errorf("ladder: New: layer %q: Delay %v, MaxConcurrent %d and Rate %v must not be negative, Jitter %v from 0 to 1",
				l.Queue, l.Delay, l.MaxConcurrent, l.Rate, l.Jitter)
		}
		seen[l.Queue] = true
	}
	if c.Blocked != "" {
		_, canLook := c.Store.(store.Inspector)
		switch {
		case seen[c.Blocked]:
			return nil, fmt.Errorf("ladder: New: Blocked: the queue %q must have a name that no other one has", c.Blocked)
		case !canLook:
			return nil, fmt.Errorf("ladder: New: Blocked: a %T cannot look into its queues: it is no store.Inspector", c.Store)
		case c.MaxBlocked < 0:
			return nil, fmt.Errorf("ladder: New: MaxBlocked %d must not be negative", c.MaxBlocked)
		case c.MaxBlocked == 0:
			c.MaxBlocked = defaultMaxBlocked
		}
	}
	if c.Remembers < 0 {
		return nil, fmt.Errorf("ladder: New: Remembers %v must not be negative", c.Remembers)
	}
	c.Layers = slices.Clone(c.Layers)
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	if c.Permanent == nil {
		c.Permanent = failed.Permanent[T]
	}
	return &Ladder[T]{c: c}, nil
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
	before, _ := delivery.MetaFromContext(ctx)
	meta := failed.History(ctx, f, l.c.Clock.Now())
	demanded := failed.Demand(f.Err)
	carried := l.carry(ctx, f, before, &meta, demanded)
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
	case meta.OutcomeUnknown && !carried:
		m.Cause = store.OutcomeUnknown
	case l.c.Permanent(f):
		m.Cause = causeOf(meta, store.Permanent)
	case meta.Visit > len(l.c.Layers):
		m.Cause = causeOf(meta, store.Exhausted)
	default:
		layer := l.c.Layers[meta.Visit-1]
		queue, m.Delay = layer.Queue, max(layer.delay(), demanded)
	}
	stored, undo := func() {}, func() {}
	if k := l.keys.Load(); k != nil && queue != l.c.DeadLetters {
		stored, undo = k.handOver(meta.Key, meta.ID, queue, m.Delay)
	}
	if err := l.c.Store.Put(ctx, queue, m); err != nil {
		undo()
		return fmt.Errorf("ladder: message %q: %w", meta.ID, err)
	}
	stored()
	return nil // the operator logs what it has handed over
}

// bury stores a message whose call in doubt was remembered until now.
func (l *Ladder[T]) bury(ctx context.Context, v T, meta delivery.Meta) error {
	meta.Visit = max(0, meta.Visit-1) // there was none
	m, err := store.Encode(l.c.Codec, v, meta)
	if err != nil {
		return fmt.Errorf("ladder: message %q cannot be encoded: %w", meta.ID, err)
	}
	m.Cause = store.OutcomeUnknown
	if err := l.c.Store.Put(ctx, l.c.DeadLetters, m); err != nil {
		return fmt.Errorf("ladder: message %q: %w", meta.ID, err)
	}
	slog.LogAttrs(ctx, slog.LevelWarn, "ladder: message given up without a visit: the called side may have forgotten its call in doubt",
		slog.String("id", m.Meta.ID), slog.String("queue", l.c.DeadLetters), slog.Time("remembered", meta.Remembered))
	return nil
}

// causeOf returns the cause of a dead letter: that a call is in doubt matters more than why it is not made again.
func causeOf(meta delivery.Meta, cause store.Cause) store.Cause {
	if meta.OutcomeUnknown {
		return store.OutcomeUnknown
	}
	return cause
}

// carry notes under which id a call in doubt is to be made again, and reports whether the next visit may make it (law X1): the
// called side remembers it longer than the rest of the ladder lasts.
func (l *Ladder[T]) carry(ctx context.Context, f asyncop.Failure[T], before delivery.Meta, meta *delivery.Meta, demanded time.Duration) bool {
	if failed.Ambiguous(f) {
		id, numbered := exactlyonce.CarriedID(ctx)
		request := ""
		if id != (exactlyonce.ID{}) {
			request = id.String()
		}
		began := f.FirstAttempt
		if began.IsZero() {
			began = meta.LastFailure.Add(-f.Elapsed)
		}
		other, err := exactlyonce.ParseID(before.Request)
		switch {
		case !f.Tracked || l.c.Remembers == 0 || numbered && request == "":
			meta.Remembered = time.Time{} // a request has no id, or none that it keeps
		case !before.OutcomeUnknown:
			meta.Request, meta.Remembered = request, began.Add(l.c.Remembers)
		case err == nil && (other.Client != id.Client || other.Sequence != id.Sequence):
			meta.Remembered = time.Time{} // that of another operator is in doubt, too, and there is room for one
		default:
			meta.Request = request // another attempt; the called side may not have seen it, so its time does not begin anew
		}
	}
	return meta.OutcomeUnknown && meta.Remembered.After(meta.LastFailure.Add(demanded).Add(l.rest(meta.Visit)))
}

// rest returns how long the layers last at most that a message goes through from its visit on.
func (l *Ladder[T]) rest(visit int) (d time.Duration) {
	for i := visit - 1; i < len(l.c.Layers); i++ {
		if d += l.c.Layers[i].longest(); d < 0 {
			return math.MaxInt64
		}
	}
	return d
}

// longest returns the longest delay of a message.
func (l Layer) longest() time.Duration {
	if d := l.Delay + time.Duration(l.Jitter*float64(l.Delay)); d >= l.Delay {
		return d
	}
	return math.MaxInt64
}

// delay returns the delay of a message: never less than the layer's (law D3).
func (l Layer) delay() time.Duration {
	extra := time.Duration(rand.Float64() * l.Jitter * float64(l.Delay))
	if d := l.Delay + extra; d >= l.Delay {
		return d
	}
	return l.Delay // too long for a Duration
}
