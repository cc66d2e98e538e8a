package delivery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// Queue is a queue of messages of type T on an engine, with the layers in which failed
// messages wait for their next visit, and the dead letters. It can be the source of a
// worker, the sink of another worker, and the failure sink of an operator:
//
//	engine, err := sqlite.Open(ctx, "shop.db")
//	…
//	orders := delivery.NewQueue[Order](engine, "orders", delivery.RetryAfter(time.Minute, 10*time.Minute, time.Hour))
//	receipts := delivery.NewQueue[Receipt](engine, "receipts")
//	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(charge), 10*time.Second, 100, strategy, asyncop.WithFailureSink(orders.TakeFailure))
//	summary, err := delivery.Run(ctx, orders, op, receipts)
//
// Any number of programs may use a queue at the same time, on all machines that reach its
// engine. They must have the same codec, but may have different layers. The program that
// puts a message into a layer sets when it is due. A worker also takes messages from
// layers that only another program has. It looks for such layers when it starts, and
// every five minutes.
//
// # Failures
//
//	visit 1 fails ──▶ layer 1 ─▶ visit 2 fails ──▶ layer 2 ─▶ visit 3 fails ──▶ dead letters (exhausted)
//	permanent error, or unsafe to repeat, at any visit ─────────────────────▶ dead letters
//
// A visit is a passage through an operator, with its short retries. See docs/ladder.md.
//
// # Names
//
// On the engine a queue "orders" has the names "orders", "orders-retry-1" and so on for
// the layers, and "orders-dead" for the dead letters. "orders-blocked" has messages that
// an earlier version of weir has left.
//
// A Queue is safe for concurrent use, except for Receive and Close, which belong to a
// single worker: see [Queue.Receive].
type Queue[T any] struct {
	engine      store.Engine // a store.Store or a store.Consumer
	name        string
	codec       codec.Codec[T]
	clock       clock.Clock // for the option At
	ladder      *ladder.Ladder[T]
	depth       *depth // nil means no bound
	needsKeys   bool   // Put refuses a message without a key
	unsupported error  // error of each call if the engine lacks an ability

	mu     sync.Mutex
	source Source[T] // of Receive; nil until it is open
	closed bool      // Receive has ended
}

