package workerkill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/child/workers"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

const (
	byKey      = "keyed-worker"        // the children of RunByKey
	serviceEnv = "WEIR_TEST_SERVICE"   // the URL of the service that they call
	keyLimit   = 3                     // calls of a key at a time
	slowest    = 20 * time.Millisecond // call of the service
)

func workByKey(ctx context.Context, e Engine) error {
	engine := store.Engine(e)
	queues, ok := e.(Queues)
	if ok {
		engine = queues.Inspector // which is a store.ByKey
	}
	q := delivery.NewQueue[keyed](engine, work, delivery.WithLayers(delivery.Layer{Delay: delay, Jitter: 0.5}, delivery.Layer{Delay: delay}),
		delivery.WithFairByKey(keyLimit), delivery.WithLease(orderLease), delivery.WithLogger(quiet))
	call := func(ctx context.Context, k keyed) (keyed, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv(serviceEnv)+"/"+strconv.Itoa(k.Key), http.NoBody)
		if err != nil {
			return k, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return k, err
		}
		_ = response.Body.Close()
		meta, _ := message.MetaFromContext(ctx)
		visits, isPoison := k.failures()
		switch {
		case isPoison:
			return k, errPoison
		case meta.Visit <= visits:
			return k, errBusy
		}
		return k, nil
	}
	op := asyncop.UnorderedWait(asyncop.Blocking(call), time.Minute, orderSlots, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet))
	summary, err := delivery.Run(ctx, q, op, delivery.NewQueue[keyed](e, "done"), delivery.WithLogger(quiet), delivery.WithDrain(3*time.Second))
	fmt.Println(summary)
	return err
}

// service is a service that counts its running calls by key. A call ends when its worker
// is killed.
type service struct {
	mu      sync.Mutex
	running map[string]int
	most    int
}

func (s *service) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	s.count(r.URL.Path, 1)
	defer s.count(r.URL.Path, -1) // before the response is sent
	select {
	case <-time.After(rand.N(slowest)):
	case <-r.Context().Done():
	}
}

func (s *service) count(key string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[key] += n
	s.most = max(s.most, s.running[key])
}

// RunByKey kills four workers of a queue with delivery.WithFairByKey at random, while
// messages fail and wait in layers. The called service never has more than keyLimit calls
// of a key at a time, and each message has a result or is a dead letter, once.
func RunByKey(t *testing.T, c Config) {
	t.Helper()
	const keys = 3
	each := 100
	kills := 2
	if suite.Long() {
		each = 1000
		kills = 50
	}
	s := &service{running: map[string]int{}}
	server := httptest.NewServer(s)
	defer server.Close()
	t.Setenv(serviceEnv, server.URL)
	e, err := c.Open(t.Context(), c.DSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	want := fillInOrder(t, e, keys, each)
	all := workers.Start(t, byKey, c.DSN, 4, patience)
	for kill := 1; kill <= kills; kill++ {
		progress(t, e, all, func(done int) bool { return done >= kill*len(want.done)/2/kills })
		all.Kill()
	}
	progress(t, e, all, func(done int) bool {
		return done >= len(want.done) && count(t, e, Dead) >= len(want.dead) && count(t, e, work) == 0
	})
	all.End()
	require.Equal(t, keyLimit, s.most, "the most calls of a key at a time")
	require.ElementsMatch(t, want.done, listKeyed(t, e, "done"), "results")
	require.ElementsMatch(t, want.dead, listKeyed(t, e, Dead), "dead letters")
}
