package ladder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// Layer is a delivery.Layer with its queue. Delay is required.
type Layer struct {
	Queue         string
	Delay         time.Duration
	Jitter        float64
	MaxConcurrent int
	Rate          float64
}

// Config configures a ladder. The first four fields are required.
type Config[T any] struct {
	Store       store.Engine // a store.Store or a store.Consumer
	Codec       codec.Codec[T]
	Main        string  // the queue of new messages
	DeadLetters string  // a queue of the store
	Layers      []Layer // in order

	// Others returns queues of waiting messages that only another version has: its
	// layers, and its "<name>-blocked". It may be nil.
	Others func(ctx context.Context) (queues []string, err error)
	// IsLayer is the IsLayer of a [store.Consumption].
	IsLayer func(name string) bool
	// Remembers is how long the server remembers a request with an id, which allows calls
	// in doubt in the layers. If it is 0, they go to the dead letters.
	Remembers time.Duration

	// InOrder keeps the order of keys in the queue Main: a message that fails waits in
	// its place, not in a layer. The store must be a [store.InOrder].
	InOrder bool

	Clock   clock.Clock           // for failures' times and rates; default: the machine's
	Logger  *slog.Logger          // default slog.Default()
	Options []leases.SourceOption // of the queues' sources
}

// Ladder takes failed messages and brings them back. Safe for concurrent use.
type Ladder[T any] struct {
	c       Config[T]
	router  failed.Router[T]
	open    sync.Map  // keys are open *source[T], which fail ends
	advised sync.Once // advise has logged

	// adopted has the ladders of first sources: see adopt.
	adopted sync.Map
}

// New returns a ladder. The options of a delivery.Queue have checked the numbers and
// durations.
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
		if l.Queue == "" || seen[l.Queue] {
			return nil, fmt.Errorf("ladder: New: layer %d: the queue %q must have a name that no other one has", i+1, l.Queue)
		}
		seen[l.Queue] = true
	}
	_, takesInOrder := c.Store.(store.InOrder)
	if c.InOrder && !takesInOrder {
		return nil, fmt.Errorf("ladder: New: InOrder: a %T is not a store.InOrder", c.Store)
	}
	c.Layers = slices.Clone(c.Layers)
	if c.Clock == nil {
		c.Clock = clock.New()
	}
	c.Logger = guard.Logger(c.Logger)
	_, hasLeases := c.Store.(store.Store) // otherwise only layers have delays
	l := &Ladder[T]{c: c, router: failed.Router[T]{HasLeases: hasLeases, Remembers: c.Remembers}}
	for _, layer := range c.Layers {
		l.router.Layers = append(l.router.Layers, failed.Layer{Delay: layer.Delay, Jitter: layer.Jitter})
	}
	return l, nil
}

// TakeFailure hands an element that an operator has given up to the next layer or the
// dead letters: see delivery.Queue.TakeFailure. If it returns nil, the message can be
// acknowledged, for one of these reasons:
//
//   - The element is durable in the layer or among the dead letters.
//   - Its message was purged.
//   - The acknowledgement stores the element in the place of the message
//     (Config.InOrder).
func (l *Ladder[T]) TakeFailure(ctx context.Context, f asyncop.Failure[T]) error {
	to, err := l.router.Route(ctx, f, l.c.Clock.Now())
	if err != nil {
		return err
	}
	meta := to.Meta
	// from is the delivery of the message in ctx. The element may be a part of that
	// message: it has the provider of the message, and is not stored if the message was
	// purged.
	from := message.DeliveryFromContext(ctx)
	if from != nil {
		meta.Provider = from.Provider()
	}
	m, err := leases.Encode(l.c.Codec, f.Element, meta)
	if err != nil {
		return fmt.Errorf("message %q cannot be encoded: %w", guard.Shown(meta.ID), err)
	}
	// whole is from if the element is the whole message, from a source of this ladder.
	// Otherwise it is nil. Only a whole message has the received bytes, and can be
	// replaced in its place.
	whole := l.ownDelivery(ctx)
	keepReceived(whole, &m)
	m.Cause = to.Cause
	m.Delay = to.Delay // 0 for a dead letter
	if l.c.InOrder && m.Cause == "" {
		m.Meta.Outage = "" // it waits in its place, not in a layer
		inPlace, canReplace := whole.(leases.InPlace)
		if canReplace && inPlace.ReplaceBy(m) {
			return nil
		}
	}
	queue := l.queueOf(to)
	isOver, err := leases.HandOver(ctx, l.c.Store, queue, []store.Message{m}, []message.Delivery{from})
	if err != nil {
		err = fmt.Errorf("message %q: %w", guard.Shown(meta.ID), err)
		if guard.IsPermanent(err) {
			l.fail(err)
		}
		return err
	}
	if isOver[0] {
		return nil
	}
	if m.Cause == store.UnsafeToRepeat && len(l.c.Layers) > 0 {
		l.advised.Do(func() { l.advise(ctx, meta.ID) })
	}
	return nil // the operator logs it
}

