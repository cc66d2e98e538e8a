package couchbase_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/couchbase"
)

// The tables here are written down from the requirements, R23 and R36 to R49, not from
// the code.

var none predicates.Reason

// R23, in the order of the RFC: name, allows non-idempotent retry, always retry.
var reasonRows = []struct {
	name   string
	n, a   bool
	reason predicates.Reason
}{
	{"UNKNOWN", false, false, couchbase.Unknown},
	{"SOCKET_NOT_AVAILABLE", true, false, couchbase.SocketNotAvailable},
	{"SERVICE_NOT_AVAILABLE", true, false, couchbase.ServiceNotAvailable},
	{"NODE_NOT_AVAILABLE", true, false, couchbase.NodeNotAvailable},
	{"KV_NOT_MY_VBUCKET", true, true, couchbase.KVNotMyVBucket},
	{"KV_COLLECTION_OUTDATED", true, true, couchbase.KVCollectionOutdated},
	{"KV_ERROR_MAP_RETRY_INDICATED", true, false, couchbase.KVErrorMapRetryIndicated},
	{"KV_LOCKED", true, false, couchbase.KVLocked},
	{"KV_TEMPORARY_FAILURE", true, false, couchbase.KVTemporaryFailure},
	{"KV_SYNC_WRITE_IN_PROGRESS", true, false, couchbase.KVSyncWriteInProgress},
	{"KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS", true, false, couchbase.KVSyncWriteReCommitInProgress},
	{"SERVICE_RESPONSE_CODE_INDICATED", true, false, couchbase.ServiceResponseCodeIndicated},
	{"SOCKET_CLOSED_WHILE_IN_FLIGHT", false, false, couchbase.SocketClosedWhileInFlight},
	{"CIRCUIT_BREAKER_OPEN", true, false, couchbase.CircuitBreakerOpen},
	{"QUERY_PREPARED_STATEMENT_FAILURE", true, false, couchbase.QueryPreparedStatementFailure},
	{"QUERY_INDEX_NOT_FOUND", true, false, couchbase.QueryIndexNotFound},
	{"ANALYTICS_TEMPORARY_FAILURE", true, false, couchbase.AnalyticsTemporaryFailure},
	{"SEARCH_TOO_MANY_REQUESTS", true, false, couchbase.SearchTooManyRequests},
	{"VIEWS_TEMPORARY_FAILURE", true, false, couchbase.ViewsTemporaryFailure},
	{"VIEWS_NO_ACTIVE_PARTITION", true, true, couchbase.ViewsNoActivePartition},
}

func TestReasons(t *testing.T) {
	reasons := couchbase.Reasons()
	assert.Len(t, reasons, 20)
	always, forbidding := 0, 0
	for i, row := range reasonRows {
		assert.Equal(t, row.reason, reasons[i])
		assert.Equal(t, row.name, row.reason.Name())
		assert.Equal(t, row.n, row.reason.AllowsNonIdempotentRetry(), row.name)
		assert.Equal(t, row.a, row.reason.AlwaysRetry(), row.name)
		assert.Contains(t, reasons, row.reason)
		if row.a {
			always++
		}
		if !row.n {
			forbidding++
		}
	}
	assert.Equal(t, 3, always)
	assert.Equal(t, 2, forbidding)
	assert.Equal(t, predicates.Unknown, couchbase.Unknown)
	assert.Equal(t, predicates.CircuitBreakerOpen, couchbase.CircuitBreakerOpen)
}

