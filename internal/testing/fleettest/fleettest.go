// Package fleettest runs several processes that share the limit of a service through an
// engine. The service counts its calls.
package fleettest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/child"
)

const (
	name      = "fleet"
	limit     = 6
	processes = 4
	takes     = 30 * time.Millisecond // a call
	patience  = 2 * time.Minute       // for a slow machine
)

// Child is a process of the fleet, if this process was started by [Run]; it does not
// return then. TestMain calls it first.
func Child(open func(ctx context.Context, dsn string) (store.Keeper, error)) {
	child.Run(name, func(arg string) error {
		service, dsn, _ := strings.Cut(arg, " ")
		keeper, err := child.Again(context.Background(), func(ctx context.Context) (store.Keeper, error) { return open(ctx, dsn) })
		if err != nil {
			return err
		}
		return call(service, keeper)
	})
}

// call calls the service as often as the fleet allows, until the process is killed.
func call(service string, keeper store.Keeper) error {
	b := backend.New("counted", backend.Limit(limit), backend.Shared(keeper), backend.LongestCall(2*time.Second))
	query := url.Values{"process": {strconv.Itoa(os.Getpid())}}.Encode()
	op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, service+"?"+query, nil)
		if err != nil {
			return 0, err
		}
		reply, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return reply.StatusCode, reply.Body.Close()
	}), patience, 3*limit, asyncop.WithBackend(b))
	go func() {
		for i := 0; ; i++ {
			op.In() <- i
		}
	}()
	for v := range op.Out() {
		if v != http.StatusOK {
			return fmt.Errorf("the service answered %v", v)
		}
	}
	return op.Err()
}

// service counts its calls.
type service struct {
	mu        sync.Mutex // guards the fields below
	now, most int
	calls     map[string]int // by process
}

func (s *service) handle(_ http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.now++
	s.most = max(s.most, s.now)
	s.calls[r.URL.Query().Get("process")]++
	s.mu.Unlock()
	time.Sleep(takes)
	s.mu.Lock()
	s.now--
	s.mu.Unlock()
}

// called returns how many of the processes have called since the last reset.
func (s *service) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func (s *service) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.calls)
}

// Run tests law B5 with processes that share a limit in the engine at dsn. One process is
// killed, and another one takes its permits.
func Run(t *testing.T, dsn string) {
	t.Helper()
	s := &service{calls: map[string]int{}}
	server := httptest.NewServer(http.HandlerFunc(s.handle))
	defer server.Close()
	start := func() *child.Process {
		p, err := child.Start(name, server.URL+" "+dsn)
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.Kill() }) // it may have ended
		return p
	}
	all := make([]*child.Process, processes)
	for i := range all {
		all[i] = start()
	}
	eventually := func(n int, text string) {
		t.Helper()
		require.Eventually(t, func() bool { return s.called() == n }, patience, 50*time.Millisecond, text)
	}
	eventually(processes, "all processes get permits")
	require.NoError(t, all[0].Kill())
	<-all[0].Ended()
	s.reset()
	all[0] = start()
	eventually(processes, "the new process gets permits, too")
	require.Eventually(t, func() bool { return s.peak() == limit }, patience, 50*time.Millisecond, "the whole limit is in use")
	for _, p := range all {
		require.NoError(t, p.Kill())
		<-p.Ended()
	}
	require.LessOrEqual(t, s.peak(), limit)
}

func (s *service) peak() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}
