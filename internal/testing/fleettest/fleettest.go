// Package fleettest runs processes that share a service's limit through an engine. The
// service counts its calls.
package fleettest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/child"
	"github.com/weirflow/weir/internal/testing/suite"
)

const (
	name    = "fleet"
	takes   = 30 * time.Millisecond // a call
	longest = time.Second           // a call, as the processes know it
	// moved is a pause after which others have taken the permits.
	moved    = 7 * time.Second
	patience = 2 * time.Minute // for a slow machine
)

// Child is a process of the fleet, and does not return, if [Run] or [RunFaults] started
// this process. TestMain calls it first.
func Child(open func(ctx context.Context, dsn string) (store.Keeper, error)) {
	child.Run(name, func(arg string) error {
		service, rest, _ := strings.Cut(arg, " ")
		limit, dsn, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(limit)
		if err != nil {
			return err
		}
		keeper, err := child.Again(context.Background(), func(ctx context.Context) (store.Keeper, error) { return open(ctx, dsn) })
		if err != nil {
			return err
		}
		return call(service, n, keeper)
	})
}

// call calls the service as often as the fleet allows, until the process is killed.
func call(service string, limit int, keeper store.Keeper) error {
	b := backend.New("counted", backend.Limit(limit), backend.Shared(keeper), backend.LongestCall(longest))
	process := strconv.Itoa(os.Getpid())
	op := asyncop.UnorderedWait(asyncop.Blocking(func(ctx context.Context, _ int) (int, error) {
		query := url.Values{"process": {process}, "begun": {strconv.FormatInt(time.Now().UnixNano(), 10)}}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, service+"?"+query.Encode(), nil)
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

// service counts its calls. A process that is paused between the check of its lease and
// the request sends the request when it continues. Such a call outlives the longest call,
// and law B5 allows it beside the limit.
type service struct {
	mu       sync.Mutex // guards the fields below
	running  map[*http.Request]time.Time
	most     int // concurrent calls that had not outlived the longest call
	peak     int // the same, since the last reset
	withLate int // concurrent calls
	late     int // calls that arrived after the longest call
	calls    map[string]int
}

func (s *service) handle(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	nanos, err := strconv.ParseInt(query.Get("begun"), 10, 64)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.begin(r, time.Unix(0, nanos), query.Get("process"))
	time.Sleep(takes)
	s.mu.Lock()
	delete(s.running, r)
	s.mu.Unlock()
}

func (s *service) begin(r *http.Request, begun time.Time, process string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[process]++
	s.running[r] = begun
	if time.Since(begun) >= longest {
		s.late++
	}
	inTime := 0
	for _, begun := range s.running {
		if time.Since(begun) < longest {
			inTime++
		}
	}
	s.most = max(s.most, inTime)
	s.peak = max(s.peak, inTime)
	s.withLate = max(s.withLate, len(s.running))
}

// called returns how many processes have called since the last reset.
func (s *service) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

func (s *service) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.calls)
	s.peak = 0
}

// peaks returns the most concurrent calls, and the most since the last reset.
func (s *service) peaks() (most, peak int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most, s.peak
}

type fleet struct {
	t       *testing.T
	service *service
	arg     string
	all     []*child.Process
}

func start(t *testing.T, dsn string, processes, limit int) *fleet {
	t.Helper()
	s := &service{calls: map[string]int{}, running: map[*http.Request]time.Time{}}
	server := httptest.NewServer(http.HandlerFunc(s.handle))
	t.Cleanup(server.Close)
	f := &fleet{t: t, service: s, arg: fmt.Sprintf("%s %d %s", server.URL, limit, dsn), all: make([]*child.Process, processes)}
	for i := range f.all {
		f.startProcess(i)
	}
	return f
}

func (f *fleet) startProcess(i int) {
	f.t.Helper()
	p, err := child.Start(name, f.arg)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = p.Kill() }) // it may have ended
	f.all[i] = p
}

func (f *fleet) kill(i int) {
	f.t.Helper()
	require.NoError(f.t, f.all[i].Kill())
	<-f.all[i].Ended()
}

func (f *fleet) requireAllCall(text string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.service.called() == len(f.all) }, patience, 50*time.Millisecond, text)
}

func (f *fleet) requireFullUse(limit int) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		_, peak := f.service.peaks()
		return peak == limit
	}, patience, 50*time.Millisecond, "the whole limit is in use")
}

// Run tests law B5 with processes that share a limit in the engine at dsn. One is killed,
// and another takes its permits.
func Run(t *testing.T, dsn string) {
	t.Helper()
	const limit = 6
	f := start(t, dsn, 4, limit)
	f.requireAllCall("all processes get permits")
	f.kill(0)
	f.service.reset()
	f.startProcess(0)
	f.requireAllCall("the new process gets permits, too")
	f.requireFullUse(limit)
	for i := range f.all {
		f.kill(i)
	}
	most, _ := f.service.peaks()
	require.LessOrEqual(t, most, limit)
}

// RunFaults tests law B5 with eight processes that share a limit in the engine at dsn,
// while they are killed and paused at random: for a few seconds, in CI a minute, and six
// minutes with WEIR_LONG=1.
func RunFaults(t *testing.T, dsn string) {
	t.Helper()
	const limit = 12
	f := start(t, dsn, 8, limit)
	f.requireAllCall("all processes get permits")
	rounds := 1
	switch {
	case suite.Long():
		rounds = 35
	case suite.Full():
		rounds = 5
	}
	r := rand.New(rand.NewPCG(1, 1)) // the first round pauses two processes, and kills another
	for range rounds {
		f.disturb(r)
	}
	s := f.service
	s.reset()
	f.requireAllCall("all processes get permits after the faults")
	f.requireFullUse(limit)
	for i := range f.all {
		f.kill(i)
	}
	most, _ := s.peaks()
	t.Logf("%d rounds, limit %d: at most %d calls, and %d with calls that outlived the longest call, of which %d arrived late",
		rounds, limit, most, s.withLate, s.late)
	require.LessOrEqual(t, most, limit)
}

// disturb pauses a part of the fleet until the others have taken its permits. Meanwhile
// it pauses another process for a shorter time, or kills it.
func (f *fleet) disturb(r *rand.Rand) {
	f.t.Helper()
	order := r.Perm(len(f.all))
	paused, other := order[:1+r.IntN(4)], order[len(order)-1]
	var continued sync.WaitGroup
	for _, i := range paused {
		f.pause(&continued, i, moved+upTo(r, 2*time.Second))
	}
	time.Sleep(upTo(r, moved))
	if r.IntN(2) == 0 {
		f.kill(other)
		f.startProcess(other)
	} else {
		f.pause(&continued, other, upTo(r, moved))
	}
	continued.Wait()
	time.Sleep(upTo(r, 2*time.Second))
}

// pause pauses a process, and counts it in wg meanwhile.
func (f *fleet) pause(wg *sync.WaitGroup, i int, d time.Duration) {
	p := f.all[i]
	wg.Go(func() { // ends after d
		_, err := p.Pause(d)
		assert.NoError(f.t, err)
	})
}

func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }
