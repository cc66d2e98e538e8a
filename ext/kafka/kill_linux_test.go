package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/kafka/clustertest"
	"github.com/weirflow/weir/internal/testing/child/workers"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

const (
	killedWorker  = "kafka-worker"
	killedSession = 3 * time.Second
	brokerSession = 3 * time.Second        // of clustertest
	killedDelay   = 200 * time.Millisecond // of the layer
)

// order is a message of these tests. A call for it may be repeated: its number is in the
// result.
type order int

func (order) Idempotent() bool { return true }

func (o order) poison() bool { return o%100 == 7 }

var errBusy = errors.New("busy")

// process fails for a part of the orders: at the first attempt, in the first visit, or
// always.
func process(ctx context.Context, o order) (order, error) {
	meta, _ := message.MetaFromContext(ctx)
	if meta.Visit > 1 && time.Since(meta.LastFailure) < killedDelay { // law D3
		fmt.Printf("FAILED: order %d is early: it failed %v ago\n", o, time.Since(meta.LastFailure))
		os.Exit(1)
	}
	time.Sleep(rand.N(4 * time.Millisecond))
	switch {
	case o.poison():
		return 0, predicates.WithReason(errors.New("poison"), predicates.NewRejection("POISON"))
	case o%5 == 0 && asyncop.AttemptFromContext(ctx) == 1 && meta.Visit <= 1, o%10 == 0 && meta.Visit <= 1:
		return 0, errBusy
	}
	return o, nil
}

// killedChild is a worker, if this process is one.
func killedChild() {
	workers.Child(killedWorker, func(_ context.Context, place string) ([]string, error) { return strings.Split(place, ","), nil }, work)
}

// work is a worker as docs/kafka.md has it.
func work(ctx context.Context, addrs []string) error {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	engine, err := Open(ctx, strings.Join(addrs, ","),
		WithTopics("group", "orders"), WithSettleTime(2*time.Second), WithCommitInterval(100*time.Millisecond),
		WithClientOptions(kgo.SessionTimeout(killedSession), kgo.HeartbeatInterval(killedSession/10), kgo.RebalanceTimeout(10*time.Second)),
	)
	if err != nil {
		return err
	}
	defer engine.Close()
	orders := delivery.NewQueue[order](engine, "group", delivery.WithLogger(logger), delivery.WithLayers(delivery.Layer{Delay: killedDelay, Jitter: 0.5}))
	op := asyncop.UnorderedWaitWithRetry(asyncop.Blocking(process), 10*time.Second, 50,
		strategies.FixedDelay[order](1, time.Millisecond).RetryIfException(predicates.ErrorIs(errBusy)),
		asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(logger))
	summary, err := delivery.Run(ctx, orders, op, delivery.NewQueue[order](engine, "done"), delivery.WithLogger(logger))
	fmt.Println(summary)
	return err
}

// harmOne freezes a broker, kills it, or shuts it down, depending on n, and resumes or
// restarts it after a while. Meanwhile other brokers lead its partitions.
func harmOne(t testing.TB, all clustertest.Cluster, n int) {
	t.Helper()
	b := all[rand.IntN(len(all))]
	switch n % 3 {
	case 0:
		require.NoError(t, b.Signal(syscall.SIGSTOP))
		time.Sleep(brokerSession * 2)
		require.NoError(t, b.Signal(syscall.SIGCONT))
		return
	case 1:
		b.Kill()
	case 2:
		b.Shutdown()
	}
	time.Sleep(rand.N(brokerSession))
	require.NoError(t, b.Restart())
}