// R36
func TestIdempotentCommands(t *testing.T) {
	idempotent := map[couchbase.Command]string{
		0x00: "get", 0x0a: "noop", 0x83: "get replica", 0x91: "observe seqno", 0x92: "observe",
		0xb5: "get cluster config", 0xba: "get collections manifest", 0xbb: "get collection id",
		0xc5: "subdoc get", 0xc6: "subdoc exists", 0xd0: "subdoc multi lookup", 0xd2: "subdoc get count",
	}
	for n := range 256 {
		c := couchbase.Command(n)
		name, want := idempotent[c]
		assert.Equal(t, want, c.Idempotent(), "%v", c)
		assert.Equal(t, want, couchbase.Request{Service: couchbase.KV, Command: c}.Idempotent(), "%v", c)
		switch {
		case want:
			assert.Equal(t, name, c.String())
		case n == 0x95:
			assert.Equal(t, "unlock", c.String())
		default:
			assert.Equal(t, fmt.Sprintf("command 0x%02x", n), c.String())
		}
	}
	for _, c := range []couchbase.Command{
		0x1c /* touch */, 0x1d /* get and touch */, 0x94 /* get and lock */, 0x95, /* unlock */
		0x10 /* stat */, 0xa0 /* get meta */, 0xb6 /* get random */, 0xd1, /* subdoc multi mutation */
	} {
		assert.False(t, c.Idempotent(), "%v", c)
	}
}

// R7, R37 to R39
func TestIdempotentRequests(t *testing.T) {
	assert.False(t, couchbase.Request{}.Idempotent(), "nothing is idempotent that does not say so")
	assert.False(t, couchbase.Request{ReadOnly: true, Method: "GET"}.Idempotent())
	for _, s := range []couchbase.Service{couchbase.Query, couchbase.Analytics} {
		assert.True(t, couchbase.Request{Service: s, ReadOnly: true}.Idempotent(), "%v", s)
		assert.False(t, couchbase.Request{Service: s}.Idempotent(), "%v", s)
		assert.False(t, couchbase.Request{Service: s, Method: "GET"}.Idempotent(), "%v", s)
	}
	for _, s := range []couchbase.Service{couchbase.Search, couchbase.Views} {
		assert.True(t, couchbase.Request{Service: s, Method: "POST"}.Idempotent(), "%v", s)
	}
	for _, s := range []couchbase.Service{couchbase.ClusterManager, couchbase.Management} {
		for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "get", ""} {
			assert.Equal(t, method == "GET", couchbase.Request{Service: s, Method: method}.Idempotent(), "%v %s", s, method)
		}
	}
	assert.False(t, couchbase.Request{Service: 99}.Idempotent())
	for s, name := range map[couchbase.Service]string{
		0: "none", couchbase.KV: "key-value", couchbase.Query: "query", couchbase.Analytics: "analytics",
		couchbase.Search: "search", couchbase.Views: "views", couchbase.ClusterManager: "cluster manager",
		couchbase.Management: "management", 99: "Service(99)",
	} {
		assert.Equal(t, name, s.String())
	}
}

// classify returns the result of the whole chain: a reason and true, the zero Reason and
// true (accepted for good), or false.
func classify(t *testing.T, errorMap func() *couchbase.ErrorMap, err error) (predicates.Reason, bool) {
	t.Helper()
	a := &predicates.Attempt[string]{Number: 1, Err: fmt.Errorf("call: %w", err)}
	reason, ok := couchbase.Classifier[string](errorMap)(a)
	if !ok {
		reason = none
	}
	assert.Equal(t, predicates.ResponseReceived, a.Stage, "%v", err)
	return reason, ok
}

// R40 to R43, every command with every status.
func TestKVStatuses(t *testing.T) {
	listed := map[couchbase.Status]string{
		0x07: "KV_NOT_MY_VBUCKET",
		0x09: "KV_LOCKED",
		0x86: "KV_TEMPORARY_FAILURE",
		0x88: "KV_COLLECTION_OUTDATED",
		0xa2: "KV_SYNC_WRITE_IN_PROGRESS",
		0xa4: "KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS",
	}
	for command := range 256 {
		dcp := command >= 0x50 && command <= 0x65
		assert.Equal(t, dcp, couchbase.Command(command).DCP(), "0x%02x", command)
		for status := range 256 {
			want := listed[couchbase.Status(status)]
			forGood := false
			switch {
			case dcp: // R43
				want = ""
			case command == 0xbb && status == 0x88: // R41
				want = ""
			case command == 0x95 && status == 0x09: // R42
				want, forGood = "", true
			}
			a := &predicates.Attempt[string]{
				Err: &couchbase.KVError{Command: couchbase.Command(command), Status: couchbase.Status(status)},
			}
			reason, ok := couchbase.Classifier[string](nil)(a)
			if ok != (want != "" || forGood) || ok && reason.Name() != want {
				t.Errorf("command 0x%02x, status 0x%02x: %v %t, want %q", command, status, reason, ok, want)
			}
		}
	}
}

