package delivery

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
)

// QueueOption is a setting of [NewQueue]. Of several options of a kind the last one
// counts, except that the layers of [WithLayers] and [RetryAfter] are joined.
type QueueOption interface{ applyToQueue(s *queueSettings) }

type queueOption func(*queueSettings)

func (o queueOption) applyToQueue(s *queueSettings) { o(s) }

type queueSettings struct {
	layers            []Layer
	codec             any           // a codec.Codec[T]; nil means JSON
	codecOf           string        // the type T of codec
	lease             time.Duration // 0 means the default
	maxDepth          int           // 0 means no limit
	idempotencyWindow time.Duration // 0 means that the service does not recognise ids
	ordered           bool
	fairByKey         bool
	maxPerKey         int // messages of a key in flight, with fairByKey; 0 means no limit
	clock             clock.Clock
	logger            *slog.Logger
}

func newQueueSettings(opts []QueueOption) *queueSettings {
	s := &queueSettings{clock: clock.New(), logger: guard.Logger(nil)}
	for i, opt := range opts {
		if opt == nil {
			panic(fmt.Sprintf("delivery: NewQueue: option %d is nil", i+1))
		}
		opt.applyToQueue(s)
	}
	return s
}

// Layer is a place in which failed messages wait for their next visit.
type Layer struct {
	Delay         time.Duration // required: above 0
	Jitter        float64       // up to this share of the delay is added at random: 0 to 1
	MaxConcurrent int           // most messages of the layer in flight in this process; 0 means no limit
	Rate          float64       // most messages of the layer that this process takes in a second; 0 means no limit
}

// WithLayers adds layers in which failed messages wait for their next visit, in this
// order: see [RetryAfter], the short form. The default is no layers. It panics if a field
// of a layer is out of its range.
func WithLayers(layers ...Layer) QueueOption {
	for i, l := range layers {
		if l.Delay <= 0 || l.MaxConcurrent < 0 || !(l.Rate >= 0) || !(l.Jitter >= 0 && l.Jitter <= 1) {
			panic(fmt.Sprintf("delivery: WithLayers: layer %d: %+v: want a positive Delay, no negative limit, and a Jitter from 0 to 1",
				i+1, l))
		}
	}
	return queueOption(func(s *queueSettings) { s.layers = append(s.layers, layers...) })
}

// RetryAfter adds a layer for each delay. A message waits for up to a fifth longer, so
// that the messages of an outage do not return all at once. Without layers, each failure
// that the operator does not retry is a dead letter, except in an outage of a backend.
// RetryAfter panics if a delay is not positive.
//
// A failure whose call may have taken effect becomes a dead letter at once, even with
// layers. There are two exceptions. A second call does no harm, by the strategy or by a
// method Idempotent() bool of the element. Or the service recognises the id of a
// request ([WithIdempotencyWindow]).
//
// # Outages
//
// A message that was not called, because its backend was down, is released, and its visit
// does not count. But a message has failed if it was called, and then waited for its
// backend until the timeout of its operator had passed ([asyncop.ErrBackendDown]). If
// such a message has used up its layers, it waits in the last layer again. Without layers
// it waits in the queue, for a minute. After 100 visits in all it becomes a dead letter.
//
// It becomes a dead letter earlier if the service has answered other messages since the
// visit before: then the message itself may be the reason. But after the first visit
// without a further layer it waits in any case.
func RetryAfter(delays ...time.Duration) QueueOption {
	layers := make([]Layer, len(delays))
	for i, d := range delays {
		if d <= 0 {
			panic(fmt.Sprintf("delivery: RetryAfter: delay %d is %v: want more than 0", i+1, d))
		}
		layers[i] = Layer{Delay: d, Jitter: 0.2}
	}
	return WithLayers(layers...)
}

