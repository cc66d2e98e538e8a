package couchbase_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/ext/couchbase"
	"github.com/weirflow/weir/internal/testing/couchbasetest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

// patience is the timeout of calls that must not time out.
const patience = 2 * time.Minute

// withoutPolls are options of a connection string: gocb does not poll the cluster's map.
// Faults of the mock also apply to these requests.
const withoutPolls = "?config_poll_interval=3600000"

// connect connects gocb to a mock.
func connect(t *testing.T, url string, options gocb.ClusterOptions) (*gocb.Cluster, *gocb.Collection) {
	t.Helper()
	options.Username = couchbasetest.Bucket
	options.RetryStrategy = couchbase.NoRetries()
	cluster, err := gocb.Connect(url, options)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cluster.Close(nil) })
	bucket := cluster.Bucket(couchbasetest.Bucket)
	err = bucket.WaitUntilReady(patience, &gocb.WaitUntilReadyOptions{ServiceTypes: []gocb.ServiceType{gocb.ServiceTypeKeyValue}})
	require.NoError(t, err)
	return cluster, bucket.DefaultCollection()
}

// The statuses that the mock can answer with. Each is made for one request: if gocb
// retried it, the call would succeed.
func TestMock_Statuses(t *testing.T) {
	m := couchbasetest.Start(t)
	_, documents := connect(t, m.URL()+withoutPolls, gocb.ClusterOptions{})
	upsert := func() error {
		_, err := documents.Upsert("k", 1, &gocb.UpsertOptions{Timeout: patience})
		return err
	}
	require.NoError(t, upsert())

	for status, want := range map[int]predicates.Reason{
		0x09: named(t, "KV_LOCKED"),
		0x85: named(t, "KV_TEMPORARY_FAILURE"),
		0x86: named(t, "KV_TEMPORARY_FAILURE"),
		0x03: predicates.NewRejection("KV_STATUS_0x03"),
		0x24: predicates.NewRejection("KV_STATUS_0x24"),
		0x84: none,
	} {
		m.Fail(status, 1)
		reason, stage := classify(upsert())
		assert.Equal(t, want, reason, "0x%02x", status)
		assert.Equal(t, response, stage)
		require.NoError(t, upsert(), "0x%02x", status)
	}

	for _, status := range []int{0x82, 0x7ff0, 0x7ff1, 0x7ff2} { // known to the error map only
		m.Fail(status, 2)
		reason, stage := classify(upsert())
		assert.Equal(t, named(t, "KV_ERROR_MAP_RETRY_INDICATED"), reason, "0x%02x", status)
		assert.Equal(t, response, stage)
		require.NoError(t, upsert(), "0x%02x", status)
	}

	m.Fail(0x07, 1) // gocb retries it in any case
	require.NoError(t, upsert())
}

func TestMock_Documents(t *testing.T) {
	m := couchbasetest.Start(t)
	_, documents := connect(t, m.URL()+withoutPolls, gocb.ClusterOptions{})
	_, err := documents.Get("absent", nil)
	require.ErrorIs(t, err, gocb.ErrDocumentNotFound)
	reason, _ := classify(err)
	assert.Equal(t, predicates.NewRejection("KV_STATUS_0x01"), reason)

	_, err = documents.Insert("k", 1, nil)
	require.NoError(t, err)
	_, err = documents.Insert("k", 1, nil)
	reason, _ = classify(err)
	assert.Equal(t, predicates.NewRejection("KV_STATUS_0x02"), reason)

	locked, err := documents.GetAndLock("k", 30*time.Second, nil)
	require.NoError(t, err)
	_, err = documents.Upsert("k", 2, nil)
	reason, _ = classify(err)
	assert.Equal(t, named(t, "KV_LOCKED"), reason)
	require.NoError(t, documents.Unlock("k", locked.Cas(), nil))
	_, err = documents.Replace("k", 3, &gocb.ReplaceOptions{Cas: locked.Cas() + 1})
	reason, _ = classify(err)
	assert.Equal(t, predicates.NewRejection("KV_STATUS_0x02"), reason)
}

