package httpretry_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
)

func TestRetryAfter(t *testing.T) {
	now := time.Date(1999, 12, 31, 23, 58, 0, 0, time.UTC)
	const date = "Fri, 31 Dec 1999 23:59:59 GMT"
	tests := []struct {
		value, date string
		want        time.Duration
		ok          bool
	}{
		{"", "", 0, false},
		{"0", "", 0, true},
		{"120", "", 2 * time.Minute, true},
		{" 7 ", "", 7 * time.Second, true},
		{"007", "", 7 * time.Second, true},
		{"9223372036", "", 9223372036 * time.Second, true},
		{"9223372037", "", math.MaxInt64, true}, // more than a duration holds
		{"99999999999999999999", "", math.MaxInt64, true},
		{"-1", "", 0, false},
		{"+1", "", 0, false},
		{"1.5", "", 0, false},
		{"1s", "", 0, false},
		{"soon", "", 0, false},
		{date, "", 119 * time.Second, true},
		{"Friday, 31-Dec-99 23:59:59 GMT", "", 119 * time.Second, true}, // obsolete forms that must be understood
		{"Fri Dec 31 23:59:59 1999", "", 119 * time.Second, true},
		{date, "Fri, 31 Dec 1999 23:59:29 GMT", 30 * time.Second, true}, // by the server's clock
		{date, "Sat, 01 Jan 2000 00:00:00 GMT", 0, true},                // has passed
		{date, "nonsense", 119 * time.Second, true},
		{"120", "Sat, 01 Jan 2000 00:00:00 GMT", 2 * time.Minute, true},
	}
	for _, tt := range tests {
		h := http.Header{}
		if tt.value != "" {
			h.Set("Retry-After", tt.value)
		}
		if tt.date != "" {
			h.Set("Date", tt.date)
		}
		delay, ok := httpretry.RetryAfter(h, now)
		assert.Equal(t, tt.ok, ok, "%q", tt.value)
		assert.Equal(t, tt.want, delay, "%q", tt.value)
	}
	_, ok := httpretry.RetryAfter(nil, now)
	assert.False(t, ok)
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"0", "120", "-1", "1.5", "Fri, 31 Dec 1999 23:59:59 GMT", "99999999999999999999", "\x00"} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, value, date string) {
		delay, ok := httpretry.RetryAfter(http.Header{"Retry-After": {value}, "Date": {date}}, time.Unix(0, 0))
		if delay < 0 || (!ok && delay != 0) {
			t.Fatalf("%q, %q: %v %t", value, date, delay, ok)
		}
	})
}

func TestCheckResponse(t *testing.T) {
	for status := 100; status < 400; status++ {
		require.NoError(t, httpretry.CheckResponse(&http.Response{StatusCode: status}))
	}
	req, err := http.NewRequest(http.MethodPost, "http://user:secret@host/path", nil)
	require.NoError(t, err)
	resp := &http.Response{StatusCode: http.StatusServiceUnavailable, Request: req, Header: http.Header{"Retry-After": {"3"}}}
	err = httpretry.CheckResponse(resp)
	require.EqualError(t, err, "POST http://user:xxxxx@host/path: http status 503 Service Unavailable (the server asks to wait 3s)")
	delay, ok := decision.PushbackOf(&predicates.Attempt[int]{Err: err})
	assert.True(t, ok)
	assert.Equal(t, 3*time.Second, delay)

	resp.Header.Set("Retry-After", "0") // the shortest wait, so it is not a demand
	_, ok = decision.PushbackOf(&predicates.Attempt[int]{Err: httpretry.CheckResponse(resp)})
	assert.False(t, ok)
	_, ok = httpretry.Pushback(&predicates.Attempt[*http.Response]{Results: []*http.Response{resp}})
	assert.False(t, ok)

	err = httpretry.CheckResponse(&http.Response{StatusCode: http.StatusInternalServerError})
	require.EqualError(t, err, "http status 500 Internal Server Error")
	_, ok = decision.PushbackOf(&predicates.Attempt[int]{Err: err})
	assert.False(t, ok)
}

func TestPushbackOfAResponse(t *testing.T) {
	resp := &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"3"}}}
	delay, ok := httpretry.Pushback(&predicates.Attempt[*http.Response]{Results: []*http.Response{resp}})
	assert.True(t, ok)
	assert.Equal(t, 3*time.Second, delay)
	_, ok = httpretry.Pushback(&predicates.Attempt[*http.Response]{})
	assert.False(t, ok)
	_, ok = httpretry.Pushback(&predicates.Attempt[int]{Results: []int{1}})
	assert.False(t, ok)
}
