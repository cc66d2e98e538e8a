package kafka

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// An option with a wrong argument panics where it is written, with its name and the
// value.
func TestOptions_WrongArguments(t *testing.T) {
	for want, f := range map[string]func(){
		"kafka: WithPartitions: 0 is not from 1 to 2147483647: leave the option out to make no topics":           func() { WithPartitions(0) },
		"kafka: WithReplicas: 40000 is not from 1 to 32767: leave the option out for the default of the brokers": func() { WithReplicas(40_000) },
		`kafka: WithTopics: queue "orders" with the topics []: name the queue and at least one topic`:            func() { WithTopics("orders") },
		`kafka: WithTopics: queue "orders" with the topics [""]: name the queue and at least one topic`:          func() { WithTopics("orders", "") },
		"kafka: WithSettleTime: -1ns is not positive":                                                            func() { WithSettleTime(-1) },
		"kafka: WithCommitInterval: 0s is not positive":                                                          func() { WithCommitInterval(0) },
	} {
		require.PanicsWithValue(t, want, f)
	}
	require.PanicsWithValue(t, "kafka: Open: option 1 is nil", func() { _, _ = Open(t.Context(), "127.0.0.1:1", nil) })
	require.Panics(t, func() { WithTopics("", "orders") })
}

func TestOptions_SeveralOfAKind(t *testing.T) {
	s := newSettings([]Option{
		WithTopics("a", "x", "y"), WithTopics("b", "z"), WithClientOptions(kgo.ClientID("a")), WithClientOptions(kgo.ClientID("b"), kgo.ClientID("c")),
		WithSettleTime(time.Minute), WithSettleTime(time.Hour), WithPartitions(3), WithReplicas(2),
	})
	require.Equal(t, map[string][]string{"a": {"x", "y"}, "b": {"z"}}, s.topics)
	require.Len(t, s.client, 3)
	require.Equal(t, time.Hour, s.settleTime)
	require.Equal(t, time.Second, s.commitInterval)
	require.Equal(t, 3, s.partitions)
	require.Equal(t, 2, s.replicas)
}
