package kafka

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
)

// recreate deletes a topic and creates it again.
func (c *cluster) recreate(topic string) {
	c.t.Helper()
	deleted, err := kadm.NewClient(c.admin).DeleteTopics(c.t.Context(), topic)
	require.NoError(c.t, err)
	require.NoError(c.t, deleted.Error())
	eventually(c.t, func() bool {
		err := c.CreateTopic(topic, 1, nil)
		if err != nil {
			require.ErrorIs(c.t, err, kerr.TopicAlreadyExists, "it is being deleted")
		}
		return err == nil
	}, "the topic is created again")
}

// Messages of a topic that was deleted and created again have other ids than messages at
// the same offsets of the topic before. Its queue has layers and dead letters beside
// Kafka, which recognise a message by its id.
func TestSource_TopicIsRecreated(t *testing.T) {
	c := newCluster(t, 1, "orders", "orders-dead")
	e := c.engine()
	beside := memory.Open()
	orders := queueOn(beside, "orders")
	fail := func(values ...string) {
		c.produce("orders", 1, values...)
		call := asyncop.Blocking(func(context.Context, string) (string, error) { return "", errors.New("down") })
		op := asyncop.UnorderedWait(call, time.Minute, 10, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(silent))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			_, err := delivery.Run(ctx, orders.Source(queueOn(e, "orders").Source(nil)), op, queueOn(beside, "done"),
				delivery.WithLogger(silent), delivery.WithFloodGuard(1, 100))
			ended <- err
		}()
		require.Eventually(t, func() bool {
			all, err := kadm.NewClient(c.admin).FetchOffsets(t.Context(), "orders")
			at, ok := all.Lookup("orders", 0)
			return err == nil && ok && at.At == int64(len(values))
		}, time.Minute, 10*time.Millisecond, "all are settled")
		cancel()
		require.NoError(t, <-ended)
	}
	fail("0", "1", "2")
	c.recreate("orders")
	offsets, err := kadm.NewClient(c.admin).FetchOffsets(t.Context(), "orders")
	require.NoError(t, err)
	if at, ok := offsets.Lookup("orders", 0); ok && at.At > 0 { // brokers forget the offsets of a topic that is deleted
		_, err := kadm.NewClient(c.admin).DeleteGroups(t.Context(), "orders")
		require.NoError(t, err)
	}
	fail("3", "4", "5")

	dead, err := beside.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	var got []string
	ids := map[string]bool{}
	for _, d := range dead {
		got = append(got, string(d.Payload))
		ids[d.Meta.ID] = true
		require.True(t, strings.HasPrefix(d.Meta.ID, "orders:"), d.Meta.ID)
	}
	require.ElementsMatch(t, []string{"0", "1", "2", "3", "4", "5"}, got)
	require.Len(t, ids, 6)
}
