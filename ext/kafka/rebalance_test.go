package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// TestRebalances lets workers join, leave and be dropped while keyed messages are
// processed. No message is lost. If all workers leave in order, and have the time to
// settle, no message is doubled, and the messages of a key are done in order. WEIR_LONG=1
// runs 50 rebalances.
func TestRebalances(t *testing.T) {
	t.Parallel()
	rebalances, messages := 6, 600
	if suite.Long() {
		rebalances, messages = 50, 12000
	}
	for _, drops := range []bool{false, true} {
		for name, opts := range balancers {
			t.Run(fmt.Sprintf("drops=%v/balancer=%s", drops, name), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, rebalancePartitions, "orders")
				if name == serverSide && drops && c.fake != nil {
					t.Skip("skipped: the sessions of kfake are long")
				}
				newRebalances(t, c, drops, opts...).run(rebalances, messages)
			})
		}
	}
}

const serverSide = "server"

// balancers are the options of clients for each way to share partitions out.
var balancers = map[string][]kgo.Opt{
	"cooperative-sticky": {kgo.Balancers(kgo.CooperativeStickyBalancer())},
	"range":              {kgo.Balancers(kgo.RangeBalancer())},
	serverSide:           {kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer()},
}

const (
	rebalancePartitions = 6
	rebalanceKeys       = 40
)

// rebalances is a run of workers that come and go.
type rebalances struct {
	t       *testing.T
	c       *cluster
	opts    []kgo.Opt
	drops   bool
	random  *rand.Rand
	workers []*worker

	meanwhile func(i int) // called during each round; may be nil

	mu   sync.Mutex
	done map[string][]int // by key, in the order of the acknowledgements
}

type worker struct {
	s     *testSource
	ended sync.WaitGroup
	stop  context.CancelFunc
}

func newRebalances(t *testing.T, c *cluster, drops bool, opts ...kgo.Opt) *rebalances {
	return &rebalances{
		t: t, c: c, opts: opts, drops: drops,
		random: rand.New(rand.NewPCG(7, 8)), done: map[string][]int{},
	}
}

// join starts a worker. It processes the messages of a partition one by one, and
// different partitions at once.
func (r *rebalances) join() {
	opts := []sourceOption{withClient(r.opts...), withSettleTime(4 * time.Second)}
	if r.drops {
		opts = append(opts, dropped())
	}
	s := r.c.source("orders", opts...)
	w := &worker{s: s}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	r.workers = append(r.workers, w)
	w.ended.Go(func() {
		var queues [rebalancePartitions]chan message.Message[string]
		var working sync.WaitGroup
		for i := range queues {
			queues[i] = make(chan message.Message[string], 20)
			working.Go(func() {
				for m := range queues[i] {
					r.work(m)
				}
			})
		}
		for {
			ms, err := s.Receive(ctx, 20)
			if err != nil && (ctx.Err() != nil || errors.Is(err, errClosed)) { // others pass, such as that a broker was killed
				break
			}
			for _, m := range ms {
				p, _ := strconv.Atoi(m.Meta().Origin.Partition)
				queues[p] <- m
			}
		}
		for _, queue := range queues {
			close(queue)
		}
		working.Wait()
	})
}

func (r *rebalances) work(m message.Message[string]) {
	time.Sleep(100 * time.Microsecond)
	key, number, _ := strings.Cut(m.Value, "/")
	n, _ := strconv.Atoi(number)
	r.mu.Lock()
	r.done[key] = append(r.done[key], n)
	r.mu.Unlock()
	m.Ack()
}

// leave ends a worker: it finishes what it has, and then closes.
func (r *rebalances) leave(i int, dropped bool) {
	w := r.workers[i]
	r.workers = slices.Delete(r.workers, i, i+1)
	if dropped {
		drop(w.s)
		w.stop()
		w.ended.Wait()
		return
	}
	w.stop()
	w.ended.Wait()
	require.NoError(r.t, w.s.Close(context.Background()))
}

func (r *rebalances) run(rebalances, messages int) {
	producer := r.c.client(kgo.DefaultProduceTopic("orders"))
	next := map[string]int{}
	r.join()
	for i := range rebalances {
		var records []*kgo.Record
		for range messages / rebalances {
			key := "k" + strconv.Itoa(r.random.IntN(rebalanceKeys))
			records = append(records, &kgo.Record{Key: []byte(key), Value: []byte(key + "/" + strconv.Itoa(next[key]))})
			next[key]++
		}
		require.NoError(r.t, producer.ProduceSync(context.Background(), records...).FirstErr())
		time.Sleep(time.Duration(r.random.IntN(60)) * time.Millisecond)
		switch n := len(r.workers); {
		case n > 1 && (n == 4 || r.random.IntN(2) == 0):
			r.leave(r.random.IntN(n), r.drops && i%2 == 0)
		default:
			r.join()
		}
		if r.meanwhile != nil {
			r.meanwhile(i)
		}
	}
	eventually(r.t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		for key, n := range next {
			seen := map[int]bool{}
			for _, d := range r.done[key] {
				seen[d] = true
			}
			if len(seen) < n {
				return false
			}
		}
		return true
	}, "none is lost")
	for len(r.workers) > 0 {
		r.leave(0, false)
	}
	doubled := 0
	for key, n := range next {
		doubled += len(r.done[key]) - n
		if !r.drops {
			assert.True(r.t, slices.IsSorted(r.done[key]), "key %s: %v", key, r.done[key])
		}
	}
	if !r.drops {
		assert.Zero(r.t, doubled, "none is doubled")
	}
	assert.Zero(r.t, r.c.behind(rebalancePartitions), "all is committed")
	r.t.Logf("%d messages, %d doubled", messages, doubled)
}
