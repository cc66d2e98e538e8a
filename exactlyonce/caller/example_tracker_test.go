package caller_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
)

// A program without an operator tracks the life of an element itself. Each attempt sends
// the same id with a different attempt number.
func ExampleTracker() {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var id exactlyonce.ID
		err := id.UnmarshalText([]byte(r.Header.Get(exactlyonce.Header)))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Printf("element %d, step %q, attempt %d\n", id.Sequence, id.Step, id.Attempt)
		if id.Attempt < 3 {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer service.Close()

	tracker := caller.NewTracker(caller.Config{})
	client := &http.Client{Transport: caller.Transport(service.Client().Transport, service.URL+"/charges")}
	charge := func(ctx context.Context) (status int, err error) {
		req, err := http.NewRequestWithContext(caller.WithStep(ctx, "charge"), http.MethodPost, service.URL+"/charges", nil)
		if err != nil {
			return 0, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}

	element := tracker.Accepted(context.Background(), "order 17", false)
	for attempt := 1; ; attempt++ {
		status, err := charge(tracker.AttemptStarted(element, attempt))
		if err == nil && status == http.StatusOK {
			break
		}
	}
	tracker.Ended(element, observe.Ending{})
	fmt.Println("done")

	// Output:
	// element 1, step "charge", attempt 1
	// element 1, step "charge", attempt 2
	// element 1, step "charge", attempt 3
	// done
}
