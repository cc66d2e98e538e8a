package delivery_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// topics is an engine without leases.
type topics struct {
	mu       sync.Mutex
	stored   map[string][]store.Message
	put      func(queue string, ms []store.Message) error // nil if all messages are stored
	consumed store.Consumption
	begin    func(ctx context.Context) error // nil if it begins at once
	rejected []error
	sent     bool
	value    string
}

func (e *topics) Put(_ context.Context, queue string, ms ...store.Message) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.put != nil {
		return e.put(queue, ms)
	}
	if e.stored == nil {
		e.stored = map[string][]store.Message{}
	}
	e.stored[queue] = append(e.stored[queue], ms...)
	return nil
}

func (e *topics) Close() error { return nil }

func (e *topics) Consume(ctx context.Context, c store.Consumption) (store.Receiver, error) {
	e.consumed = c
	if e.begin != nil {
		if err := e.begin(ctx); err != nil {
			return nil, err
		}
	}
	return topicsReceiver{e}, nil
}

type topicsReceiver struct{ *topics }

func (r topicsReceiver) Receive(ctx context.Context, _ int) ([]message.Message[[]byte], error) {
	if !r.sent {
		r.topics.sent = true
		return []message.Message[[]byte]{message.New([]byte(r.value), &message.Meta{ID: "1", Visit: 1}, func(v message.Settlement) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.topics.rejected = append(r.topics.rejected, v.Err)
		})}, nil
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (topicsReceiver) Close(context.Context) error { return nil }

// An ability that the engine lacks is an error of each call, which names the option and
// the alternative. NewQueue returns, since the engine may be a matter of configuration.
func TestQueue_AbilityThatTheEngineLacks(t *testing.T) {
	for want, q := range map[string]*delivery.Queue[string]{
		"session timeout of its client": delivery.NewQueue[string](&topics{}, "orders", delivery.WithLease(time.Second)),
		"WithMaxDepth: it has no":       delivery.NewQueue[string](&topics{}, "orders", delivery.WithMaxDepth(1)),
		"KeyOrderedWait":                delivery.NewQueue[string](&topics{}, "orders", delivery.WithOrdered()),
		"WithFairByKey: it has no":      delivery.NewQueue[string](&topics{}, "orders", delivery.WithFairByKey(1)),
		"the limits of layer 2": delivery.NewQueue[string](&topics{}, "orders",
			delivery.WithLayers(delivery.Layer{Delay: 1}, delivery.Layer{Delay: 1, Rate: 1})),
		"the limits of layer 1": delivery.NewQueue[string](&topics{}, "orders",
			delivery.WithLayers(delivery.Layer{Delay: 1, MaxConcurrent: 1})),
		"it is neither a store.Store":                          delivery.NewQueue[string](struct{ store.Engine }{memory.Open()}, "orders"),
		"WithMaxDepth: it cannot count":                        delivery.NewQueue[string](struct{ store.Store }{memory.Open()}, "orders", delivery.WithMaxDepth(1)),
		"WithOrdered: it cannot take the messages of a key in": delivery.NewQueue[string](struct{ store.Store }{memory.Open()}, "orders", delivery.WithOrdered()),
		"WithFairByKey: it cannot take by key, since it is no": delivery.NewQueue[string](struct{ store.Store }{memory.Open()}, "orders", delivery.WithFairByKey(1)),
	} {
		check := func(err error) {
			t.Helper()
			require.ErrorIs(t, err, errors.ErrUnsupported)
			require.ErrorContains(t, err, `delivery: queue "orders": `)
			require.ErrorContains(t, err, want)
			require.ErrorContains(t, err, "PostgreSQL")
		}
		check(q.Put(t.Context(), "a"))
		check(q.PutAll(t.Context(), []message.Message[string]{message.New("a", &message.Meta{ID: "1"}, nil)}))
		_, err := q.Encode("a")
		check(err)
		_, err = q.Receive(t.Context(), 1)
		check(err)
		check(q.TakeFailure(t.Context(), asyncop.Failure[string]{Element: "a", Err: errors.New("down")}))

		other := delivery.NewQueue[string](memory.Open(), "other")
		_, err = delivery.Run(t.Context(), q, upper(), other)
		check(err)
		_, err = delivery.Run(t.Context(), other, upper(), q)
		check(err)
		_, err = delivery.Run(t.Context(), q.Source(other), upper(), other)
		check(err)
	}
	text := ""
	func() {
		defer func() { text, _ = recover().(string) }()
		delivery.NewQueue[string](&topics{}, "orders", delivery.WithFairByKey(1), delivery.WithOrdered())
	}()
	require.Contains(t, text, "do not go together", "a mistake in the program")
}

// upper is an operator that answers at once.
func upper() *asyncop.AsyncWaitOperator[string, string] {
	return asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, s string) (string, error) { return s, nil }), time.Minute, 1,
		asyncop.WithFailureSink(func(context.Context, asyncop.Failure[string]) error { return nil }))
}