// R42
func TestLockedOnUnlockIsACASMismatch(t *testing.T) {
	locked := &couchbase.KVError{Command: couchbase.Unlock, Status: couchbase.Locked}
	assert.ErrorIs(t, locked, couchbase.ErrCASMismatch)
	assert.EqualError(t, locked, "couchbase: unlock: status 0x09")
	assert.NotErrorIs(t, &couchbase.KVError{Command: couchbase.Get, Status: couchbase.Locked}, couchbase.ErrCASMismatch)
	assert.NotErrorIs(t, &couchbase.KVError{Command: couchbase.Unlock, Status: 0x01}, couchbase.ErrCASMismatch)

	eager := predicates.Classifiers(couchbase.Classifier[string](nil),
		predicates.ByException[string](predicates.HasException, predicates.Unknown))
	reason, ok := eager(&predicates.Attempt[string]{Err: locked})
	assert.True(t, ok)
	assert.Equal(t, none, reason, "nobody further down may have it retried")
}

// R44 to R46
func TestQueryAndAnalyticsCodes(t *testing.T) {
	const text = "msg: queryport.indexNotFound, index #1"
	type list = []couchbase.CodedError
	tests := []struct {
		service couchbase.Service
		errors  list
		want    string
	}{
		{couchbase.Query, list{{4040, ""}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{couchbase.Query, list{{4050, ""}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{couchbase.Query, list{{4070, "any"}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{couchbase.Query, list{{4060, ""}}, ""},
		{couchbase.Query, list{{4080, ""}}, ""},
		{couchbase.Query, list{{4090, ""}}, ""},
		{couchbase.Query, list{{5000, text}}, "QUERY_INDEX_NOT_FOUND"},
		{couchbase.Query, list{{5000, "queryport.indexNotfound"}}, ""},
		{couchbase.Query, list{{5000, ""}}, ""},
		{couchbase.Query, list{{12016, text}}, ""}, // the text alone is not enough
		{couchbase.Query, list{{23000, ""}}, ""},   // a code of analytics
		{couchbase.Query, nil, ""},
		{couchbase.Query, list{{4070, ""}, {5000, text}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{couchbase.Query, list{{5000, text}, {4070, ""}}, "QUERY_INDEX_NOT_FOUND"},
		{couchbase.Query, list{{4070, ""}, {12009, "DML error"}}, ""}, // not all of them are listed
		{couchbase.Query, list{{12009, "DML error"}, {4070, ""}}, ""},
		{couchbase.Analytics, list{{23000, ""}}, "ANALYTICS_TEMPORARY_FAILURE"},
		{couchbase.Analytics, list{{23003, ""}}, "ANALYTICS_TEMPORARY_FAILURE"},
		{couchbase.Analytics, list{{23007, ""}}, "ANALYTICS_TEMPORARY_FAILURE"},
		{couchbase.Analytics, list{{23001, ""}}, ""},
		{couchbase.Analytics, list{{4040, ""}}, ""},
		{couchbase.Search, list{{4040, ""}}, ""},
	}
	for _, tt := range tests {
		reason, ok := classify(t, nil, &couchbase.QueryError{Service: tt.service, Errors: tt.errors})
		assert.Equal(t, tt.want, reason.Name(), "%v %v", tt.service, tt.errors)
		assert.Equal(t, tt.want != "", ok)
	}
	for code := range 25000 { // other codes are not listed
		for _, s := range []couchbase.Service{couchbase.Query, couchbase.Analytics} {
			a := &predicates.Attempt[string]{Err: &couchbase.QueryError{Service: s, Errors: list{{code, text}}}}
			_, ok := couchbase.Classifier[string](nil)(a)
			want := s == couchbase.Query && (code == 4040 || code == 4050 || code == 4070 || code == 5000) ||
				s == couchbase.Analytics && (code == 23000 || code == 23003 || code == 23007)
			if ok != want {
				t.Errorf("%v %d: %t", s, code, ok)
			}
		}
	}
	assert.EqualError(t, &couchbase.QueryError{Service: couchbase.Query, Errors: list{{4040, "no such"}, {5000, "x"}}},
		"couchbase: query: 4040 no such; 5000 x")
}

// R47 to R49
func TestSearchAndViewStatuses(t *testing.T) {
	views := map[int]bool{
		300: true, 301: true, 303: true, 307: true, 401: true, 408: true, 409: true, 412: true, 416: true, 417: true,
		501: true, 502: true, 503: true, 504: true,
		500: true, // an empty body is not permanent
	}
	for status := 100; status < 600; status++ {
		want := ""
		if status == 429 {
			want = "SEARCH_TOO_MANY_REQUESTS"
		}
		reason, ok := classify(t, nil, &couchbase.HTTPError{Service: couchbase.Search, StatusCode: status})
		assert.Equal(t, want, reason.Name(), "search %d", status)
		assert.Equal(t, want != "", ok)

		want = ""
		switch {
		case status == 302:
			want = "VIEWS_NO_ACTIVE_PARTITION"
		case views[status]:
			want = "VIEWS_TEMPORARY_FAILURE"
		}
		reason, ok = classify(t, nil, &couchbase.HTTPError{Service: couchbase.Views, StatusCode: status})
		assert.Equal(t, want, reason.Name(), "views %d", status)
		assert.Equal(t, want != "", ok)

		_, ok = classify(t, nil, &couchbase.HTTPError{Service: couchbase.Management, StatusCode: status})
		assert.False(t, ok)
	}
	assert.EqualError(t, &couchbase.HTTPError{Service: couchbase.Views, StatusCode: 500, Body: "secret"},
		"couchbase: views: http status 500")
}

// R49, the text rules.
func TestViewTexts(t *testing.T) {
	tests := []struct {
		status int
		body   string
		want   bool
	}{
		{404, `{"error":"not_found","reason":"missing"}`, true},
		{404, `{"error":"not_found","reason":"deleted"}`, false},
		{404, `{"reason": "missing"}`, false}, // literally
		{404, ``, false},
		{500, `{"error":"timeout"}`, true},
		{500, ``, true},
		{500, `{"error":"{not_found, missing_named_view}"}`, false},
		{500, `{not_found, missing_named_view}`, true}, // without "error"
		{500, `{"error":"badarg"}`, false},
		{500, `{"reason":"badarg"}`, true}, // without "error"
		{500, `{"error":"x","reason":"badarg"}`, false},
		{500, `{"error":"badargs"}`, true}, // the quotes belong to the text
		{503, `{"error":"badarg"}`, true},  // no text rule
		{302, `{"error":"badarg"}`, true},
	}
	for _, tt := range tests {
		_, ok := classify(t, nil, &couchbase.HTTPError{Service: couchbase.Views, StatusCode: tt.status, Body: tt.body})
		assert.Equal(t, tt.want, ok, "%d %s", tt.status, tt.body)
	}
}

func TestOtherOutcomes(t *testing.T) {
	c := couchbase.Classifier[string](nil)
	for _, a := range []predicates.Attempt[string]{{Err: assert.AnError}, {Results: []string{"x"}}, {}} {
		_, ok := c(&a)
		assert.False(t, ok)
		assert.Equal(t, predicates.Unreported, a.Stage)
	}
	reason, ok := c(&predicates.Attempt[string]{Err: predicates.WithReason(assert.AnError, couchbase.NodeNotAvailable)})
	assert.True(t, ok)
	assert.Equal(t, couchbase.NodeNotAvailable, reason)
}
