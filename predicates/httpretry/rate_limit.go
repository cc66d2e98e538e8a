package httpretry

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// demandedDelay returns the delay that a response demands, if any. The first of these
// headers counts:
//
//	Retry-After-Ms: 250                                   milliseconds
//	Retry-After: 120                                      see RetryAfter
//	X-Ratelimit-Reset-Requests: 6m0s                      429 only: a duration, seconds, or
//	X-Ratelimit-Reset: 1767225600                         seconds since 1970
//	Anthropic-Ratelimit-Tokens-Reset: 2026-01-01T00:00:00Z   429 only: a time
//
// Of several resets, the longest of the limits whose header Remaining is 0 counts;
// without such a limit, the shortest.
func demandedDelay(status int, h http.Header, now time.Time) (delay time.Duration, ok bool) {
	if ms := strings.TrimSpace(h.Get("Retry-After-Ms")); ms != "" {
		n, err := strconv.ParseFloat(ms, 64)
		if err == nil && n >= 0 && n < float64(1<<53) {
			return time.Duration(n * float64(time.Millisecond)), true
		}
	}
	delay, ok = RetryAfter(h, now)
	if ok || status != http.StatusTooManyRequests {
		return delay, ok
	}
	return resetDelay(h, now)
}

func resetDelay(h http.Header, now time.Time) (delay time.Duration, ok bool) {
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	var (
		spent, shortest time.Duration
		isSpent, found  bool
	)
	for name, values := range h {
		remaining, isReset := remainingHeader(name)
		if !isReset || len(values) == 0 {
			continue
		}
		d, valid := parseReset(values[0], now)
		if !valid {
			continue
		}
		if !found || d < shortest {
			shortest = d
		}
		found = true
		if strings.TrimSpace(h.Get(remaining)) == "0" {
			isSpent = true
			spent = max(spent, d)
		}
	}
	if isSpent {
		return spent, true
	}
	return shortest, found
}

// remainingHeader returns the name of the header with the remaining calls or tokens of a
// limit, for the header with its reset.
func remainingHeader(reset string) (remaining string, ok bool) {
	const openAI, anthropic, end = "X-Ratelimit-Reset", "Anthropic-Ratelimit-", "-Reset"
	switch {
	case reset == openAI || strings.HasPrefix(reset, openAI+"-"):
		return "X-Ratelimit-Remaining" + strings.TrimPrefix(reset, openAI), true
	case strings.HasPrefix(reset, anthropic) && strings.HasSuffix(reset, end):
		return strings.TrimSuffix(reset, end) + "-Remaining", true
	}
	return "", false
}

// sinceEpoch is the least number of seconds that counts as a time since 1970, not a
// delay.
const sinceEpoch = 1e9

// parseReset reads the value of a header with the reset of a limit.
func parseReset(value string, now time.Time) (delay time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if at, err := time.Parse(time.RFC3339, value); err == nil {
		return max(0, at.Sub(now)), true
	}
	if d, err := time.ParseDuration(value); err == nil {
		return d, d >= 0
	}
	n, err := strconv.ParseFloat(value, 64)
	switch {
	case err != nil || !(n >= 0 && n < 1e11): // also excludes NaN
		return 0, false
	case n >= sinceEpoch:
		return max(0, time.Unix(int64(n), 0).Sub(now)), true
	}
	return min(time.Duration(n*float64(time.Second)), sinceEpoch*time.Second), true
}
