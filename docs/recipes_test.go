package docs_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/couchbase/gocb/v2"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/reugn/go-streams/extension"
	log "github.com/sirupsen/logrus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tsuna/gohbase"
	"github.com/tsuna/gohbase/hrpc"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/ext/couchbase"
	"github.com/weirflow/weir/ext/failsafe/failsafecall"
	"github.com/weirflow/weir/ext/hbase"
	"github.com/weirflow/weir/ext/postgres/pgretry"
	"github.com/weirflow/weir/internal/testing/couchbasetest"
	"github.com/weirflow/weir/internal/testing/hbasetest"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
)

func Example_http() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "hello "+strings.TrimPrefix(r.URL.Path, "/"))
	}))
	defer server.Close()
	base := server.URL

	client := &http.Client{Transport: httpretry.Transport(nil)}
	defer client.CloseIdleConnections()
	get := asyncop.Blocking(func(ctx context.Context, name string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/"+name, nil)
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		if err := httpretry.CheckResponse(resp); err != nil {
			return "", err
		}
		body, err := io.ReadAll(resp.Body) // here: after the call its context has ended, and so has the body
		return string(body), err
	})
	op := asyncop.OrderedWaitWithRetry(get, 10*time.Second, 1000,
		strategies.ReasonAware(httpretry.Classifier[string](), nil).Idempotent(), // GET may be repeated
		asyncop.WithMaxConcurrentCalls(50),
		asyncop.WithAttemptTimeout(2*time.Second))
	for text, err := range op.Results(slices.Values([]string{"lhr", "cdg"})) {
		fmt.Println(text, err)
	}
	// Output:
	// hello lhr <nil>
	// hello cdg <nil>
}

func Example_redis() {
	server := must(miniredis.Run())
	defer server.Close()
	address := server.Addr()

	client := redis.NewClient(&redis.Options{
		Addr:                  address,
		MaxRetries:            -1,   // retries are weir's: the client's own double increments unseen
		ContextTimeoutEnabled: true, // the call ends when its context does
	})
	defer client.Close()
	incr := asyncop.Blocking(func(ctx context.Context, key string) (int64, error) {
		return client.Incr(ctx, key).Result()
	})
	op := asyncop.OrderedWaitWithRetry(incr, 5*time.Second, 1000,
		strategies.ReasonAware(netretry.Classifier[int64](), nil)) // repeats only what was not sent
	for n, err := range op.Results(slices.Values([]string{"visits:lhr", "visits:cdg"})) {
		fmt.Println(n, err)
	}
	// Output:
	// 1 <nil>
	// 1 <nil>
}

// rowsOf reads rows of PostgreSQL.
func rowsOf(pool *pgxpool.Pool, keys []string, take func(name string)) error {
	get := asyncop.Blocking(func(ctx context.Context, key string) (name string, err error) {
		err = pool.QueryRow(ctx, "SELECT name FROM airports WHERE key = $1", key).Scan(&name)
		if errors.Is(err, pgx.ErrNoRows) {
			return "", asyncop.ErrNoResult // not there (yet): an empty result
		}
		return name, err
	})
	op := asyncop.OrderedWaitWithRetry(get, time.Minute, 1000,
		strategies.ReasonAware(pgretry.Classifier[string](), nil).Idempotent(), // a SELECT may be repeated
		asyncop.WithMaxConcurrentCalls(int(pool.Config().MaxConns)))
	for name, err := range op.Results(slices.Values(keys)) {
		if err != nil {
			return err
		}
		take(name)
	}
	return nil
}

// namesOf reads documents of Couchbase.
func namesOf(url, user, password string, keys []string, take func(name string)) error {
	cluster, err := gocb.Connect(url, gocb.ClusterOptions{
		Username:      user,
		Password:      password,
		RetryStrategy: couchbase.NoRetries(), // retries are weir's
	})
	if err != nil {
		return err
	}
	defer cluster.Close(nil)
	airports := cluster.Bucket("default").DefaultCollection()
	get := asyncop.Blocking(func(ctx context.Context, key string) (name string, err error) {
		document, err := airports.Get(key, &gocb.GetOptions{Context: ctx})
		switch {
		case errors.Is(err, gocb.ErrDocumentNotFound):
			return "", asyncop.ErrNoResult // not there (yet): an empty result
		case err != nil:
			return "", err
		}
		err = document.Content(&name)
		return name, err
	})
	op := asyncop.OrderedWaitWithRetry(get, 10*time.Second, 1000,
		strategies.ReasonAware(couchbase.Classifier[string](), nil).Idempotent(), // a Get may be repeated
		asyncop.WithMaxConcurrentCalls(100))
	for name, err := range op.Results(slices.Values(keys)) {
		if err != nil {
			return err
		}
		take(name)
	}
	return nil
}