// WithCodec sets the codec that encodes the values of the queue on the engine. The
// default is codec.JSON. All programs that use a queue must have the same codec.
// WithCodec panics if c is nil, and [NewQueue] panics if T is not the type of the queue,
// or if c would drop or change parts of T ([codec.CheckType]).
func WithCodec[T any](c codec.Codec[T]) QueueOption {
	guard.RefuseNil("delivery: WithCodec", "codec", c)
	of := fmt.Sprintf("%T", new(T))[1:] // without the star
	return queueOption(func(s *queueSettings) { s.codec, s.codecOf = c, of })
}

// codecFor returns the codec of a queue with values of type T. It panics if the codec
// would drop or change parts of T (law W6).
func codecFor[T any](s *queueSettings, name string) codec.Codec[T] {
	c := typedCodec[T](s, name)
	err := codec.CheckType(c)
	if err != nil {
		panic(fmt.Sprintf("delivery: NewQueue: queue %q: its values would not be decoded as they were put: %v: "+
			"change the type, leave the part out with the tag `json:\"-\"`, or give the queue another codec (WithCodec)", name, err))
	}
	return c
}

func typedCodec[T any](s *queueSettings, name string) codec.Codec[T] {
	if s.codec == nil {
		return codec.JSON[T]()
	}
	c, ok := s.codec.(codec.Codec[T])
	if !ok {
		of := fmt.Sprintf("%T", new(T))[1:]
		panic(fmt.Sprintf("delivery: NewQueue: queue %q has values of type %s, and WithCodec a codec of %s: give it a codec of %s",
			name, of, s.codecOf, of))
	}
	return c
}

// WithLease sets how long the messages of a worker that was killed are kept from other
// workers. The default is 30 s. A worker renews its leases each third of it. WithLease
// panics if d is less than 1 ms.
func WithLease(d time.Duration) QueueOption {
	if d < time.Millisecond {
		panic(fmt.Sprintf("delivery: WithLease: a lease of %v is shorter than 1ms", d))
	}
	return queueOption(func(s *queueSettings) { s.lease = d })
}

// WithMaxDepth bounds the number of messages in the queue that wait for their first visit
// or are in flight. The default is no bound. A Put beyond it fails with an error that
// matches [store.ErrFull] (package delivery/store) and names the queue. A worker whose
// sink is full waits until there is room. A PutAll of more than n messages never fits:
// its error matches [message.ErrRefused]. WithMaxDepth panics if n is less than 1. The
// engine must be a [store.Inspector].
//
// The bound does not apply to layers and dead letters, nor to messages that are put in a
// transaction (postgres.PutTx and others). The queue is counted once a second at most. So
// other programs may exceed the bound within that second. Until the next count, a Put
// under an id that is already queued counts as another message.
func WithMaxDepth(n int) QueueOption {
	if n < 1 {
		panic(fmt.Sprintf("delivery: WithMaxDepth: %d is less than 1: leave the option out for a queue without a bound", n))
	}
	return queueOption(func(s *queueSettings) { s.maxDepth = n })
}

// WithIdempotencyWindow sets the time for which the called service recognises a repeated
// request by its id (AnswerAge of exactlyonce/server). Subtract the difference between
// the clocks of the two machines.
//
// With the option, messages with a call in doubt go to the layers. The next visit repeats
// the call under the same id, as a Tracker of exactlyonce/caller with a Name does. By
// default such messages become dead letters. WithIdempotencyWindow panics if d is not
// positive.
func WithIdempotencyWindow(d time.Duration) QueueOption {
	if d <= 0 {
		panic(fmt.Sprintf("delivery: WithIdempotencyWindow: %v is not positive: leave the option out if the service does not recognise ids", d))
	}
	return queueOption(func(s *queueSettings) { s.idempotencyWindow = d })
}

