package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// order is an element: a request, and the URL of a server that fails in its own way.
type order struct{ method, url, name string }

// Idempotent implements predicates.Idempotent.
func (o order) Idempotent() bool { return httpretry.IdempotentMethod(o.method) }

// A server fails the first request in each stage. The operator repeats a PUT every time,
// and a POST only if it is certain that the first request had no effect, so a POST is
// never executed twice.
func Example_httpStages() {
	// The server executes an order when it has read it, unless it refuses the order.
	var mu sync.Mutex
	received, executed := map[string]int{}, map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		name := string(body)
		received[name]++
		if received[name] > 1 {
			executed[name]++
			return
		}
		switch r.URL.Path {
		case "/refuses":
			w.WriteHeader(http.StatusTooManyRequests)
		case "/hangs-up": // after it was executed
			executed[name]++
			panic(http.ErrAbortHandler)
		case "/breaks": // after it was executed
			executed[name]++
			w.WriteHeader(http.StatusInternalServerError)
		default:
			executed[name]++
		}
	}))
	defer server.Close()

	// The network refuses the first connection of every order to "/unreachable".
	var refused sync.Map
	dialer := &net.Dialer{}
	type nameKey struct{}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if name, ok := ctx.Value(nameKey{}).(string); ok {
				if _, again := refused.LoadOrStore(name, true); !again {
					return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused")}
				}
			}
			return dialer.DialContext(ctx, network, addr)
		},
	}
	client := &http.Client{Transport: httpretry.Transport(transport)}

	send := asyncop.Blocking(func(ctx context.Context, o order) (string, error) {
		if o.url == server.URL+"/unreachable" {
			ctx = context.WithValue(ctx, nameKey{}, o.name)
		}
		req, err := http.NewRequestWithContext(ctx, o.method, o.url, &onlyReader{o.name})
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
		return o.name, nil
	})
	policy := strategies.ReasonAware(httpretry.Classifier[string](), strategies.BestEffort[string]())
	failures := make(chan asyncop.Failure[order], 10)
	op := asyncop.OrderedWaitWithRetry(send, 10*time.Second, 100, policy, asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[order]) error {
		failures <- f
		return nil
	}))

	var names []string
	for _, path := range []string{"/unreachable", "/hangs-up", "/refuses", "/breaks", "/works"} {
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			o := order{method: method, url: server.URL + path, name: method + " " + path}
			names = append(names, o.name)
			op.In() <- o
		}
	}
	succeeded := map[string]bool{}
	for n := 0; n < len(names); n++ { // before the end of the input, after which there are no retries
		select {
		case name := <-op.Out():
			succeeded[name.(string)] = true
		case <-failures:
		}
	}
	close(op.In())
	if err := op.Wait(); err != nil {
		fmt.Println(err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, name := range names {
		fmt.Printf("%-18s ok=%-5v received=%d executed=%d\n", name, succeeded[name], received[name], executed[name])
	}
	// Output:
	// PUT /unreachable   ok=true  received=1 executed=1
	// POST /unreachable  ok=true  received=1 executed=1
	// PUT /hangs-up      ok=true  received=2 executed=2
	// POST /hangs-up     ok=false received=1 executed=1
	// PUT /refuses       ok=true  received=2 executed=1
	// POST /refuses      ok=true  received=2 executed=1
	// PUT /breaks        ok=true  received=2 executed=2
	// POST /breaks       ok=false received=1 executed=1
	// PUT /works         ok=true  received=1 executed=1
	// POST /works        ok=true  received=1 executed=1
}

// onlyReader is a body that net/http cannot read a second time, so that it does not
// repeat requests by itself.
type onlyReader struct{ rest string }

func (r *onlyReader) Read(p []byte) (int, error) {
	if r.rest == "" {
		return 0, io.EOF
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
