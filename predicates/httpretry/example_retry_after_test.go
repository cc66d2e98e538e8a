package httpretry_test

import (
	"context"
	"fmt"
	"net/http"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// The server says when to come back, by seconds or by a date.
func ExampleCheckResponse() {
	policy := strategies.ReasonAware(httpretry.Classifier[string](), strategies.BestEffort[string]())

	for _, header := range []http.Header{
		{},
		{"Retry-After": {"7"}},
		{"Retry-After": {"Fri, 31 Dec 1999 23:59:59 GMT"}, "Date": {"Fri, 31 Dec 1999 23:59:29 GMT"}},
	} {
		err := httpretry.CheckResponse(&http.Response{StatusCode: http.StatusTooManyRequests, Header: header})
		d := policy.Decide(context.Background(),
			&predicates.Attempt[string]{Number: 1, Err: err, Remaining: predicates.NoDeadline}, strategies.Situation{})
		fmt.Println(err, d.Verdict, d.Delay)
	}
	// Output:
	// http status 429 Too Many Requests retried 1ms
	// http status 429 Too Many Requests retried 7s
	// http status 429 Too Many Requests retried 30s
}