// countVisits reads rows of HBase, and counts a visit of each name that exists.
func countVisits(quorum string, keys []string, take func(visits uint64)) error {
	client := gohbase.NewClient(quorum, gohbase.FlushInterval(time.Millisecond)) // default: a Get waits 20 ms for others
	defer client.Close()
	get := hbase.Get(client,
		func(ctx context.Context, key string) (*hrpc.Get, error) {
			return hrpc.NewGetStr(ctx, "airports", key, hrpc.Families(map[string][]string{"info": {"name"}}))
		},
		func(_ string, row *hrpc.Result) (string, error) {
			return string(row.Cells[0].Value), nil // never empty: an absent row is an empty result
		})
	absent := predicates.NewReason("ABSENT", true, false)
	classify := predicates.Classifiers(predicates.ByResult(predicates.EmptyResult[string], absent), hbase.Classifier[string]())
	names := asyncop.OrderedWaitWithRetry(get, time.Minute, 1000,
		strategies.ReasonAware(classify, nil).Idempotent().WithMaxRetriesFor(absent, 3), // a Get may be repeated
		asyncop.WithMaxConcurrentCalls(100),
		asyncop.WithAttemptTimeout(10*time.Second))
	visit := hbase.Mutate(client, 30*time.Second, // the timeout of an attempt
		func(ctx context.Context, name string) (*hrpc.Mutate, error) {
			return hrpc.NewIncStrSingle(ctx, "airports", name, "info", "visits", 1)
		},
		func(_ string, row *hrpc.Result) (uint64, error) {
			return binary.BigEndian.Uint64(row.Cells[0].Value), nil
		})
	visits := asyncop.OrderedWaitWithRetry(visit, time.Minute, 1000,
		strategies.ReasonAware(hbase.Classifier[uint64](), nil), // repeats only what was not sent, or was refused
		asyncop.WithMaxConcurrentCalls(100))
	for count, err := range visits.ResultsFrom(names.Results(slices.Values(keys))) {
		if err != nil {
			return err
		}
		take(count)
	}
	return nil
}

func TestRecipes_HBase(t *testing.T) {
	log.SetOutput(io.Discard) // gohbase logs each look-up that fails
	quorum := hbasetest.StartSingle(t).Quorum()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	admin := gohbase.NewAdminClient(quorum)
	for { // until the master has started
		err := admin.CreateTable(hrpc.NewCreateTable(ctx, []byte("airports"), map[string]map[string]string{"info": nil}))
		if err == nil || strings.Contains(err.Error(), "TableExistsException") { // gohbase may repeat the request
			break
		}
		require.NoError(t, ctx.Err(), "%v", err)
		time.Sleep(100 * time.Millisecond)
	}
	client := gohbase.NewClient(quorum)
	defer client.Close()
	for key, name := range map[string]string{"lhr": "Heathrow", "cdg": "Charles de Gaulle"} {
		put, err := hrpc.NewPutStr(ctx, "airports", key, map[string]map[string][]byte{"info": {"name": []byte(name)}})
		require.NoError(t, err)
		_, err = client.Put(put)
		require.NoError(t, err)
	}
	var counts []uint64
	err := countVisits(quorum, []string{"lhr", "absent", "cdg", "lhr"}, func(visits uint64) { counts = append(counts, visits) })
	require.NoError(t, err)
	assert.ElementsMatch(t, []uint64{1, 1, 2}, counts) // the calls for lhr overlap
}

func TestRecipes_Couchbase(t *testing.T) {
	m := couchbasetest.Start(t)
	cluster, err := gocb.Connect(m.URL(), gocb.ClusterOptions{Username: couchbasetest.Bucket})
	require.NoError(t, err)
	defer cluster.Close(nil)
	documents := cluster.Bucket(couchbasetest.Bucket).DefaultCollection()
	for key, name := range map[string]string{"lhr": "Heathrow", "cdg": "Charles de Gaulle"} {
		_, err = documents.Upsert(key, name, &gocb.UpsertOptions{Timeout: 2 * time.Minute})
		require.NoError(t, err)
	}
	var names []string
	err = namesOf(m.URL(), couchbasetest.Bucket, "", []string{"lhr", "absent", "cdg"}, func(name string) { names = append(names, name) })
	require.NoError(t, err)
	assert.Equal(t, []string{"Heathrow", "Charles de Gaulle"}, names)
}

