package kafka

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/ext/kafka/clustertest"
)

// shared is the broker of tests that do no harm to it. They run one after the other.
var shared = sync.OnceValues(func() (clustertest.Cluster, error) { return clustertest.Start(1) })

var sharedIsUsed bool

// realBroker returns the address of a broker without topics and groups.
func realBroker(t testing.TB) []string {
	t.Helper()
	sharedIsUsed = true
	all, err := shared()
	require.NoError(t, err)
	wipe(t, all.Addrs())
	return all.Addrs()
}

// endRealBroker ends the shared broker, if it was started.
func endRealBroker() {
	if sharedIsUsed {
		all, _ := shared()
		all.Close()
	}
}

// ownBrokers starts a cluster for one test.
func ownBrokers(t testing.TB, n int, settings ...string) clustertest.Cluster {
	t.Helper()
	if clustertest.Libs() == "" {
		t.Skip("skipped, this test needs Apache Kafka: WEIR_KAFKA")
	}
	all, err := clustertest.Start(n, settings...)
	t.Cleanup(all.Close)
	require.NoError(t, err)
	return all
}

// clusterOf returns a cluster for the brokers that a test has started.
func clusterOf(t testing.TB, all clustertest.Cluster) *cluster {
	t.Helper()
	c := &cluster{t: t, addrs: all.Addrs()}
	c.admin = c.client()
	return c
}

// wipe removes all topics and groups. A group whose members were dropped is removed after
// their sessions.
func wipe(t testing.TB, addrs []string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	require.NoError(t, err)
	defer client.Close()
	admin := kadm.NewClient(client)
	eventually(t, func() bool {
		groups, err := admin.ListGroups(t.Context())
		if err == nil && len(groups) > 0 {
			_, err = admin.DeleteGroups(t.Context(), groups.Groups()...)
		}
		return err == nil && len(groups) == 0
	}, "groups are removed")
	topics, err := admin.ListTopics(t.Context())
	require.NoError(t, err)
	if names := topics.Names(); len(names) > 0 {
		deleted, err := admin.DeleteTopics(t.Context(), names...)
		require.NoError(t, err)
		require.NoError(t, deleted.Error())
	}
}
