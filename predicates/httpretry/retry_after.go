package httpretry

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/predicates"
)

// RetryAfter returns the delay that the header Retry-After demands, in either of its
// forms (RFC 9110, 10.2.3):
//
//	Retry-After: 120                             in two minutes
//	Retry-After: Fri, 31 Dec 1999 23:59:59 GMT   the time from the header Date, or from
//	                                             now without such a header, until then
//
// A date that has passed is a delay of 0; more seconds than a duration holds are the
// longest duration. ok is false without the header, or if it is malformed.
func RetryAfter(h http.Header, now time.Time) (delay time.Duration, ok bool) {
	value := strings.TrimSpace(h.Get("Retry-After"))
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" { // without a sign or a fraction
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(math.MaxInt64/time.Second) {
			return math.MaxInt64, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now)), true
}

// Pushback returns the longest delay that responses among the results demand, for
// strategies.HonorPushback. A [*StatusError] does not need it: strategies obey its delay
// anyway.
func Pushback[OUT any](a *predicates.Attempt[OUT]) (delay time.Duration, ok bool) {
	for resp := range responses(a) {
		if d, demanded := statusError(resp).RetryPushback(); demanded {
			delay, ok = max(delay, d), true
		}
	}
	return delay, ok
}
