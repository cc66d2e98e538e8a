package couchbase_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/couchbase"
	"github.com/weirflow/weir/strategies"
)

const errorMapText = `{"version":2,"revision":4,"errors":{
	"1":   {"name":"KEY_ENOENT","attrs":["item-only","retry-now"]},
	"85":  {"name":"EBUSY","attrs":["temp","retry-later"]},
	"7ff0":{"name":"NEWER","attrs":["temp","retry-now"]},
	"7ff1":{"name":"AUTO","attrs":["auto-retry"],
	        "retry":{"strategy":"constant","interval":25,"after":10,"max-duration":1500}},
	"7ff2":{"name":"TEMP","attrs":["temp"]},
	"7FF3":{"name":"NOTHING"}
}}`

func TestParseErrorMap(t *testing.T) {
	m, err := couchbase.ParseErrorMap([]byte(errorMapText))
	require.NoError(t, err)
	assert.Equal(t, 2, m.Version)
	assert.Equal(t, 4, m.Revision)
	for status, want := range map[couchbase.Status]bool{
		0x01: true, 0x85: true, 0x7ff0: true, 0x7ff1: true, 0x7ff2: false, 0x7ff3: false, 0x7ff4: false,
	} {
		assert.Equal(t, want, m.Retry(status), "%v", status)
	}
	assert.False(t, (*couchbase.ErrorMap)(nil).Retry(0x85))

	for _, bad := range []string{``, `[]`, `{"errors":{"xyz":{}}}`, `{"errors":{"10000":{}}}`, `{"errors":{"1":{"attrs":"x"}}}`} {
		_, err := couchbase.ParseErrorMap([]byte(bad))
		assert.ErrorContains(t, err, "couchbase: error map: ", bad)
	}
}

func FuzzParseErrorMap(f *testing.F) {
	f.Add([]byte(errorMapText))
	f.Add([]byte(`{"errors":{"1":{"attrs":null}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := couchbase.ParseErrorMap(text)
		if (m == nil) == (err == nil) {
			t.Fatalf("%v, %v", m, err)
		}
		m.Retry(1)
	})
}

// R33, R34
func TestErrorMapIsForUnknownStatuses(t *testing.T) {
	m, err := couchbase.ParseErrorMap([]byte(errorMapText))
	require.NoError(t, err)
	var current atomic.Pointer[couchbase.ErrorMap]

	tests := []struct {
		status     couchbase.Status
		known      bool
		with       string
		withAnswer bool
	}{
		{0x01, true, "", false}, // known: the map is not asked
		{0x86, true, "KV_TEMPORARY_FAILURE", true},
		{0x85, false, "KV_ERROR_MAP_RETRY_INDICATED", true},
		{0x7ff0, false, "KV_ERROR_MAP_RETRY_INDICATED", true},
		{0x7ff1, false, "KV_ERROR_MAP_RETRY_INDICATED", true},
		{0x7ff2, false, "", true}, // no indication: accepted for good
		{0x7ff4, false, "", true}, // not mentioned: likewise
	}
	for _, tt := range tests {
		assert.Equal(t, tt.known, tt.status.Known(), "%v", tt.status)
		err := &couchbase.KVError{Command: couchbase.Get, Status: tt.status}

		current.Store(m)
		reason, ok := classify(t, current.Load, err)
		assert.Equal(t, tt.with, reason.Name(), "%v", tt.status)
		assert.Equal(t, tt.withAnswer, ok, "%v", tt.status)

		current.Store(nil) // before the first map arrives
		reason, ok = classify(t, current.Load, err)
		if tt.status == 0x86 {
			assert.Equal(t, couchbase.KVTemporaryFailure, reason)
		} else {
			assert.Equal(t, none, reason, "%v", tt.status)
		}
		assert.Equal(t, tt.withAnswer, ok, "%v", tt.status)

		_, ok = classify(t, nil, err) // without an error map
		assert.Equal(t, tt.status == 0x86, ok, "%v", tt.status)
	}
	_, ok := classify(t, func() *couchbase.ErrorMap { return m }, &couchbase.KVError{Command: 0x53, Status: 0x7ff0})
	assert.False(t, ok, "DCP")
}

// R34: the strategy is not called. R35: its delay counts, not the server's 25 ms.
func TestErrorMapLeavesTheDelayToTheStrategy(t *testing.T) {
	m, err := couchbase.ParseErrorMap([]byte(errorMapText))
	require.NoError(t, err)
	asked := 0
	policy := strategies.ReasonAware(couchbase.Classifier[string](func() *couchbase.ErrorMap { return m }),
		strategies.ReasonStrategyFunc[string](func(context.Context, *predicates.Attempt[string]) (strategies.Action, error) {
			asked++
			return strategies.RetryAfter(50 * time.Millisecond), nil
		}))
	decide := func(s couchbase.Status) decision.Decision {
		a := &predicates.Attempt[string]{
			Number: 1, Err: &couchbase.KVError{Command: couchbase.Get, Status: s}, Remaining: decision.NoDeadline,
		}
		return decision.StepsOf(policy).Decide(t.Context(), a, &decision.Situation{})
	}
	assert.Equal(t, decision.Final, decide(0x7ff2).NoRetryReason)
	assert.Zero(t, asked)
	d := decide(0x7ff1)
	assert.Equal(t, decision.Retried, d.NoRetryReason)
	assert.Equal(t, 50*time.Millisecond, d.Delay)
	assert.Equal(t, 1, asked)
}
