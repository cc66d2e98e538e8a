package httpretry_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// A server fails in every way there is. A PUT is repeated each time; a POST only
// where it is certain that it was not executed.
func Example() {
	var received atomic.Int32
	failures := map[string]http.HandlerFunc{
		"hangs up":      func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"rate limit":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"is restarting": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"does not know": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
	}
	policy := strategies.ReasonAware(httpretry.Classifier[string](), strategies.BestEffort[string]()).
		IdempotentIf(predicates.OfInput(httpretry.Idempotent))

	// try makes one call and tells what an operator would do about its outcome.
	try := func(client *http.Client, req *http.Request) {
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			err = httpretry.CheckResponse(resp)
		}
		a := &predicates.Attempt[string]{
			Input: req, Number: 1, Err: err, Idempotent: policy.IsIdempotent(req), Remaining: predicates.NoDeadline,
		}
		d := policy.Decide(context.Background(), a, strategies.Situation{})
		fmt.Printf("  %-4s %-8v %v\n", req.Method, d.Verdict, d.Reason)
	}

	for _, name := range []string{"hangs up", "rate limit", "is restarting", "does not know", "is not there"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			received.Add(1)
			failures[name](w, r)
		}))
		if name == "is not there" {
			server.Close()
		}
		fmt.Println("server", name)
		client := &http.Client{Transport: httpretry.Transport(nil)}
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			req, _ := http.NewRequest(method, server.URL, http.NoBody)
			try(client, req)
		}
		server.Close()
	}
	fmt.Println("requests received:", received.Load())
	// Output:
	// server hangs up
	//   PUT  retried  CONNECTION_LOST_IN_FLIGHT
	//   POST refused  CONNECTION_LOST_IN_FLIGHT
	// server rate limit
	//   PUT  retried  HTTP_429_TOO_MANY_REQUESTS
	//   POST retried  HTTP_429_TOO_MANY_REQUESTS
	// server is restarting
	//   PUT  retried  HTTP_503_SERVICE_UNAVAILABLE
	//   POST refused  HTTP_503_SERVICE_UNAVAILABLE
	// server does not know
	//   PUT  accepted HTTP_404_NOT_FOUND
	//   POST accepted HTTP_404_NOT_FOUND
	// server is not there
	//   PUT  retried  CONNECTION_NOT_ESTABLISHED
	//   POST retried  CONNECTION_NOT_ESTABLISHED
	// requests received: 8
}