// An engine without leases refuses the options of a message that it does not support.
func TestQueuePut_ToAConsumer(t *testing.T) {
	e := &topics{}
	q := delivery.NewQueue[string](e, "orders")
	require.NoError(t, q.Put(t.Context(), "a", delivery.Key("ann"), delivery.Deadline(time.Now())))
	for _, opt := range []delivery.PutOption{delivery.ID("7"), delivery.After(time.Second)} {
		err := q.Put(t.Context(), "a", opt)
		require.ErrorIs(t, err, message.ErrRefused)
		require.ErrorContains(t, err, "PostgreSQL")
	}
	require.Len(t, e.stored["orders"], 1)
	_, err := q.Provider(t.Context(), func() string { panic("not called") })
	require.ErrorContains(t, err, "PostgreSQL")
	require.ErrorContains(t, q.SetProvider(t.Context(), "north"), "PostgreSQL")
	_, err = q.Counts(t.Context())
	require.Error(t, err)
}

// After a Put that stored a part of a batch, stored messages are acknowledged, messages
// that can never be stored are rejected, and the rest stays the caller's (laws D1, W2).
func TestConsumer_StoresAPartOfABatch(t *testing.T) {
	failed := errors.New("no leader")
	e := &topics{put: func(string, []store.Message) error {
		return &store.PutError{Errs: []error{nil, failed, message.ErrRefused}}
	}}
	q := delivery.NewQueue[string](e, "orders")
	settlements := make([]*message.Settlement, 3)
	ms := make([]message.Message[string], 3)
	for i := range ms {
		ms[i] = message.New("v", &message.Meta{ID: string(rune('a' + i))}, func(v message.Settlement) { settlements[i] = &v })
	}
	err := q.PutAll(t.Context(), ms)
	require.ErrorIs(t, err, failed)
	require.ErrorContains(t, err, "2 of 3 messages were not stored: no leader")
	require.Equal(t, message.Done, settlements[0].Kind)
	require.Nil(t, settlements[1])
	require.Equal(t, message.Rejected, settlements[2].Kind)

	e.put = func(string, []store.Message) error { return &store.PutError{Errs: []error{nil, message.ErrRefused}} }
	require.NoError(t, q.PutAll(t.Context(), []message.Message[string]{ms[1], message.New("v", &message.Meta{ID: "d"}, func(message.Settlement) {})}))
	require.Error(t, q.PutAll(t.Context(), []message.Message[string]{{}, {}}), "nobody would see that one is refused")
}

type charged struct{ Amount int }

// Failed messages go to the layers with their bytes as received; messages that cannot be
// decoded are rejected.
func TestConsumer_KeepsTheBytes(t *testing.T) {
	const whole = `{"Amount":7,"Note":"a field that the type lacks"}`
	e := &topics{value: whole}
	q := delivery.NewQueue[charged](e, "orders", delivery.RetryAfter(time.Minute))
	s := q.Source(nil)
	ms, err := s.Receive(t.Context(), 10)
	require.NoError(t, err)
	require.Equal(t, []string{"orders-retry-1"}, e.consumed.Layers)
	require.Equal(t, "orders-dead", e.consumed.Dead)
	require.True(t, e.consumed.IsLayer("orders-retry-7"))
	require.False(t, e.consumed.IsLayer("others-retry-7"))
	ctx := message.NewContext(t.Context(), ms[0])
	require.NoError(t, q.TakeFailure(ctx, asyncop.Failure[charged]{Element: ms[0].Value, Err: context.DeadlineExceeded}))
	require.Equal(t, whole, string(e.stored["orders-retry-1"][0].Payload))
	require.NoError(t, q.TakeFailure(ctx, asyncop.Failure[charged]{Element: charged{8}, Err: context.DeadlineExceeded}))
	require.JSONEq(t, `{"Amount":8}`, string(e.stored["orders-retry-1"][1].Payload), "the program has changed it")
	require.NoError(t, s.Close(t.Context()))
	_, err = s.Receive(t.Context(), 1)
	require.Error(t, err)

	e = &topics{value: "no JSON"}
	s = delivery.NewQueue[charged](e, "orders").Source(nil)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = s.Receive(ctx, 10)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Len(t, e.rejected, 1)
	require.NoError(t, s.Close(t.Context()))
}

// An engine that is slow to begin is not asked again by each Receive, which others may
// end all the time (law D4). It is asked again after an error, and a Close ends it.
func TestConsumer_SlowToBegin(t *testing.T) {
	begun, release := 0, make(chan error)
	e := &topics{value: `"v"`, begin: func(ctx context.Context) error {
		begun++
		select {
		case err := <-release:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}}
	q := delivery.NewQueue[string](e, "orders")
	s := q.Source(nil)
	short := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := s.Receive(ctx, 1)
		return err
	}
	require.ErrorIs(t, short(), context.DeadlineExceeded)
	require.ErrorIs(t, short(), context.DeadlineExceeded)
	away := errors.New("away")
	release <- away
	_, err := s.Receive(t.Context(), 1)
	require.ErrorIs(t, err, away)
	require.Equal(t, 1, begun)
	require.ErrorIs(t, short(), context.DeadlineExceeded)
	release <- nil
	ms, err := s.Receive(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "v", ms[0].Value)
	require.Equal(t, 2, begun)
	require.NoError(t, s.Close(t.Context()))

	s = q.Source(nil)
	require.ErrorIs(t, short(), context.DeadlineExceeded)
	require.NoError(t, s.Close(t.Context()))
	require.Error(t, short())
}
