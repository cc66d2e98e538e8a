package ladder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/oncewire"
	"github.com/weirflow/weir/message"
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
	Main        string  // the queue of new messages
	DeadLetters string  // a queue of the store
	Layers      []Layer // in order

	// Others returns more layers: those of another version, in which messages wait. Nil: there are none.
	Others func(ctx context.Context) (queues []string, err error)
	// Remembers is how long the called side remembers a request that has an id. It allows calls in doubt in the layers. 0: each call in
	// doubt goes to the dead letters.
	Remembers time.Duration

	// Blocked is a queue in which messages wait behind an earlier one of their key: while one of a key waits in a layer, those that come
	// after it wait there, in order. "": they overtake it. The store must be a [store.Inspector].
	Blocked string
	// MaxBlocked bounds the messages that wait in layers, in Blocked, and in memory behind one in flight; the default is
	// 10,000. When there are so many, no new ones are received (one batch more may come).
	MaxBlocked int

	// ID names elements that are no messages. Nil: such elements are not taken.
	ID func(T) string

	Clock   clock.Clock           // of the failures' times and of rates; the default is the machine's
	Logger  *slog.Logger          // the default is slog.Default()
	Options []leases.SourceOption // of the sources of the queues
}

// Ladder takes failed messages and brings them back. Safe for concurrent use.
type Ladder[T any] struct {
	c    Config[T]
	open sync.Map                // of the sources that are not closed, *source[T]
	keys atomic.Pointer[keys[T]] // of the Source that is open; nil: none is, or messages of a key overtake each other
}

// New returns a ladder.
func New[T any](c Config[T]) (*Ladder[T], error) {
	switch {
	case guard.IsNil(c.Store):
		return nil, errors.New("ladder: New: Store is nil")
	case guard.IsNil(c.Codec):
		return nil, errors.New("ladder: New: Codec is nil")
	case c.Main == "":
		return nil, errors.New("ladder: New: Main is empty")
	case c.DeadLetters == "":
		return nil, errors.New("ladder: New: DeadLetters is empty: a ladder needs a queue for them")
	}
	seen := map[string]bool{c.DeadLetters: true, c.Main: true}
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
	if c.Logger == nil {
		c.Logger = slog.Default()
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
		return fmt.Errorf("the element was cut off, and has not failed: %w", f.Err)
	}
	before, _ := message.MetaFromContext(ctx)
	meta := failed.History(ctx, f, l.c.Clock.Now())
	if chosen, ok, _ := l.Choose(ctx, ""); ok { // it asks nothing of the store
		meta.Provider = chosen
	}
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
		return fmt.Errorf("message %q cannot be encoded: %w", meta.ID, err)
	}
	queue := l.c.DeadLetters
	switch {
	case meta.OutcomeUnknown && !carried:
		m.Cause = store.OutcomeUnknown
	case failed.Permanent(f):
		m.Cause = causeOf(meta, store.Permanent)
	case meta.Visit > len(l.c.Layers):
		m.Cause = causeOf(meta, store.Exhausted)
	default:
		layer := l.c.Layers[meta.Visit-1]
		if delay := max(layer.delay(), demanded); isPast(meta.Deadline, l.c.Clock.Now().Add(delay)) {
			m.Cause = causeOf(meta, store.Expired)
		} else {
			queue, m.Delay = layer.Queue, delay
		}
	}
	stored, undo := func() {}, func() {}
	if k := l.keys.Load(); k != nil && queue != l.c.DeadLetters {
		stored, undo = k.handOver(meta.Key, meta.ID, queue, m.Delay)
	}
	if err := l.c.Store.Put(ctx, queue, m); err != nil {
		undo()
		return fmt.Errorf("message %q: %w", meta.ID, err)
	}
	stored()
	return nil // the operator logs what it has handed over
}

// Choose stores the provider of the message that ctx is of, and returns the one that it has; an empty one asks only. found is false if the
// message is none of a source of this ladder.
func (l *Ladder[T]) Choose(ctx context.Context, provider string) (now string, found bool, err error) {
	meta, _ := message.MetaFromContext(ctx)
	id := store.Identity{ID: meta.ID, Visit: meta.Visit, Merges: meta.Merges}
	l.open.Range(func(key, _ any) bool {
		now, found, err = key.(*source[T]).choose(ctx, id, provider)
		return !found
	})
	return now, found, err
}

// isPast says whether a deadline, if there is one, has passed at a time.
func isPast(deadline, at time.Time) bool { return !deadline.IsZero() && !deadline.After(at) }

// bury stores a message that is not visited any more.
func (l *Ladder[T]) bury(ctx context.Context, v T, meta message.Meta, cause store.Cause, why string) error {
	meta.Visit = max(0, meta.Visit-1) // there was none
	m, err := store.Encode(l.c.Codec, v, meta)
	if err != nil {
		return fmt.Errorf("message %q cannot be encoded: %w", meta.ID, err)
	}
	m.Cause = causeOf(meta, cause)
	if err := l.c.Store.Put(ctx, l.c.DeadLetters, m); err != nil {
		return fmt.Errorf("message %q: %w", meta.ID, err)
	}
	l.c.Logger.LogAttrs(ctx, slog.LevelWarn, "weir: message given up without a visit: "+why,
		slog.String("id", m.Meta.ID), slog.String("queue", l.c.DeadLetters), slog.Time("remembered", meta.Remembered),
		slog.Time("deadline", meta.Deadline))
	return nil
}

// causeOf returns the cause of a dead letter: that a call is in doubt matters more than why it is not made again.
func causeOf(meta message.Meta, cause store.Cause) store.Cause {
	if meta.OutcomeUnknown {
		return store.OutcomeUnknown
	}
	return cause
}

// carry notes under which id a call in doubt is to be made again, and reports whether the next visit may make it (law X1): the
// called side remembers it longer than the rest of the ladder lasts.
func (l *Ladder[T]) carry(ctx context.Context, f asyncop.Failure[T], before message.Meta, meta *message.Meta, demanded time.Duration) bool {
	if failed.Ambiguous(f) {
		element, numbered := ctx.Value(oncewire.ElementKey{}).(oncewire.Element)
		request := ""
		if numbered {
			request = element.Carried()
		}
		id, _ := exactlyonce.ParseID(request) // zero: there is none
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