// NewQueue returns a queue on an engine. It does not call the engine: the first Put makes
// the queue. It panics if
//
//   - the engine is nil
//   - the name is empty, is not UTF-8, has a NUL or a control character, begins or ends
//     with a space, or ends like a name that belongs to another queue
//   - T has a method Idempotent only on its pointer
//   - the options have [WithOrdered] and [WithFairByKey], or [WithOrdered] and a layer
//     with a limit
//   - the codec of [WithCodec] is for another type, or would drop or change parts of T
//
// # Types
//
// NewQueue refuses a type whose values JSON would drop or change: unexported fields,
// interfaces, and whatever else [codec.Default] refuses in a checkpoint. Export the
// field, leave it out on purpose with the tag `json:"-"`, give the type MarshalJSON and
// UnmarshalJSON, or give the queue a codec that keeps it ([WithCodec]). The types of
// [codec.Gob] are checked as well: see [codec.CheckType]. Codecs of your own decide
// themselves.
//
// Values are not checked. JSON replaces bytes in strings that are not UTF-8: use []byte
// for these. A map[string]any is allowed, and its numbers are decoded as float64, so an
// integer beyond 2^53 loses digits: use a struct or json.RawMessage to keep them.
//
// # Abilities of engines
//
// If the engine does not support an option, the methods of the queue and [Run] return an
// error that names the alternative and matches [errors.ErrUnsupported]. NewQueue does not
// panic then, since the configuration may choose the engine.
//
// An engine without leases and index (store.Consumer), such as Kafka, does not support
// [WithLease], [WithMaxDepth], [WithOrdered], [WithFairByKey] and the limits of a
// [Layer]. Put refuses [ID] and [After] there ([message.ErrRefused]); [Queue.Provider],
// [Queue.Counts] and jobs return errors. A result that is put again after an error, or
// after a worker was killed, is there twice, with the same id. Without layers, a failure
// that matches [asyncop.ErrBackendDown] is a dead letter.
func NewQueue[T any](engine store.Engine, name string, opts ...QueueOption) *Queue[T] {
	guard.RefuseNil("delivery: NewQueue", "engine", engine)
	if err := storearg.Queue(name); err != nil {
		panic("delivery: NewQueue: " + err.Error())
	}
	if storearg.PartOf(name).Role != storearg.RoleMain {
		panic(fmt.Sprintf("delivery: NewQueue: the name %q is of the layers or dead letters of a queue", name))
	}
	if strings.TrimSpace(name) != name || strings.ContainsFunc(name, unicode.IsControl) {
		panic(fmt.Sprintf("delivery: NewQueue: the name %q begins or ends with a space, or has a control character: remove it", name))
	}
	_, byValue := any(*new(T)).(predicates.Idempotent)
	_, byPointer := any(new(T)).(predicates.Idempotent)
	if byPointer && !byValue && reflect.TypeFor[T]().Kind() != reflect.Interface {
		panic(fmt.Sprintf("delivery: NewQueue: queue %q: the method Idempotent of %[2]v has a pointer receiver, so messages, which are values, do not have it: "+
			"declare it as func (v %[2]v) Idempotent() bool", name, reflect.TypeFor[T]()))
	}
	set := newQueueSettings(opts)
	set.refuseCombinations(name)
	q := &Queue[T]{engine: engine, name: name, clock: set.clock, needsKeys: set.fairByKey}
	q.codec = codecFor[T](set, name)
	q.unsupported = set.missing(engine, name)
	if q.unsupported != nil {
		set.withoutAbilities()
	}
	inspector, isInspector := engine.(store.Inspector)
	if set.maxDepth > 0 {
		q.depth = newDepth(inspector, name, set.maxDepth, set.clock)
	}
	c := ladder.Config[T]{
		Store: engine, Codec: q.codec, Main: name, DeadLetters: storearg.DeadOf(name), Remembers: set.idempotencyWindow,
		IsLayer: func(layer string) bool { return isLayer(storearg.PartOf(layer), name) },
		InOrder: set.ordered,
		Clock:   set.clock, Logger: set.logger,
		Options: []leases.SourceOption{leases.WithClock(set.clock), leases.WithLogger(set.logger)},
	}
	if set.lease > 0 {
		c.Options = append(c.Options, leases.WithLease(set.lease))
	}
	for i, l := range set.layers {
		c.Layers = append(c.Layers, ladder.Layer{
			Queue: storearg.LayerOf(name, i+1), Delay: l.Delay, Jitter: l.Jitter, MaxConcurrent: l.MaxConcurrent, Rate: l.Rate,
		})
	}
	if isInspector {
		c.Others = set.others(inspector, name)
	}
	if set.fairByKey {
		byKey, _ := engine.(store.ByKey) // missing has checked this
		c.Options = append(c.Options, leases.WithKeyRounds(byKey, set.maxPerKey))
	}
	var err error
	q.ladder, err = ladder.New(c)
	if err != nil {
		panic(fmt.Sprintf("delivery: NewQueue: queue %q: %v", name, err))
	}
	return q
}

