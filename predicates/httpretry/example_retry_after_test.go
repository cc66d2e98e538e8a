package httpretry_test

import (
	"fmt"
	"net/http"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// The server demands a delay, in seconds or as a date.
func ExampleCheckResponse() {
	policy := strategies.ReasonAware(httpretry.Classifier[string](), strategies.BestEffort[string]())

	for _, header := range []http.Header{
		{},
		{"Retry-After": {"7"}},
		{"Retry-After": {"Fri, 31 Dec 1999 23:59:59 GMT"}, "Date": {"Fri, 31 Dec 1999 23:59:29 GMT"}},
	} {
		err := httpretry.CheckResponse(&http.Response{StatusCode: http.StatusTooManyRequests, Header: header})
		fmt.Println(err, strategiestest.Decide(policy, predicates.Attempt[string]{Err: err}).Delay)
	}
	// Output:
	// http status 429 Too Many Requests 1ms
	// http status 429 Too Many Requests (the server asks to wait 7s) 7s
	// http status 429 Too Many Requests (the server asks to wait 30s) 30s
}
