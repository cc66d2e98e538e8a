package httpretry_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/predicates/httpretry"
)

// The headers with which metered services demand a delay.
func TestCheckResponseRetryPushback_HeadersOfRateLimits(t *testing.T) {
	const date = "Thu, 01 Jan 2026 00:00:00 GMT"
	for name, tt := range map[string]struct {
		status int
		h      map[string]string
		want   time.Duration
		ok     bool
	}{
		"milliseconds":                  {503, map[string]string{"retry-after-ms": "250", "Retry-After": "1"}, 250 * time.Millisecond, true},
		"a fraction of a millisecond":   {429, map[string]string{"retry-after-ms": "0.5"}, 500 * time.Microsecond, true},
		"malformed milliseconds":        {429, map[string]string{"retry-after-ms": "soon", "Retry-After": "1"}, time.Second, true},
		"infinitely many milliseconds":  {429, map[string]string{"retry-after-ms": "inf"}, 0, false},
		"Retry-After before the limits": {429, map[string]string{"Retry-After": "2", "x-ratelimit-reset-requests": "1s"}, 2 * time.Second, true},
		"a duration":                    {429, map[string]string{"x-ratelimit-reset-tokens": "6m0s"}, 6 * time.Minute, true},
		"seconds":                       {429, map[string]string{"x-ratelimit-reset": "1.5"}, 1500 * time.Millisecond, true},
		"seconds since 1970":            {429, map[string]string{"x-ratelimit-reset": "1767225630", "Date": date}, 30 * time.Second, true},
		"a time":                        {429, map[string]string{"anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:07Z", "Date": date}, 7 * time.Second, true},
		"a time that has passed":        {429, map[string]string{"anthropic-ratelimit-tokens-reset": "2025-12-31T00:00:07Z", "Date": date}, 0, false},
		"malformed":                     {429, map[string]string{"x-ratelimit-reset": "soon", "x-ratelimit-reset-requests": "-1s", "x-ratelimit-reset-tokens": "NaN"}, 0, false},
		"the limit that is spent":       {429, map[string]string{"x-ratelimit-reset-requests": "1s", "x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-tokens": "9s", "x-ratelimit-remaining-tokens": "0"}, 9 * time.Second, true},
		"two limits that are spent":     {429, map[string]string{"anthropic-ratelimit-requests-reset": "2026-01-01T00:00:03Z", "anthropic-ratelimit-requests-remaining": "0", "anthropic-ratelimit-tokens-reset": "2026-01-01T00:00:02Z", "anthropic-ratelimit-tokens-remaining": "0", "Date": date}, 3 * time.Second, true},
		"limits of which none is spent": {429, map[string]string{"x-ratelimit-reset-requests": "1s", "x-ratelimit-reset-tokens": "9s"}, time.Second, true},
		"limits beside another status":  {503, map[string]string{"x-ratelimit-reset-requests": "1s"}, 0, false},
		"a header that is no reset":     {429, map[string]string{"x-ratelimit-resets": "1s", "anthropic-ratelimit-tokens-limit": "9"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := http.Header{}
			for k, v := range tt.h {
				h.Set(k, v)
			}
			var e *httpretry.StatusError
			require.ErrorAs(t, httpretry.CheckResponse(&http.Response{StatusCode: tt.status, Header: h}), &e)
			got, ok := e.RetryPushback()
			assert.Equal(t, tt.ok, ok)
			if ok {
				assert.Equal(t, tt.want, got)
			}
		})
	}
}