// others returns a function that finds queues of waiting messages that only other
// versions of the program have: their layers, and the "-blocked" queue of an earlier
// version.
func (s *queueSettings) others(inspector store.Inspector, queue string) func(context.Context) ([]string, error) {
	var once sync.Once
	own := len(s.layers)
	if s.ordered {
		own = 0 // its messages do not wait in layers
	}
	return func(ctx context.Context) (others []string, err error) {
		names, err := inspector.Queues(ctx)
		for _, name := range names {
			part := storearg.PartOf(name)
			if isLayer(part, queue) && part.Layer > own {
				others = append(others, name)
			}
			if name != storearg.BlockedOf(queue) {
				continue
			}
			others = append(others, name)
			if s.ordered {
				continue
			}
			once.Do(func() {
				s.logger.Warn("weir: an earlier version has left messages that wait for others of their key: they are delivered at once, "+
					"and the order of keys does not hold for them, because the queue does not have the option WithOrdered; weir logs this once", "queue", name)
			})
		}
		return others, err
	}
}

func isLayer(part storearg.Part, queue string) bool {
	return part.Role == storearg.RoleLayer && part.Queue == queue
}

// Name returns the name of the queue.
func (q *Queue[T]) Name() string { return q.name }

// DeadLetters returns the name of its dead letters.
func (q *Queue[T]) DeadLetters() string { return storearg.DeadOf(q.name) }

// Engine returns the engine of the queue.
func (q *Queue[T]) Engine() store.Engine { return q.engine }

// PutOption sets a property of a message that is put.
type PutOption func(*store.Message)

// ID sets the id of a message. Putting an id that is already queued changes nothing, and
// Put returns nil. So a program that does not know whether its Put took effect can repeat
// it. The queue remembers an id only until the first visit of its message has ended.
//
// A later put under the same id is a message of its own (law W5). Both messages are kept
// in layers, among the dead letters and in the next queues. But a service that recognises
// ids takes the second message for a repetition of the first. So a corrected order needs
// a new id.
//
// The default is a random id. It has at most 1,024 bytes.
func ID(id string) PutOption { return func(m *store.Message) { m.Meta.ID = id } }

// After delays the first visit of a message, by the engine's clock. A message with a
// delay of 0 or less is due at once. A delay of more than 200 years counts as 200 years
// of 365 days.
func After(d time.Duration) PutOption {
	return func(m *store.Message) { m.Delay, m.Meta.Due = max(0, d), time.Time{} }
}

// At delays the first visit of a message until a time, as After does: Put computes the
// delay by the clock of the queue ([WithClock]).
func At(t time.Time) PutOption {
	// Encode replaces the due time by a delay: only the engine sets Meta.Due.
	return func(m *store.Message) { m.Delay, m.Meta.Due = 0, t }
}

// Headers adds headers to a message, for example for a tenant or a trace
// (weirotel.TraceHeaders). weir passes them on, over layers, queues and engines, and the
// function of an operator finds them in [message.Meta]. Names that begin with "Weir-" are
// weir's own; Put refuses the names that it uses. Names and values together have at most
// 1 MiB.
func Headers(headers map[string]string) PutOption {
	return func(m *store.Message) {
		if m.Meta.Headers == nil {
			m.Meta.Headers = make(map[string]string, len(headers))
		}
		maps.Copy(m.Meta.Headers, headers)
	}
}

// Key sets the key by which messages are ordered ([WithOrdered]) or taken in turn
// ([WithFairByKey]). It has at most 1,024 bytes.
func Key(key string) PutOption { return func(m *store.Message) { m.Meta.Key = key } }

// Deadline sets the time after which a message is useless. A message that is taken after
// its deadline is not given to an operator: it becomes a dead letter, with the cause
// "expired". So does a failed message whose next visit would be after the deadline. But
// the cause is "unsafe to repeat" if a call of the message is in doubt.
//
// The deadline travels with the message over layers, queues and machines. The function of
// an operator finds it in [message.Meta].
func Deadline(t time.Time) PutOption { return func(m *store.Message) { m.Meta.Deadline = t } }

