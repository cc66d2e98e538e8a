package delivery_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// A failure is stored with the bytes as received if the message came from the queue and
// its value did not change. In every other case the value is stored.
func TestQueueTakeFailure_BytesAsReceived(t *testing.T) {
	const whole = `{"Amount":7,"Note":"a field that the type lacks"}`
	refused := asyncop.Failure[charged]{Err: errBusy, Reason: predicates.NewRejection("NO")}
	engine := memory.Open()
	orders := delivery.NewQueue[charged](engine, "orders", noLog)
	others := delivery.NewQueue[charged](engine, "others", noLog)
	require.NoError(t, engine.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "a"}, Schema: []byte("json"), Payload: []byte(whole)}))
	ms, err := orders.Receive(t.Context(), 1)
	require.NoError(t, err)
	m := ms[0]
	watched := message.Watch(m, m.Settle)
	parts := message.Split(watched, m.Value, m.Value)
	renamed := m.Meta()
	renamed.ID = "b"
	for name, c := range map[string]struct {
		ctx  context.Context
		q    *delivery.Queue[charged]
		v    charged
		want string
	}{
		"received":       {message.NewContext(t.Context(), m), orders, m.Value, whole},
		"watched":        {message.NewContext(t.Context(), watched), orders, m.Value, whole},
		"With":           {message.NewContext(t.Context(), message.With(m, "x")), orders, m.Value, whole},
		"changed":        {message.NewContext(t.Context(), m), orders, charged{8}, `{"Amount":8}`},
		"a part":         {message.NewContext(t.Context(), parts[0]), orders, m.Value, `{"Amount":7}`},
		"another queue":  {message.NewContext(t.Context(), m), others, m.Value, `{"Amount":7}`},
		"renamed":        {message.ContextWithMeta(message.NewContext(t.Context(), m), renamed), orders, m.Value, `{"Amount":7}`},
		"without handle": {message.ContextWithMeta(t.Context(), m.Meta()), orders, m.Value, `{"Amount":7}`},
	} {
		t.Run(name, func(t *testing.T) {
			f := refused
			f.Element = c.v
			require.NoError(t, c.q.TakeFailure(c.ctx, f))
			dead := entriesOf(t, engine, c.q.DeadLetters())
			require.Len(t, dead, 1)
			require.Equal(t, c.want, string(dead[0].Payload))
			_, err := engine.Purge(t.Context(), c.q.DeadLetters(), store.Filter{})
			require.NoError(t, err)
			if c.q == orders && c.want == whole {
				require.NoError(t, orders.SetProvider(c.ctx, "north"))
				return
			}
			if name != "changed" {
				require.ErrorContains(t, c.q.SetProvider(c.ctx, "north"), "was not received from this queue")
			}
		})
	}
	m.Ack()
	require.Error(t, orders.SetProvider(message.NewContext(t.Context(), m), "south"), "it is settled")
	require.NoError(t, orders.Close(t.Context()))
}

// The source of one queue may be the first of another: the other queue has the messages
// of both.
func TestQueueSource_FirstOfAnotherQueue(t *testing.T) {
	const whole = `{"Amount":7,"Note":"a field that the type lacks"}`
	engine := memory.Open()
	inbox := delivery.NewQueue[charged](engine, "inbox", noLog)
	orders := delivery.NewQueue[charged](engine, "orders", noLog)
	require.NoError(t, engine.Put(t.Context(), "inbox", store.Message{Meta: message.Meta{ID: "a"}, Schema: []byte("json"), Payload: []byte(whole)}))
	source := orders.Source(inbox.Source(nil))
	ms, err := source.Receive(t.Context(), 1)
	require.NoError(t, err)
	f := asyncop.Failure[charged]{Element: ms[0].Value, Err: errBusy, Reason: predicates.NewRejection("NO")}
	require.NoError(t, orders.TakeFailure(message.NewContext(t.Context(), ms[0]), f))
	require.Equal(t, whole, string(entriesOf(t, engine, orders.DeadLetters())[0].Payload))
	require.NoError(t, source.Close(t.Context()))
}

// A result has the provider that was chosen in the same visit, and not the provider that
// the message was received with.
func TestQueuePutAll_ProviderChosenInTheSameVisit(t *testing.T) {
	engine := memory.Open()
	orders := delivery.NewQueue[charged](engine, "orders", noLog)
	receipts := delivery.NewQueue[charged](engine, "receipts", noLog)
	require.NoError(t, orders.Put(t.Context(), charged{7}, delivery.ID("a")))
	ms, err := orders.Receive(t.Context(), 1)
	require.NoError(t, err)
	m := ms[0]
	received := m.Meta()
	provider, err := orders.Provider(message.NewContext(t.Context(), m), func() string { return "north" })
	require.NoError(t, err)
	require.Equal(t, "north", provider)
	watched := message.Watch(m, m.Settle)
	parts := message.Split(watched, charged{8}, charged{9})
	require.NoError(t, receipts.PutAll(t.Context(), parts))
	for _, part := range parts {
		part.Ack()
	}
	for _, e := range entriesOf(t, engine, "receipts") {
		require.Equal(t, "north", e.Meta.Provider, "the result %s", e.Meta.ID)
	}
	require.Len(t, entriesOf(t, engine, "receipts"), 2)
	require.Equal(t, "north", m.Meta().Provider, "for sinks of other kinds")
	others := delivery.NewQueue[charged](engine, "others", noLog)
	ctx := message.ContextWithMeta(message.NewContext(t.Context(), m), received)
	require.NoError(t, others.TakeFailure(ctx, asyncop.Failure[charged]{Err: errBusy, Reason: predicates.NewRejection("NO")}))
	require.Equal(t, "north", entriesOf(t, engine, others.DeadLetters())[0].Meta.Provider, "a failure, for another queue")
	require.NoError(t, orders.Close(t.Context()))
}
