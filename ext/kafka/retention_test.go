package kafka

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// limited returns a cluster whose brokers limit the size of all topics.
func limited(t *testing.T) *cluster {
	t.Helper()
	k, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"log.retention.bytes": "20000"}))
	require.NoError(t, err)
	t.Cleanup(k.Close)
	c := &cluster{t: t, fake: k, addrs: k.ListenAddrs()}
	c.admin = c.client()
	return c
}

// Law D5: the limit of the brokers removes no message from topics that the engine has
// made.
func TestEngine_BrokersLimitTheSizeOfTopics(t *testing.T) {
	c := limited(t)
	e := c.engine(WithPartitions(1), WithReplicas(1))
	for _, topic := range []string{"orders", "orders-retry-1", "orders-dead"} {
		for i := range 6 {
			m := store.Message{Meta: message.Meta{ID: fmt.Sprint(i)}, Payload: bytes.Repeat([]byte("x"), 10_000)}
			require.NoError(t, e.Put(t.Context(), topic, m))
		}
	}
	c.fake.ApplyRetention()
	for _, topic := range []string{"orders", "orders-retry-1", "orders-dead"} {
		require.Zero(t, c.start(topic, 0), topic)
	}
}

// Law D5: a topic that exists and would lose messages is refused, with the command that
// changes it.
func TestEngine_TopicThatWouldLoseMessages(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		topic   string
		configs map[string]string
		want    string // part of the error; "" if the topic is accepted
	}{
		"dead letters, age":        {"q-dead", map[string]string{"retention.ms": "604800000"}, "retention.ms=-1"},
		"dead letters, default":    {"q-dead", nil, "retention.ms=-1"},
		"dead letters, size":       {"q-dead", map[string]string{"retention.ms": "-1", "retention.bytes": "1000"}, "retention.bytes=-1"},
		"dead letters, compaction": {"q-dead", map[string]string{"retention.ms": "-1", "cleanup.policy": "compact"}, "cleanup.policy=delete"},
		"dead letters, both":       {"q-dead", map[string]string{"retention.ms": "-1", "cleanup.policy": "compact,delete"}, "cleanup.policy=delete"},
		"dead letters":             {"q-dead", map[string]string{"retention.ms": "-1", "retention.bytes": "-1"}, ""},
		"layer, size":              {"q-retry-1", map[string]string{"retention.bytes": "1000"}, "retention.bytes=-1"},
		"layer, compaction":        {"q-retry-1", map[string]string{"cleanup.policy": "compact"}, "cleanup.policy=delete"},
		"layer, age":               {"q-retry-1", map[string]string{"retention.ms": "604800000"}, ""},
		"queue, compaction":        {"q", map[string]string{"cleanup.policy": "compact"}, "cleanup.policy=delete"},
		"queue, size":              {"q", map[string]string{"retention.bytes": "1000"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			require.NoError(t, c.CreateTopic(of.topic, 1, of.configs))
			e := c.engine(WithPartitions(1), WithReplicas(1))
			err := e.Put(t.Context(), of.topic, store.Message{Meta: message.Meta{ID: "a"}})
			_, started := e.Consume(t.Context(), store.Consumption{
				Queue: "q", Layers: []string{"q-retry-1"}, IsLayer: func(string) bool { return false }, Dead: "q-dead", Clock: clock.New(), Logger: silent,
			})
			if of.want == "" {
				require.NoError(t, err)
				require.NoError(t, started)
				return
			}
			for _, err := range []error{err, started} {
				require.ErrorContains(t, err, "kafka-configs.sh --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name "+of.topic+" --add-config "+of.want)
				require.True(t, guard.IsPermanent(err), "it ends a run")
			}
		})
	}
}

// Without the right to read the configuration of topics the worker runs, and its log has
// a warning.
func TestEngine_TopicsThatCannotBeChecked(t *testing.T) {
	c := newCluster(t, 1, "orders")
	c.inMemory().ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.fake.KeepControl()
		resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, asked := range r.(*kmsg.DescribeConfigsRequest).Resources {
			of := kmsg.NewDescribeConfigsResponseResource()
			of.ResourceType, of.ResourceName, of.ErrorCode = asked.ResourceType, asked.ResourceName, kerr.TopicAuthorizationFailed.Code
			resp.Resources = append(resp.Resources, of)
		}
		return resp, nil, true
	})
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	e := c.engine()
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "a"}}))
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "b"}}))
	require.Equal(t, 1, strings.Count(log.String(), "DESCRIBE_CONFIGS"), log.String())
}

// configOf returns the value of a topic's configuration.
func (c *cluster) configOf(topic, key string) string {
	c.t.Helper()
	all, err := kadm.NewClient(c.admin).DescribeTopicConfigs(c.t.Context(), topic)
	require.NoError(c.t, err)
	for _, config := range all[0].Configs {
		if config.Key == key {
			return config.MaybeValue()
		}
	}
	return ""
}