// Encode returns a value as the message that Put would put, for functions such as
// postgres.PutTx. Its error matches [message.ErrRefused], or [errors.ErrUnsupported] if
// the engine lacks an ability.
func (q *Queue[T]) Encode(v T, opts ...PutOption) (store.Message, error) {
	if q.unsupported != nil {
		return store.Message{}, q.unsupported
	}
	m, err := leases.Encode(q.codec, v, message.Meta{})
	if err != nil {
		return m, fmt.Errorf("delivery: queue %q: %w", q.name, err)
	}
	for _, opt := range opts {
		opt(&m)
	}
	for name := range m.Meta.Headers {
		if settle.IsPointsTo(name) {
			return m, fmt.Errorf("delivery: queue %q: %w: a header of the user's cannot have the name %q", q.name, message.ErrRefused, name)
		}
	}
	if !m.Meta.Due.IsZero() {
		m.Delay = max(0, m.Meta.Due.Sub(q.clock.Now()))
		m.Meta.Due = time.Time{}
	}
	if err := q.checkAbilities(&m); err != nil {
		return m, fmt.Errorf("delivery: queue %q: %w", q.name, err)
	}
	if m.Meta.ID == "" {
		m.Meta.ID = rand.Text()
	}
	if err := q.checkKey(&m.Meta); err != nil {
		return m, fmt.Errorf("delivery: queue %q: %w", q.name, err)
	}
	return m, nil
}

// checkKey returns an error for a message without a key if the queue needs keys.
func (q *Queue[T]) checkKey(meta *message.Meta) error {
	if q.needsKeys && meta.Key == "" {
		return fmt.Errorf("%w: message %q lacks a key (delivery.Key), and the queue needs keys (WithFairByKey)", message.ErrRefused, guard.Shown(meta.ID))
	}
	return nil
}

// Put puts a value into the queue. When it returns nil, the message is as durable as the
// engine makes it.
func (q *Queue[T]) Put(ctx context.Context, v T, opts ...PutOption) error {
	m, err := q.Encode(v, opts...)
	if err != nil {
		return err
	}
	madeOf := []message.Delivery{nil} // not the result of a message in flight
	return q.put(ctx, []store.Message{m}, madeOf)
}

// PutAll implements [Sink]. It puts all values or none, where a transaction of the engine
// has room for them: see [store.Engine]. They keep ID, Origin, Put, Key, Provider,
// Deadline and Headers. Their visits begin with 1. To put values of your own, make
// messages of them:
//
//	message.New(order, &message.Meta{ID: order.Number}, nil)
//
// A message without an id gets a random id, which differs at each PutAll. Messages of
// [Run] always have an id.
//
// PutAll rejects two kinds of messages, and puts the others: a message whose value cannot
// be encoded, and a message that lacks the key that [WithFairByKey] needs. But if such a
// message lacks an acknowledgement, PutAll puts no value, and returns an error that
// matches [message.ErrRefused].
//
// PutAll does not put the result of a message that was purged while its call ran, and
// returns nil. The message must have come from a queue on the same value of
// [store.Engine].
func (q *Queue[T]) PutAll(ctx context.Context, messages []message.Message[T]) error {
	if q.unsupported != nil {
		return q.unsupported
	}
	all, errs := leases.EncodeAll(q.codec, messages)
	encoded := all[:0]                                      // to be put: all is filtered in place
	sources := make([]message.Message[T], 0, len(messages)) // sources[i] is the message that encoded[i] was made of
	for i, m := range messages {
		e, err := &all[i], errs[i]
		e.Meta = failed.Onward(m.Meta())
		if e.Meta.ID == "" {
			e.Meta.ID = rand.Text()
		}
		if err == nil {
			err = q.checkKey(&e.Meta)
		}
		switch {
		case err == nil:
			encoded = append(encoded, *e)
			sources = append(sources, m)
		case m.Pending():
			m.Reject(err)
		default: // no source would see a rejection, and the value would be lost (law D1)
			return fmt.Errorf("delivery: queue %q: message %q: %w", q.name, guard.Shown(m.Meta().ID), err)
		}
	}
	from := make([]message.Delivery, len(sources))
	for i, m := range sources {
		from[i] = message.DeliveryOf(m)
	}
	return settleStored(sources, q.put(ctx, encoded, from))
}

