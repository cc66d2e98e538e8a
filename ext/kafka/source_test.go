package kafka

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/deliverytest"
)

// TestSource runs the suite. Its tests of sources that share a queue do not fit: a
// partition has one owner, which also gets back the messages that it releases.
// TestRebalances covers them.
func TestSource(t *testing.T) {
	t.Parallel()
	const partitions = 3
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		t.Parallel() // the rules wait
		c := newCluster(t, partitions, "orders")
		return deliverytest.Queue[string]{
			Open:  func() (delivery.Source[string], error) { return c.open("orders") },
			Put:   func(values ...string) error { return c.write("orders", partitions, values...) },
			Keeps: true,
		}
	}, strconv.Itoa)
}

func TestCloseTwice(t *testing.T) {
	c := newCluster(t, 1, "orders")
	s := c.source("orders")
	require.NoError(t, s.Close(context.Background()))
	require.NoError(t, s.Close(context.Background()))
	_, err := s.Receive(t.Context(), 1)
	require.ErrorIs(t, err, errClosed)
}

// Regression (laws D1 and D4): a Close whose context has ended still records settlements
// and leaves the group. Without that, the next member waited for the messages of a member
// that stayed in the group without delivering them.
func TestCloseWhoseContextHasEnded(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.produce("orders", 1, "0", "1")
	a := c.source("orders", withCommitInterval(time.Hour))
	receive(t, a, 2)[0].Ack()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_ = a.Close(ended)
	require.Equal(t, []string{"1"}, values(receive(t, c.source("orders"), 1)))
}

// A worker that starts in an outage: the first join of its group fails. The client then
// reports lost partitions on a goroutine of its own, before newSource has returned.
func TestNewSource_FirstJoinFails(t *testing.T) {
	c := &cluster{t: t}
	fake, err := kfake.NewCluster(kfake.NumBrokers(10), kfake.SeedTopics(1, "orders")) // ten, so that few requests share a connection
	require.NoError(t, err)
	t.Cleanup(fake.Close)
	c.fake, c.addrs = fake, fake.ListenAddrs()
	c.produce("orders", 1, "0")
	var joins atomic.Int32
	fake.ControlKey(int16(kmsg.JoinGroup), func(r kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if joins.Add(1) > 2 {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.JoinGroupResponse)
		resp.ErrorCode = kerr.UnknownServerError.Code
		return resp, nil, true
	})
	fake.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if topics := r.(*kmsg.MetadataRequest).Topics; topics == nil || len(topics) > 0 {
			return nil, nil, false
		}
		fake.SleepControl(func() { // newSource asks whether the brokers answer. On a quick machine they do so after the second join
			for end := time.Now().Add(10 * time.Second); joins.Load() < 2 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		})
		return nil, nil, false
	})
	s := c.source("orders")
	eventually(t, func() bool {
		ms, err := s.Receive(t.Context(), 1)
		return err == nil && len(ms) == 1 && ms[0].Value == "0"
	}, "the client joins again, after a pause")
}
