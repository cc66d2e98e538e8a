package asyncop_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/reugn/go-streams/extension"

	"github.com/weirflow/weir/asyncop"
)

// A blocking client, here for HTTP, is called on goroutines of the operator, at most five
// at the same time.
func ExampleBlocking() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "hello ", r.URL.Query().Get("name"))
	}))
	defer server.Close()
	greet := asyncop.Blocking(func(ctx context.Context, name string) (string, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"?name="+name, http.NoBody)
		if err != nil {
			return "", err
		}
		response, err := server.Client().Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body) // here, since ctx ends when the call returns
		return string(body), err
	})
	op := asyncop.OrderedWait(greet, 10*time.Second, 100, asyncop.WithMaxConcurrentCalls(5))

	source := make(chan any, 2)
	source <- "Ann"
	source <- "Bob"
	close(source)
	extension.NewChanSource(source).Via(op).To(extension.NewStdoutSink())
	fmt.Println(op.Err())
	// Output:
	// hello Ann
	// hello Bob
	// <nil>
}
