package exactlyonce_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
)

// anyone returns the same principal for all requests, because there is one client.
func anyone(*http.Request) (string, bool) { return "", true }

var errLost = errors.New("lost on the way")

// badNetwork loses requests and answers, and sends requests twice or late, even after the
// caller has its answer.
type badNetwork struct {
	base   http.RoundTripper
	random func() float64
	late   sync.WaitGroup
	over   chan struct{} // closed when the caller has all answers
	faults atomic.Int64
}

func (n *badNetwork) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	send := func(ctx context.Context) (*http.Response, error) {
		again := req.Clone(ctx)
		again.Body = io.NopCloser(strings.NewReader(string(body)))
		return n.base.RoundTrip(again)
	}
	ghost := func(delay time.Duration, early bool) { // an attempt without a waiting caller
		n.late.Go(func() {
			if time.Sleep(delay); early {
				<-n.over
			}
			if resp, err := send(context.WithoutCancel(req.Context())); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		})
	}
	p := n.random()
	if p < 0.3 {
		n.faults.Add(1)
	}
	switch {
	case p < 0.06: // the request is lost
		return nil, errLost
	case p < 0.14: // the answer is lost
		if resp, err := send(req.Context()); err == nil {
			_ = resp.Body.Close()
		}
		return nil, errLost
	case p < 0.20: // the request arrives after the caller has given up this attempt
		ghost(time.Duration(n.random()*float64(5*time.Millisecond)), false)
		return nil, errLost
	case p < 0.26: // twice at once
		ghost(0, false)
	case p < 0.30: // once more, much later; early requests arrive when they are long done
		ghost(time.Duration(n.random()*float64(20*time.Millisecond)), n.faults.Load() < 100)
	}
	return send(req.Context())
}

// X1: increments over a network that loses, doubles, delays and reorders 30 % of them, to
// a service that fails before its effect, panics, and gives up for callers that have
// gone, add up to exactly their number.
func TestCounterOverBadNetwork(t *testing.T) {
	const elements, callers = 1_000, 8
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(1, 2))
	draw := func() float64 { mu.Lock(); defer mu.Unlock(); return random.Float64() }

	var sum, want atomic.Int64
	results := server.NewResults(server.Config{})
	defer results.Close(context.Background())
	service := httptest.NewServer(results.Handler(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch p := draw(); {
		case p < 0.05:
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		case p < 0.08:
			panic(http.ErrAbortHandler)
		case p < 0.5:
			time.Sleep(time.Duration(draw() * float64(time.Millisecond)))
		}
		b, _ := io.ReadAll(req.Body)
		n, err := strconv.ParseInt(string(b), 10, 64)
		if err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprint(w, sum.Add(n))
	}), server.HandlerConfig{Scope: anyone, Required: true}))
	defer service.Close()
	network := &badNetwork{base: service.Client().Transport, random: draw, over: make(chan struct{})}
	client := &http.Client{Transport: caller.Transport(network, service.URL+"/")}
	tracker := caller.NewTracker(caller.Config{})

	// add makes attempts until one is answered.
	add := func(n int64) error {
		element := tracker.Accepted(t.Context(), n, false)
		defer tracker.Ended(element, observe.Ending{})
		for attempt := 1; attempt < 100; attempt++ {
			req, err := http.NewRequestWithContext(tracker.AttemptStarted(element, attempt), http.MethodPost, service.URL+"/",
				strings.NewReader(strconv.FormatInt(n, 10)))
			if err != nil {
				return err
			}
			resp, err := client.Do(req)
			if errors.Is(err, exactlyonce.ErrStale) || errors.Is(err, exactlyonce.ErrMismatch) {
				return err
			} else if err != nil {
				continue
			}
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		return errors.New("no answer in 100 attempts")
	}
	var wg sync.WaitGroup
	for caller := range callers {
		wg.Go(func() {
			for i := range elements / callers {
				n := int64(caller*elements + i + 1)
				want.Add(n)
				if err := add(n); err != nil {
					t.Errorf("add %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	close(network.over)
	network.late.Wait() // late requests arrive, too, and are stale or replayed
	require.Equal(t, want.Load(), sum.Load())
	s := results.Stats()
	t.Logf("%d faults of the network; %+v", network.faults.Load(), s)
	require.Greater(t, network.faults.Load(), int64(elements/5))
	require.NotZero(t, s.Replayed)
	require.NotZero(t, s.Stale)
	require.Zero(t, s.InProgress)
	require.Zero(t, s.Waiting)
	require.Less(t, s.Records, elements/2, "answers go when the client is done with them")
}
