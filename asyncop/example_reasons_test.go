package asyncop_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// Orders are posted to a server. It refuses the first order, which is sent again. It
// hangs up after it has read the second, which may have been executed and is not sent
// again.
func Example_reasons() {
	var mu sync.Mutex
	received := map[string]int{} // guarded by mu
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		order, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		switch received[string(order)]++; {
		case string(order) == "a book" && received["a book"] == 1:
			w.WriteHeader(http.StatusTooManyRequests)
		case string(order) == "a boat":
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()
	url, source, failed := server.URL, make(chan any, 2), make(chan asyncop.Failure[string], 2)

	client := &http.Client{Transport: httpretry.Transport(nil)} // its errors report whether anything was sent
	post := asyncop.Blocking(func(ctx context.Context, order string) (string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(order))
		if err != nil {
			return "", err
		}
		resp, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		return order, httpretry.CheckResponse(resp)
	})
	op := asyncop.OrderedWaitWithRetry(post, 5*time.Second, 1000,
		strategies.ReasonAware(httpretry.Classifier[string](), nil),
		asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
			failed <- f
			return nil
		}), asyncop.WithDrainRetries())

	source <- "a book"
	source <- "a boat"
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	f := <-failed
	fmt.Println("in doubt:", f.Element, errors.Is(f.Err, io.EOF))
	mu.Lock()
	defer mu.Unlock()
	fmt.Println("received:", received)
	// Output:
	// a book
	// in doubt: a boat true
	// received: map[a boat:1 a book:2]
}