// put puts messages. from[i] is the delivery of the message in flight that ms[i] was made
// of, or nil.
func (q *Queue[T]) put(ctx context.Context, ms []store.Message, from []message.Delivery) error {
	var err error
	if q.depth != nil {
		err = q.depth.admit(ctx, len(ms))
	}
	if err == nil {
		_, err = leases.HandOver(ctx, q.engine, q.name, ms, from)
	}
	if err != nil {
		return fmt.Errorf("delivery: queue %q: %w", q.name, err)
	}
	return nil
}

// TakeFailure is the argument of [asyncop.WithFailureSink]. It hands an element that an
// operator has given up to the next layer or the dead letters. When it returns nil, the
// message of the element can be acknowledged (law D1): the element is durable there.
// There are two exceptions: the acknowledgement stores the element in the place of its
// message ([WithOrdered]), or the message was purged while its call ran.
//
// ctx is the context of the call, or of [message.NewContext]. It has the history of the
// message, to which TakeFailure adds the failure, and the received bytes. TakeFailure
// stores these bytes if the program has not changed the value, so members that the type
// lacks are kept.
//
// An element that is not a message gets a random id, the same each time it is offered. An
// element that was cut off by the end of its operator has not failed: TakeFailure returns
// an error.
func (q *Queue[T]) TakeFailure(ctx context.Context, f asyncop.Failure[T]) error {
	if q.unsupported != nil {
		return q.unsupported
	}
	return q.ladder.TakeFailure(ctx, f)
}

// Provider returns the external system that was chosen for the message of a call. So a
// request in doubt goes to the system that may have it. ctx is the context of the call,
// or of [message.NewContext].
//
//	provider, err := orders.Provider(ctx, func() string { return cheapest(o) })
//
// The first Provider of a message calls choose, and stores the choice with the message
// before it returns. The choice is the same at each attempt and visit, on all workers. A
// dead letter has it as well.
//
// Provider returns an error if the choice cannot be stored: ctx does not belong to a
// message of this queue, the engine does not keep choices, or the engine has failed. Then
// do not call the external system.
func (q *Queue[T]) Provider(ctx context.Context, choose func() string) (string, error) {
	provider, isOwn := q.ladder.Provider(ctx)
	err := q.providerError(ctx, isOwn, nil)
	if err != nil || provider != "" {
		return provider, err
	}
	provider = choose()
	return provider, q.SetProvider(ctx, provider)
}

// SetProvider stores another choice, for example after the first system has refused for
// good. See [Queue.Provider].
func (q *Queue[T]) SetProvider(ctx context.Context, provider string) error {
	if provider == "" {
		return fmt.Errorf("delivery: queue %q: the name of a provider is empty", q.name)
	}
	isOwn, err := q.ladder.SetProvider(ctx, provider)
	return q.providerError(ctx, isOwn, err)
}

// providerError returns err, or an error if the queue cannot keep a provider for the
// message of ctx, or nil.
func (q *Queue[T]) providerError(ctx context.Context, isOwn bool, err error) error {
	meta, _ := message.MetaFromContext(ctx)
	switch {
	case !hasLeases(q.engine):
		return fmt.Errorf("delivery: queue %q: the choice of a provider: a %T cannot keep it with a message; %s", q.name, q.engine, adviceOtherEngine)
	case err != nil:
		return fmt.Errorf("delivery: queue %q: the choice of a provider for message %q: %w", q.name, meta.ID, err)
	case !isOwn:
		return fmt.Errorf("delivery: queue %q: the choice of a provider: message %q was not received from this queue", q.name, meta.ID)
	}
	return nil
}