// WithOrdered delivers the messages of a key ([Key]) one at a time, in the order in which
// they were put, by any number of workers: across retries, kills and restarts. Two puts
// are in order if the first returned before the second began, or if they are in one call
// or transaction. By default later messages of a key overtake a message that waits.
//
// A failed message waits for its next visit in its place in the queue, for the delay of
// its layer. Later messages of its key wait for it; other keys do not. Later messages
// also wait for a message that is delayed ([After], [At]), released, or held. They no
// longer wait when the message is a dead letter or was purged. A message without a key
// does not wait for others.
//
// All workers of the queue must have the option, or the order does not hold: weir does
// not notice a worker without it, or with [WithFairByKey] instead. These messages do not
// keep their place in the order:
//
//   - A dead letter that is merged back is the last message of its key.
//   - A part of a message, and an element that is not a message of the queue, are put at
//     the end of their key when they fail.
//   - The messages of a first source ([Queue.Source]) are not in order. Put them into the
//     queue instead.
//   - Messages that an earlier version of the program has left in layers, or in the queue
//     "<name>-blocked", go first: docs/ladder.md.
//
// Messages that wait for another visit count for [WithMaxDepth], and as waiting in
// [Queue.Counts].
//
// A key with many messages does not keep other keys waiting, so [WithFairByKey] is not
// needed: [NewQueue] panics if both are set, or if a layer has a limit of its own.
// Memory, SQLite and PostgreSQL support the option ([store.InOrder]).
func WithOrdered() QueueOption {
	return queueOption(func(s *queueSettings) { s.ordered = true })
}

func (s *queueSettings) refuseCombinations(name string) {
	refuse := func(are bool, options, remedy string) {
		if are {
			panic(fmt.Sprintf("delivery: NewQueue: queue %q: %s do not go together: %s", name, options, remedy))
		}
	}
	isLimited := func(l Layer) bool { return l.MaxConcurrent > 0 || l.Rate > 0 }
	refuse(s.ordered && s.fairByKey, "WithOrdered and WithFairByKey", "WithOrdered is fair by key already, so leave WithFairByKey out")
	refuse(s.ordered && slices.ContainsFunc(s.layers, isLimited), "WithOrdered and a layer with a limit",
		"messages wait in the queue itself, so leave MaxConcurrent and Rate of the layers out")
}

// WithFairByKey takes the messages of the keys ([Key]) in rounds: each key in turn. So
// other keys do not wait behind a key that floods the queue, such as a customer with a
// large import. By default the oldest messages are taken first. Give the operator at most
// as many slots as calls, and make it unordered: elements that have a slot are called in
// their order.
//
// At most n messages of a key are in flight, from the queue and all its layers, in all
// workers together. 0 means no limit. A message is in flight until the engine has recorded
// its outcome. Two kinds of messages are neither counted nor limited: messages without a
// key, and the messages of the first source of [Queue.Source]. If other workers have
// reached the limit of a key, a worker looks for its messages again every 100 ms.
//
// All workers of the queue must have the option, with the same n. A worker without it does
// not keep the limit. A worker of an earlier version keeps the limit for itself alone. The
// messages that such workers have in flight do not count for the others.
//
// If all workers have the option, a key has more than n calls only if calls outlive the
// leases of their messages:
//
//   - calls that ignore their contexts
//   - calls of a worker that could not renew its leases for as long as they last
//     ([WithLease])
//   - calls whose leases a failover of the database has lost
//
// Whatever n is, the messages of two kinds of keys stay in the queue and its layers: keys
// that people hold (jobs.Jobs.HoldKey), and keys whose tenant is down or held at the
// backend of the operator (backend.TenantBreaker).
//
// Each message needs a key: Put refuses a message without a key ([message.ErrRefused]).
// Other programs may put messages without a key. SQLite and PostgreSQL look for them only
// among the oldest 100 due messages. So they wait behind 100 older messages that are not
// taken, for instance because people hold their key.
//
// Finding the next key takes an index step for each key in the queue. The engine must be a
// [store.ByKey]. WithFairByKey panics if n is negative.
func WithFairByKey(n int) QueueOption {
	if n < 0 {
		panic(fmt.Sprintf("delivery: WithFairByKey: %d is negative: 0 means no limit", n))
	}
	return queueOption(func(s *queueSettings) { s.fairByKey, s.maxPerKey = true, n })
}