func Example_kafka() {
	cluster := must(kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "rows")))
	defer cluster.Close()
	brokers := cluster.ListenAddrs()

	client := must(kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("rows")))
	defer client.Close()
	// A client with callbacks: the promise completes the attempt, from a goroutine of the
	// client.
	produce := asyncop.Func(func(ctx context.Context, row string, result asyncop.ResultFuture[int64]) error {
		client.Produce(ctx, kgo.StringRecord(row), func(r *kgo.Record, err error) {
			if err != nil {
				result.CompleteExceptionally(err)
				return
			}
			result.Complete(r.Offset)
		})
		return nil
	})
	op := asyncop.OrderedWait(produce, 30*time.Second, 1000)
	for offset, err := range op.Results(slices.Values([]string{"a", "b"})) {
		fmt.Println(offset, err)
	}
	// Output:
	// 0 <nil>
	// 1 <nil>
}

func Example_sharedLimit() {
	db := backend.New("database", backend.Limit(50)) // one database, two operators: together they run at most 50 calls
	rows := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100, asyncop.WithBackend(db))
	names := asyncop.OrderedWait(asyncop.Blocking(upper), 5*time.Second, 100, asyncop.WithBackend(db))
	for _, op := range []*asyncop.AsyncWaitOperator[string, string]{rows, names} {
		for row, err := range op.Results(slices.Values([]string{"lhr"})) {
			fmt.Println(row, err)
		}
	}
	// Output:
	// <lhr> <nil>
	// <lhr> <nil>
}

func Example_rate() {
	service := backend.New("service", backend.Rate(100, time.Second)) // attempts that start in a second
	op := asyncop.OrderedWait(asyncop.Blocking(upper), time.Minute, 1000, asyncop.WithBackend(service))
	for row, err := range op.Results(slices.Values([]string{"lhr"})) {
		fmt.Println(row, err)
	}
	// Output:
	// <lhr> <nil>
}

func Example_hedge() {
	hedge := hedgepolicy.NewBuilderWithDelay[string](20 * time.Millisecond).Build()
	reads := func(context.Context, string) bool { return true } // a read may happen twice
	op := asyncop.OrderedWait(failsafecall.Hedged(upper, hedge, reads), 5*time.Second, 10)
	for row, err := range op.Results(slices.Values([]string{"lhr"})) {
		fmt.Println(row, err)
	}
	// Output:
	// <lhr> <nil>
}

type reading struct {
	sensor string
	at     time.Time
}

func Example_watermarks() {
	at := func(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }
	in, out := make(chan any, 10), make(chan any, 10)
	in <- reading{"a", at(1)}
	in <- asyncop.Watermark{Timestamp: at(1)} // a value, not a pointer
	in <- reading{"b", at(2)}
	close(in)
	called := make(chan struct{})
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, r reading) (string, error) {
		switch r.sensor {
		case "a":
			<-called // b is quicker
		case "b":
			close(called)
		}
		return r.sensor, nil
	}), 5*time.Second, 1000)
	extension.NewChanSource(in).Via(op).To(extension.NewChanSink(out))
	check(op.Wait())
	for v := range out {
		switch v := v.(type) {
		case asyncop.Watermark:
			fmt.Println("all until", v.Timestamp.Second(), "are here")
		case string:
			fmt.Println(v)
		}
	}
	// Output:
	// a
	// all until 1 are here
	// b
}

// The snippets of a recipe have at most 25 lines together.
func TestRecipes_Length(t *testing.T) {
	page, err := os.ReadFile("recipes.md")
	require.NoError(t, err)
	recipes, _, found := strings.Cut(string(page), "\n## Imports")
	require.True(t, found)
	for _, recipe := range strings.Split(recipes, "\n## ")[1:] {
		title, _, _ := strings.Cut(recipe, "\n")
		code := strings.Join(goBlocks(recipe), "\n")
		assert.LessOrEqual(t, strings.Count(code, "\n")+1, 25, title)
	}
}