func (l *Ladder[T]) queueOf(to failed.Route) string {
	switch {
	case to.Cause != "":
		return l.c.DeadLetters
	case to.Layer == failed.OwnQueue, l.c.InOrder:
		return l.c.Main
	}
	return l.c.Layers[to.Layer].Queue
}

// fail ends the open sources with an error that only a person can repair, such as a
// missing right.
func (l *Ladder[T]) fail(err error) {
	l.open.Range(func(key, _ any) bool {
		select {
		case key.(*source[T]).broken <- err:
		default: // it has an error already
		}
		return true
	})
}

// advise logs why a message has not waited in a layer, which users of layers do not
// expect.
func (l *Ladder[T]) advise(ctx context.Context, id string) {
	l.c.Logger.LogAttrs(ctx, slog.LevelInfo, "weir: a message is a dead letter without a wait in a layer, because its call may have taken effect; "+
		"if a second call does no harm, give its type a method Idempotent() bool that returns true; weir logs this once",
		slog.String("id", id), slog.String("queue", l.c.DeadLetters))
}

// ownDelivery returns the handle of the message of a call, or nil if the message was not
// received from a source of this ladder, is a part, or was made by the program.
func (l *Ladder[T]) ownDelivery(ctx context.Context) message.Delivery {
	meta, _ := message.MetaFromContext(ctx)
	return l.ifOwn(message.DeliveryFromContext(ctx), &meta)
}

// ifOwn returns d, the handle of a message, or nil if the message is of another ladder
// that is not adopted, is a part, or was renamed by the program.
func (l *Ladder[T]) ifOwn(d message.Delivery, meta *message.Meta) message.Delivery {
	if d == nil {
		return nil
	}
	id, visit, merges := d.Visit()
	if id != meta.ID || visit != meta.Visit || merges != meta.Merges {
		return nil
	}
	owner := d.Owner()
	_, isAdopted := l.adopted.Load(owner)
	if owner != any(l) && !isAdopted {
		return nil
	}
	return d
}

// keepReceived replaces the bytes of m by the received bytes, unless the program has
// changed the value. So members that the type lacks are kept. It has no effect if d is
// nil.
func keepReceived(d message.Delivery, m *store.Message) {
	if d == nil {
		return
	}
	payload, schema, isSame := d.AsReceived(m.Payload)
	if isSame {
		m.Payload, m.Schema = payload, schema
	}
}

// Provider returns the provider of the message of a call, or "". isOwn is false if the
// message was not received from a source of this ladder, is a part, or was made or
// renamed by the program.
func (l *Ladder[T]) Provider(ctx context.Context) (provider string, isOwn bool) {
	d := l.ownDelivery(ctx)
	if d == nil {
		return "", false
	}
	return d.Provider(), true
}

// SetProvider stores the provider of the message of a call. isOwn is as in Provider, and
// also false if the message is not in flight.
func (l *Ladder[T]) SetProvider(ctx context.Context, provider string) (isOwn bool, err error) {
	d := l.ownDelivery(ctx)
	if d == nil {
		return false, nil
	}
	return d.SetProvider(ctx, provider)
}

// unvisited returns a received message as it was stored, without the visit that its
// source has counted.
func (l *Ladder[T]) unvisited(received message.Message[T]) (store.Message, error) {
	meta := received.Meta()
	before := meta
	before.Visit = max(0, meta.Visit-1)
	m, err := leases.Encode(l.c.Codec, received.Value, before)
	if err != nil {
		return m, fmt.Errorf("message %q cannot be encoded: %w", guard.Shown(meta.ID), err)
	}
	keepReceived(l.ifOwn(message.DeliveryOf(received), &meta), &m)
	return m, nil
}

// putDead puts a received message among the dead letters. The caller removes it from its
// queue. why is for the log and the error.
func (l *Ladder[T]) putDead(ctx context.Context, received message.Message[T], cause store.Cause, why string) error {
	meta := received.Meta()
	m, err := l.unvisited(received)
	if err != nil {
		return err
	}
	settle.DropPointsTo(&m.Meta)
	m.Cause = settle.CauseOf(&meta, cause)
	isOver, err := leases.HandOver(ctx, l.c.Store, l.c.DeadLetters, []store.Message{m}, []message.Delivery{message.DeliveryOf(received)})
	if err != nil {
		return fmt.Errorf("message %q: %s: %w", guard.Shown(meta.ID), why, err)
	}
	if isOver[0] {
		return nil
	}
	attrs := []slog.Attr{slog.String("id", m.Meta.ID), slog.String("queue", l.c.DeadLetters)}
	if !meta.Remembered.IsZero() {
		attrs = append(attrs, slog.Time("remembered", meta.Remembered))
	}
	if !meta.Deadline.IsZero() {
		attrs = append(attrs, slog.Time("deadline", meta.Deadline))
	}
	l.c.Logger.LogAttrs(ctx, slog.LevelWarn, "weir: message given up without a visit: "+why, attrs...)
	return nil
}