func TestMock_Queries(t *testing.T) {
	m := couchbasetest.Start(t)
	cluster, _ := connect(t, m.URL()+withoutPolls, gocb.ClusterOptions{})
	for _, tt := range []struct {
		code int
		text string
		want predicates.Reason
	}{
		{4050, "", named(t, "QUERY_PREPARED_STATEMENT_FAILURE")},
		{5000, "queryport.indexNotFound", weak(named(t, "QUERY_INDEX_NOT_FOUND"))},
		{5000, "other", none},
		{3000, "syntax error", predicates.NewRejection("QUERY_ERROR_3000")},
	} {
		m.FailQueries(tt.code, tt.text)
		_, err := cluster.Query("SELECT 1", &gocb.QueryOptions{Adhoc: true, Timeout: patience})
		reason, stage := classify(err)
		assert.Equal(t, tt.want, reason, "%v", err)
		assert.Equal(t, response, stage)
	}
	m.ResetQueries()
}

// dispatches is a tracer that reports when a request is about to be written.
type dispatches chan string

func (d dispatches) RequestSpan(parent gocb.RequestSpanContext, name string) gocb.RequestSpan {
	if name == "dispatch_to_server" {
		select {
		case d <- fmt.Sprint(parent):
		default:
		}
	}
	return span(name)
}

type span string

func (s span) End()                             {}
func (s span) Context() gocb.RequestSpanContext { return s }
func (s span) AddEvent(string, time.Time)       {}
func (s span) SetAttribute(string, any)         {}

// A write whose connection ends after it was dispatched must not be repeated. While all
// nodes are down, requests are not dispatched, but gocb's error cannot prove it.
func TestMock_Killed(t *testing.T) {
	m := couchbasetest.Start(t)
	sent := make(dispatches, 100)
	_, documents := connect(t, m.URL()+withoutPolls, gocb.ClusterOptions{Tracer: sent})
	_, err := documents.Upsert("k", 1, nil)
	require.NoError(t, err)
	m.Stall(time.Hour)
	for len(sent) > 0 {
		<-sent
	}
	failed := make(chan error, 1)
	go func() {
		_, err := documents.Upsert("k", 2, &gocb.UpsertOptions{Timeout: patience})
		failed <- err
	}()
	<-sent
	stage := upsertUntil(t, documents, netretry.TimedOut) // dispatched, to a node that is stalled
	assert.Equal(t, unreported, stage)

	m.Kill()
	err = <-failed
	reason, _ := classify(err)
	assert.Equal(t, named(t, "SOCKET_CLOSED_WHILE_IN_FLIGHT"), reason, "%v", err)

	stage = upsertUntil(t, documents, weak(named(t, "NODE_NOT_AVAILABLE")))
	assert.Equal(t, unreported, stage)
}

// upsertUntil repeats an upsert that times out until it fails for a reason, and returns
// the stage. gocb needs some time to dispatch a request and to notice the end of a
// connection.
func upsertUntil(t *testing.T, documents *gocb.Collection, want predicates.Reason) predicates.Stage {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		_, err := documents.Upsert("k", 3, &gocb.UpsertOptions{Timeout: 200 * time.Millisecond})
		reason, stage := classify(err)
		if reason == want {
			return stage
		}
		require.True(t, time.Now().Before(deadline), "%v: %v", reason, err)
	}
}

// An operator increments a counter for each element, while the nodes refuse requests. An
// increment must not be repeated if it may have taken effect.
func TestMock_Operator(t *testing.T) {
	const elements = 300
	m := couchbasetest.Start(t)
	_, documents := connect(t, m.URL()+withoutPolls, gocb.ClusterOptions{})
	increment := asyncop.Blocking(func(ctx context.Context, key string) (string, error) {
		_, err := documents.Binary().Increment(key, &gocb.IncrementOptions{Initial: 1, Delta: 1, Context: ctx, Timeout: patience})
		return key, err
	})
	op := asyncop.UnorderedWaitWithRetry(increment, 2*patience, 20,
		strategies.ReasonAware(couchbase.Classifier[string](), nil))
	var keys []string
	for i := range elements {
		keys = append(keys, fmt.Sprintf("counter-%d", i))
	}
	refusals := []int{0x09, 0x85, 0x86, 0x82, 0x7ff0, 0x07}
	results := 0
	for _, err := range op.Results(slices.Values(keys)) {
		require.NoError(t, err)
		results++
		if results%40 == 0 && results/40 <= len(refusals) {
			m.Fail(refusals[results/40-1], 5)
		}
	}
	assert.Equal(t, elements, results)
	m.Fail(0, 0)
	for _, key := range keys {
		counter, err := documents.Get(key, &gocb.GetOptions{Timeout: patience})
		require.NoError(t, err)
		var value int
		require.NoError(t, counter.Content(&value))
		assert.Equal(t, 1, value, key)
	}
	assert.NotZero(t, op.Stats().Retries)
}