// TestKilledWorkersAndBrokers checks laws D1 and D3 on three brokers: workers are killed,
// and stopped for longer than their sessions, and brokers are frozen, killed and shut
// down. No order is lost or early. WEIR_LONG=1 kills for longer.
func TestKilledWorkersAndBrokers(t *testing.T) {
	all := ownBrokers(t, 3)
	n, kills := 3000, 9
	if suite.Long() {
		n, kills = 30_000, 60
	} else if testing.Short() {
		n, kills = 600, 3
	}
	c := clusterOf(t, all)
	for topic, parts := range map[string]int32{"orders": 6, "group-retry-1": 3, "group-dead": 1, "done": 1} {
		require.NoError(t, c.CreateTopic(topic, parts, map[string]string{"retention.ms": "-1"}))
	}
	c.produce("orders", 6, numbers(n)...)
	w := workers.Start(t, killedWorker, strings.Join(c.addrs, ","), 3, 2*time.Minute)
	seen := &tally{t: t, client: c.client(kgo.ConsumeTopics("done", "group-dead"), kgo.FetchMaxWait(100*time.Millisecond)), n: map[string]map[string]int{"done": {}, "group-dead": {}}}
	for kill := range kills {
		seen.until(w, func() bool { return len(seen.n["done"]) >= kill*n*8/10/kills })
		switch kill % 3 {
		case 0:
			w.Kill()
		case 1:
			w.Stop(killedSession * 3 / 2)
		case 2:
			harmOne(t, all, kill/3)
		}
	}
	seen.until(w, func() bool { return len(seen.n["done"]) == n-n/100 && len(seen.n["group-dead"]) == n/100 })
	for _, topic := range []string{"orders", "group-retry-1"} { // a doubled order may still wait in the layer
		for p := range map[string]int32{"orders": 6, "group-retry-1": 3}[topic] {
			seen.until(w, func() bool { end := c.end(topic, p); return end == 0 || end == c.committed(topic, p).At })
		}
	}
	w.End()
	for i := range n {
		topic := "done"
		if order(i).poison() {
			topic = "group-dead"
		}
		assert.Positive(t, seen.n[topic][strconv.Itoa(i)], "order %d is not in %s", i, topic)
	}
	doubled := 0
	for _, of := range seen.n {
		for _, times := range of {
			doubled += times - 1
		}
	}
	t.Logf("%d orders, %d kills, %d stops, %d brokers: %d doubled", n, w.Kills, w.Stops, kills/3, doubled)
}

// tally reads what is done.
type tally struct {
	t      *testing.T
	client *kgo.Client
	n      map[string]map[string]int // by topic and value
}

func (s *tally) until(w *workers.Workers, ok func() bool) {
	s.t.Helper()
	for last := time.Now(); !ok(); w.MustRun() {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		fetches := s.client.PollFetches(ctx)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			s.n[r.Topic][string(r.Value)]++
			last = time.Now()
		})
		require.Less(s.t, time.Since(last), 2*time.Minute, "no progress: %d are done, %d dead; workers: %v", len(s.n["done"]), len(s.n["group-dead"]), w.Output())
	}
}

// TestPipelinesOverKilledBrokers is TestGroupRebalances on three brokers, of which one at
// a time is frozen, killed or shut down (laws C1, P1).
func TestPipelinesOverKilledBrokers(t *testing.T) {
	all := ownBrokers(t, 3)
	rebalances := 6
	if suite.Long() {
		rebalances = 50
	}
	c := clusterOf(t, all)
	require.NoError(t, c.CreateTopic("orders", groupParts, nil))
	newJobOn(t, c, time.Millisecond).run(rebalances, func(i int) {
		if i%2 == 1 {
			harmOne(t, all, i/2)
		}
	})
}

// TestRebalancesOverKilledBrokers is TestRebalances on three brokers, of which one at a
// time is frozen, killed or shut down.
func TestRebalancesOverKilledBrokers(t *testing.T) {
	all := ownBrokers(t, 3)
	c := clusterOf(t, all)
	require.NoError(t, c.CreateTopic("orders", rebalancePartitions, nil))
	r := newRebalances(t, c, true)
	r.meanwhile = func(i int) {
		if i%2 == 1 {
			harmOne(t, all, i/2)
		}
	}
	r.run(6, 600)
}
