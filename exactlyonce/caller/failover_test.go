package caller

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// A POST to a server that hangs ends with its attempt timeout. Its id makes it safe to
// repeat, so the next attempt goes to the other server.
func TestTransport_ServerThatHangs(t *testing.T) {
	var hung atomic.Int32
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		hung.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // the server notices the end of a connection only behind the body
		<-r.Context().Done()
	}))
	t.Cleanup(hanging.Close)
	working := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "done") }))
	t.Cleanup(working.Close)
	endpoints := []string{hanging.URL + "/orders", working.URL + "/orders"}
	client := clientFor(t, nil, endpoints...)
	send := func(ctx context.Context, order string) (string, error) {
		return order, post(ctx, client, endpoints[(asyncop.AttemptFromContext(ctx)-1)%2])
	}
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(send), time.Minute, 1,
		strategies.ReasonAware(httpretry.Classifier[string](), nil),
		asyncop.WithAttemptTimeout(time.Second),
		asyncop.WithObserver(NewTracker(Config{})))
	for order, err := range op.Results(slices.Values([]string{"order 17"})) {
		require.NoError(t, err)
		require.Equal(t, "order 17", order)
	}
	require.NotZero(t, hung.Load())
	require.NotZero(t, op.Stats().AttemptTimeouts)
}