// Source returns a source of the messages of the queue and its layers. [Run] makes such a
// source of a queue itself. So you need Source only for a first source and for a
// [SourceWrapper].
//
// A first source, such as a topic or a stream, gets the layers and dead letters of the
// queue: the source also returns the messages of first. It closes first. It ends when
// first has ended and no message of the queue is in flight. Messages that wait in the
// queue and its layers stay for the next run.
//
// If first has the messages of another queue, [Run] obeys the orders of people to that
// queue as well (jobs.Jobs.PauseQueue, jobs.Jobs.HoldKey). first is nil without a first
// source.
func (q *Queue[T]) Source(first Source[T]) Source[T] {
	if q.unsupported != nil {
		if guard.IsNil(first) {
			return failingSource[T]{err: q.unsupported}
		}
		return failingSource[T]{q.unsupported, first}
	}
	if guard.IsNil(first) {
		return &queueSource[T]{Source: q.ladder.Source(nil), queue: q}
	}
	var all []ladder.Source[T] // first, and the sources that it wraps
	eachSource(first, func(s Source[T]) bool {
		all = append(all, s)
		return true
	})
	wrapped := all[1:]
	return &queueSource[T]{q.ladder.Source(first, wrapped...), q, first}
}

// Receive implements [Source], for a program that does without [Run]: the first call
// opens a source, and Close closes it. A single goroutine at a time may call it. After
// Close it returns an error.
func (q *Queue[T]) Receive(ctx context.Context, n int) ([]message.Message[T], error) {
	s, err := q.opened()
	if err != nil {
		return nil, err
	}
	return s.Receive(ctx, n)
}

func (q *Queue[T]) opened() (Source[T], error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return nil, fmt.Errorf("delivery: queue %q: Receive after Close; Source makes another source", q.name)
	}
	if q.source == nil {
		q.source = q.Source(nil)
	}
	return q.source, nil
}

// Close releases messages that were received and not settled, and waits until the
// settlements of the others are recorded. It ends Receive for good. It closes neither the
// engine nor the source of a [Run]; the other methods of the queue can be used after it.
func (q *Queue[T]) Close(ctx context.Context) error {
	q.mu.Lock()
	s := q.source
	q.source, q.closed = nil, true
	q.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Close(ctx)
}

// QueueCounts are the messages of a [Queue].
type QueueCounts struct {
	Waiting  int           // in the queue: due, delayed or in flight
	Retrying int           // in layers, and in an earlier version's "<name>-blocked"
	Dead     int           // dead letters
	Held     int           // of all these: not taken until released (package jobs)
	Age      time.Duration // of the oldest message in the queue
}

// Counts counts the messages of the queue, then of its layers, then the dead letters.
// Since messages move in that order, every message is counted, some perhaps twice.
func (q *Queue[T]) Counts(ctx context.Context) (c QueueCounts, err error) {
	inspector, ok := q.engine.(store.Inspector)
	if !ok {
		err := fmt.Errorf("delivery: queue %q: a %T cannot count messages: it is not a store.Inspector", q.name, q.engine)
		if _, ok := q.engine.(store.Consumer); ok {
			err = fmt.Errorf("%w: a view of a topic counts them (kafka.OpenView), and so does weir layers --db 'kafka://HOST:PORT?group=%s'", err, q.name)
		}
		return c, err
	}
	var errs []error
	count := func(name string) store.Counts {
		n, err := inspector.Count(ctx, name, store.Filter{})
		errs = append(errs, err)
		c.Held += n.Held
		return n
	}
	main := count(q.name)
	c.Waiting, c.Age = main.Messages, main.Age
	names, err := inspector.Queues(ctx)
	errs = append(errs, err)
	for _, name := range names {
		if isLayer(storearg.PartOf(name), q.name) || name == storearg.BlockedOf(q.name) {
			c.Retrying += count(name).Messages
		}
	}
	c.Dead = count(q.DeadLetters()).Messages
	return c, errors.Join(errs...)
}
