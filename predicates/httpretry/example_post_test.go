package httpretry_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// A server fails in several ways. A PUT is repeated each time, a POST only if it is
// certain that it was not executed.
func Example() {
	var received atomic.Int32
	failures := map[string]http.HandlerFunc{
		"hangs up":      func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"rate limit":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"is restarting": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
		"does not know": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
	}
	policy := strategies.ReasonAware(httpretry.Classifier[string](), strategies.BestEffort[string]()).
		IdempotentIf(httpretry.Idempotent)

	// try makes one call and prints what an operator would do about its outcome.
	try := func(client *http.Client, req *http.Request) {
		resp, err := client.Do(req)
		if err == nil {
			resp.Body.Close()
			err = httpretry.CheckResponse(resp)
		}
		d := strategiestest.Decide(policy, predicates.Attempt[string]{Input: req, Err: err})
		fmt.Printf("  %-4s retry: %-5t %v\n", req.Method, d.Retry, d.Reason)
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
	//   PUT  retry: true  CONNECTION_LOST_IN_FLIGHT
	//   POST retry: false CONNECTION_LOST_IN_FLIGHT
	// server rate limit
	//   PUT  retry: true  HTTP_429_TOO_MANY_REQUESTS
	//   POST retry: true  HTTP_429_TOO_MANY_REQUESTS
	// server is restarting
	//   PUT  retry: true  HTTP_503_SERVICE_UNAVAILABLE
	//   POST retry: false HTTP_503_SERVICE_UNAVAILABLE
	// server does not know
	//   PUT  retry: false HTTP_404_NOT_FOUND
	//   POST retry: false HTTP_404_NOT_FOUND
	// server is not there
	//   PUT  retry: true  CONNECTION_NOT_ESTABLISHED
	//   POST retry: true  CONNECTION_NOT_ESTABLISHED
	// requests received: 8
}
