package couchbase_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/couchbase/gocb/v2"
	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/ext/couchbase"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// The tables here are written down from RFC 0049, not from the code.

const (
	unreported = predicates.Unreported
	dispatch   = predicates.ClientDispatch
	network    = predicates.NetworkTime
	response   = predicates.ResponseReceived
)

var none predicates.Reason

func weak(r predicates.Reason) predicates.Reason { return predicates.NewReason(r.Name(), false, false) }

// named returns the reason of this name.
func named(t *testing.T, name string) predicates.Reason {
	t.Helper()
	if name == "" {
		return none
	}
	for _, r := range couchbase.Reasons() {
		if r.Name() == name {
			return r
		}
	}
	require.Fail(t, "no such reason", name)
	return none
}

// classify returns the reason and the stage of an attempt that ended with err.
func classify(err error) (predicates.Reason, predicates.Stage) {
	a := &predicates.Attempt[string]{Number: 1, Err: fmt.Errorf("call: %w", err)}
	reason, ok := couchbase.Classifier[string]()(a)
	if !ok {
		reason = none
	}
	return reason, a.Stage
}

func keyValue(status memd.StatusCode, inner error) *gocb.KeyValueError {
	return &gocb.KeyValueError{InnerError: inner, StatusCode: status, LastDispatchedTo: "127.0.0.1:11210"}
}

var errServer = errors.New("the server's error")

func TestReasons_TableOfTheRFC(t *testing.T) {
	rows := []struct {
		name                string
		nonIdempotent, sure bool
	}{
		{"UNKNOWN", false, false},
		{"SOCKET_NOT_AVAILABLE", true, false},
		{"SERVICE_NOT_AVAILABLE", true, false},
		{"NODE_NOT_AVAILABLE", true, false},
		{"KV_NOT_MY_VBUCKET", true, true},
		{"KV_COLLECTION_OUTDATED", true, true},
		{"KV_ERROR_MAP_RETRY_INDICATED", true, false},
		{"KV_LOCKED", true, false},
		{"KV_TEMPORARY_FAILURE", true, false},
		{"KV_SYNC_WRITE_IN_PROGRESS", true, false},
		{"KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS", true, false},
		{"SERVICE_RESPONSE_CODE_INDICATED", true, false},
		{"SOCKET_CLOSED_WHILE_IN_FLIGHT", false, false},
		{"CIRCUIT_BREAKER_OPEN", true, false},
		{"QUERY_PREPARED_STATEMENT_FAILURE", true, false},
		{"QUERY_INDEX_NOT_FOUND", true, false},
		{"ANALYTICS_TEMPORARY_FAILURE", true, false},
		{"SEARCH_TOO_MANY_REQUESTS", true, false},
		{"VIEWS_TEMPORARY_FAILURE", true, false},
		{"VIEWS_NO_ACTIVE_PARTITION", true, true},
	}
	reasons := couchbase.Reasons()
	require.Greater(t, len(reasons), len(rows))
	for i, row := range rows {
		assert.Equal(t, predicates.NewReason(row.name, row.nonIdempotent, row.sure), reasons[i])
	}
	names := map[string]bool{}
	for _, r := range reasons {
		assert.False(t, names[r.Name()], "%v twice", r)
		names[r.Name()] = true
	}
	assert.Equal(t, predicates.CircuitBreakerOpen, named(t, "CIRCUIT_BREAKER_OPEN"))
}

// unsound allows everything, or has no name.
type unsound struct{ name string }

func (u unsound) AllowsNonIdempotentRetry() bool { return false }
func (u unsound) AlwaysRetry() bool              { return true }
func (u unsound) Description() string            { return u.name }

func TestReasonOf(t *testing.T) {
	assert.Equal(t, predicates.NewReason("KV_LOCKED", true, false), couchbase.ReasonOf(gocb.KVLockedRetryReason))
	assert.Equal(t, predicates.NewReason("NOT_READY", true, true), couchbase.ReasonOf(gocb.NotReadyRetryReason))
	assert.Equal(t, predicates.NewReason("MINE", false, false), couchbase.ReasonOf(unsound{"MINE"}))
	assert.Equal(t, none, couchbase.ReasonOf(unsound{}))
	assert.Equal(t, none, couchbase.ReasonOf(nil))
}

func TestClassifier_EveryStatusOfKeyValue(t *testing.T) {
	listed := map[memd.StatusCode]string{
		0x07: "KV_NOT_MY_VBUCKET",
		0x09: "KV_LOCKED",
		0x85: "KV_TEMPORARY_FAILURE", // gocb's ErrTemporaryFailure, like 0x86
		0x86: "KV_TEMPORARY_FAILURE",
		0xa2: "KV_SYNC_WRITE_IN_PROGRESS",
		0xa4: "KV_SYNC_WRITE_RE_COMMIT_IN_PROGRESS",
	}
	inDoubt := map[memd.StatusCode]bool{ // final, but perhaps with an effect
		0x0d: true, 0x21: true, 0x23: true, 0x25: true, 0x82: true, 0x84: true, 0xa3: true, 0xcd: true,
	}
	for status := memd.StatusCode(1); status < 0x200; status++ {
		reason, stage := classify(keyValue(status, errServer))
		assert.Equal(t, response, stage, "0x%02x", uint16(status))
		if name, ok := listed[status]; ok {
			assert.Equal(t, named(t, name), reason, "0x%02x", uint16(status))
			continue
		}
		if !reason.IsZero() {
			assert.Equal(t, predicates.NewRejection(fmt.Sprintf("KV_STATUS_0x%02x", uint16(status))), reason)
			assert.False(t, inDoubt[status], "0x%02x", uint16(status))
		}
	}
	for _, status := range []memd.StatusCode{0x01, 0x02, 0x06, 0x0e, 0x20, 0x24, 0x81, 0x83, 0x88, 0x8c, 0xa0, 0xa1, 0xc0, 0xcc, 0xd3} {
		reason, _ := classify(keyValue(status, errServer))
		assert.True(t, reason.IsRejection(), "0x%02x", uint16(status))
	}
}

// The answer to Unlock is a CAS mismatch, not a locked document.
func TestClassifier_LockedOnUnlock(t *testing.T) {
	reason, _ := classify(keyValue(memd.StatusLocked, gocb.ErrCasMismatch))
	assert.Equal(t, predicates.NewRejection("KV_STATUS_0x09"), reason)
}

// NoRetries makes gocb retry a status of the server's error map once.
func TestClassifier_ErrorMap(t *testing.T) {
	for _, status := range []memd.StatusCode{0x82, 0x7ff0} {
		err := keyValue(status, errServer)
		reason, _ := classify(err)
		assert.Equal(t, none, reason, "without a retry indication")
		err.RetryReasons = []gocb.RetryReason{gocb.KVErrMapRetryReason}
		reason, stage := classify(err)
		assert.Equal(t, named(t, "KV_ERROR_MAP_RETRY_INDICATED"), reason)
		assert.Equal(t, response, stage)
	}
	known := keyValue(0x01, gocb.ErrDocumentNotFound)
	known.RetryReasons = []gocb.RetryReason{gocb.KVErrMapRetryReason} // of an earlier response
	reason, _ := classify(known)
	assert.True(t, reason.IsRejection())
}

func TestClassifier_QueryAndAnalytics(t *testing.T) {
	const text = "msg: queryport.indexNotFound, index #1"
	type list = []gocb.QueryErrorDesc
	for _, tt := range []struct {
		errors list
		want   string
	}{
		{list{{Code: 4040}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{list{{Code: 4050}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{list{{Code: 4070}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{list{{Code: 4060, Retry: true}}, "QUERY_ERROR_RETRYABLE"}, // before the execution
		{list{{Code: 5000, Message: text}}, "QUERY_INDEX_NOT_FOUND"},
		{list{{Code: 5000, Message: "queryport.indexNotfound"}}, ""},
		{list{{Code: 5000}}, ""},
		{list{{Code: 12016, Message: text}}, ""},
		{list{{Code: 12016, Retry: true}}, ""},
		{list{{Code: 1201, Retry: true}}, "QUERY_ERROR_RETRYABLE"}, // the queue of the service is full
		{list{{Code: 5010, Retry: true}}, "QUERY_ERROR_RETRYABLE"},
		{list{{Code: 1201, Retry: true}, {Code: 5010, Retry: true}}, "QUERY_ERROR_RETRYABLE"},
		{list{{Code: 23000}}, ""}, // of analytics
		{list{{Code: 4070}, {Code: 5000, Message: text}}, "QUERY_PREPARED_STATEMENT_FAILURE"},
		{list{{Code: 5000, Message: text}, {Code: 4070}}, "QUERY_INDEX_NOT_FOUND"},
		{list{{Code: 4070}, {Code: 12009}}, ""}, // the other error may have had an effect
		{list{{Code: 12009}, {Code: 4070}}, ""},
	} {
		reason, stage := classify(&gocb.QueryError{InnerError: errServer, Errors: tt.errors, HTTPStatusCode: 500})
		want := named(t, tt.want)
		if !want.IsZero() && slices.ContainsFunc(tt.errors, duringExecution) {
			want = weak(want)
		}
		assert.Equal(t, want, reason, "%v", tt.errors)
		assert.Equal(t, response, stage)
	}
	for code := range uint32(25_000) {
		reason, _ := classify(&gocb.AnalyticsError{InnerError: errServer, Errors: []gocb.AnalyticsErrorDesc{{Code: code}}})
		isListed := code == 23000 || code == 23003 || code == 23007
		assert.Equal(t, code == 23003 || code == 23007, reason.AllowsNonIdempotentRetry(), "%d", code)
		if isListed != (reason.Name() == "ANALYTICS_TEMPORARY_FAILURE") || !isListed && !reason.IsZero() {
			t.Errorf("analytics %d: %v", code, reason)
		}
	}
	reason, _ := classify(&gocb.AnalyticsError{InnerError: errServer, Errors: []gocb.AnalyticsErrorDesc{{Code: 23000}, {Code: 1}}})
	assert.Equal(t, none, reason)
	reason, _ = classify(&gocb.AnalyticsError{InnerError: errServer, Errors: []gocb.AnalyticsErrorDesc{{Code: 23007}, {Code: 23000}}})
	assert.Equal(t, weak(named(t, "ANALYTICS_TEMPORARY_FAILURE")), reason)
}

// duringExecution reports whether the statement may have changed documents before this
// error of the query service.
func duringExecution(e gocb.QueryErrorDesc) bool { return e.Code == 5000 || e.Code == 5010 }

// A statement that was refused before its execution has had no effect.
func TestClassifier_QueryRefused(t *testing.T) {
	refused := func(inner error, codes ...uint32) error {
		e := &gocb.QueryError{InnerError: inner, HTTPStatusCode: 400}
		for _, code := range codes {
			e.Errors = append(e.Errors, gocb.QueryErrorDesc{Code: code})
		}
		return e
	}
	for _, tt := range []struct {
		err  error
		want predicates.Reason
	}{
		{refused(gocb.ErrParsingFailure, 3000), predicates.NewRejection("QUERY_ERROR_3000")},
		{refused(gocb.ErrPlanningFailure, 4020), predicates.NewRejection("QUERY_ERROR_4020")},
		{refused(gocb.ErrPreparedStatementFailure, 4060), predicates.NewRejection("QUERY_ERROR_4060")},
		{refused(gocb.ErrPreparedStatementFailure, 4080), predicates.NewRejection("QUERY_ERROR_4080")},
		{refused(gocb.ErrPreparedStatementFailure, 4090), predicates.NewRejection("QUERY_ERROR_4090")},
		{refused(gocb.ErrPlanningFailure, 4036), none}, // a limit that is reached during the execution
		{refused(gocb.ErrPlanningFailure, 4350), none},
		{refused(gocb.ErrPlanningFailure, 4999), none}, // gocb's group, but an unknown code
		{refused(gocb.ErrAuthenticationFailure, 10000), predicates.NewRejection("QUERY_ERROR_10000")},
		{refused(gocb.ErrAuthenticationFailure, 13014), predicates.NewRejection("QUERY_ERROR_13014")},
		{refused(gocb.ErrParsingFailure, 3000, 5000), none},
		{refused(gocb.ErrCasMismatch, 12009), none}, // the statement may have changed other documents
		{refused(gocb.ErrInternalServerFailure, 5000), none},
	} {
		reason, _ := classify(tt.err)
		assert.Equal(t, tt.want, reason, "%v", tt.err)
	}
}

// gocb calls all errors of functions (101xx) a failure of the authentication. A function
// may have changed documents before its error.
func TestClassifier_QueryFunctions(t *testing.T) {
	for code := uint32(10100); code < 10200; code++ {
		reason, stage := classify(&gocb.QueryError{
			InnerError: gocb.ErrAuthenticationFailure, HTTPStatusCode: 200, Errors: []gocb.QueryErrorDesc{{Code: code}},
		})
		assert.Equal(t, none, reason, "%d", code)
		assert.Equal(t, response, stage, "%d", code)
	}
}

func TestClassifier_EveryStatusOfSearchAndViews(t *testing.T) {
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
		reason, stage := classify(&gocb.SearchError{InnerError: errServer, HTTPStatusCode: status})
		assert.Equal(t, named(t, want), reason, "search %d", status)
		assert.Equal(t, response, stage)

		want = ""
		switch {
		case status == 302:
			want = "VIEWS_NO_ACTIVE_PARTITION"
		case views[status]:
			want = "VIEWS_TEMPORARY_FAILURE"
		}
		reason, stage = classify(&gocb.ViewError{InnerError: errServer, HTTPStatusCode: status})
		assert.Equal(t, named(t, want), reason, "views %d", status)
		assert.Equal(t, response, stage)
	}
}

func TestClassifier_TextsOfViews(t *testing.T) {
	for _, tt := range []struct {
		status int
		body   string
		want   bool
	}{
		{404, `{"error":"not_found","reason":"missing"}`, true},
		{404, `{"error":"not_found","reason":"deleted"}`, false},
		{404, ``, false},
		{500, `{"error":"timeout"}`, true},
		{500, ``, true},
		{500, `{"error":"{not_found, missing_named_view}"}`, false},
		{500, `{not_found, missing_named_view}`, true}, // without "error"
		{500, `{"error":"badarg"}`, false},
		{500, `{"reason":"badarg"}`, true}, // without "error"
		{500, `{"error":"x","reason":"badarg"}`, false},
		{503, `{"error":"badarg"}`, true}, // without a rule for the text
	} {
		reason, _ := classify(&gocb.ViewError{InnerError: errServer, HTTPStatusCode: tt.status, ErrorText: tt.body})
		assert.Equal(t, tt.want, !reason.IsZero(), "%d %s", tt.status, tt.body)
	}
	// gocb keeps only the members of a body that it recognises.
	for text, want := range map[string]bool{"missing": true, "deleted": false} {
		reason, _ := classify(&gocb.ViewError{
			InnerError: gocb.ErrViewNotFound, HTTPStatusCode: 404,
			Errors: []gocb.ViewErrorDesc{{SourceNode: "reason", Message: text}, {SourceNode: "error", Message: "not_found"}},
		})
		assert.Equal(t, want, !reason.IsZero(), text)
	}
}

// Failures without a response.
func TestClassifier_Connections(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	reset := &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}
	post := func(err error) error {
		return &url.Error{Op: "Post", URL: "http://127.0.0.1:8093/query/service", Err: err}
	}
	query := func(err error) error { return &gocb.QueryError{InnerError: post(err)} }
	unsent := &gocb.KeyValueError{InnerError: io.EOF}
	for name, tt := range map[string]struct {
		err   error
		want  string
		stage predicates.Stage
	}{
		"key-value, lost":      {keyValue(0, io.EOF), "SOCKET_CLOSED_WHILE_IN_FLIGHT", unreported},
		"key-value, not sent":  {unsent, "SOCKET_NOT_AVAILABLE", dispatch},
		"client closed":        {keyValue(0, gocbcore.ErrMemdClientClosed), "SOCKET_NOT_AVAILABLE", dispatch},
		"breaker":              {gocb.ErrCircuitBreakerOpen, "CIRCUIT_BREAKER_OPEN", dispatch},
		"queue":                {gocb.ErrOverload, "PIPELINE_OVERLOADED", dispatch},
		"no endpoint":          {&gocb.QueryError{InnerError: gocb.ErrServiceNotAvailable}, "SERVICE_NOT_AVAILABLE", dispatch},
		"query, refused":       {query(refused), "SOCKET_NOT_AVAILABLE", dispatch},
		"query, lost":          {query(reset), "SOCKET_CLOSED_WHILE_IN_FLIGHT", unreported},
		"query, ended":         {query(io.ErrUnexpectedEOF), "SOCKET_CLOSED_WHILE_IN_FLIGHT", unreported},
		"attempt timeout":      {context.DeadlineExceeded, "TIMED_OUT_IN_FLIGHT", unreported},
		"cancelled":            {gocb.ErrRequestCanceled, "", unreported},
		"cancelled by context": {context.Canceled, "", unreported},
		"closed":               {gocb.ErrShutdown, "", unreported},
		"value":                {gocb.ErrEncodingFailure, "", unreported},
	} {
		reason, stage := classify(tt.err)
		assert.Equal(t, named(t, tt.want), reason, name)
		assert.Equal(t, tt.stage, stage, name)
	}
}

func TestClassifier_Timeouts(t *testing.T) {
	kv := func(inner error, to string, reasons ...gocb.RetryReason) error {
		opaque := "0"
		if to != "" {
			opaque = "17"
		}
		return &gocb.TimeoutError{
			InnerError: inner, OperationID: "Set", Opaque: opaque, LastDispatchedTo: to,
			RetryReasons: reasons, RetryAttempts: uint32(len(reasons)),
		}
	}
	query := func(inner error, descs []gocb.QueryErrorDesc, reasons ...gocb.RetryReason) error {
		timeout := &gocbcore.TimeoutError{InnerError: inner, OperationID: "http", LastDispatchedTo: "http://127.0.0.1:8093"}
		return &gocb.QueryError{InnerError: timeout, Errors: descs, RetryReasons: reasons}
	}
	const node = "127.0.0.1:11210"
	ambiguous, unambiguous := gocb.ErrAmbiguousTimeout, gocb.ErrUnambiguousTimeout
	locked, outdated := gocb.KVLockedRetryReason, gocb.KVCollectionOutdatedRetryReason
	socket := gocb.SocketNotAvailableRetryReason
	timedOut := []gocb.QueryErrorDesc{{Code: 1080}}
	for name, tt := range map[string]struct {
		err   error
		want  predicates.Reason
		stage predicates.Stage
	}{
		"write in flight":          {kv(ambiguous, node), netretry.TimedOut, unreported},
		"write, not dispatched":    {kv(ambiguous, ""), weak(named(t, "NODE_NOT_AVAILABLE")), unreported},
		"read, not dispatched":     {kv(unambiguous, ""), named(t, "NODE_NOT_AVAILABLE"), unreported},
		"write after refusals":     {kv(ambiguous, node, locked), weak(named(t, "KV_LOCKED")), unreported},
		"write, always retried":    {kv(ambiguous, node, outdated), weak(named(t, "KV_COLLECTION_OUTDATED")), unreported},
		"no such collection":       {kv(ambiguous, "", outdated), weak(named(t, "KV_COLLECTION_OUTDATED")), unreported},
		"no collection to read":    {kv(unambiguous, "", outdated), named(t, "KV_COLLECTION_OUTDATED"), unreported},
		"read":                     {kv(unambiguous, node), named(t, "UNAMBIGUOUS_TIMEOUT"), unreported},
		"read after refusals":      {kv(unambiguous, node, locked), named(t, "KV_LOCKED"), unreported},
		"two reasons":              {kv(unambiguous, node, outdated, locked), named(t, "KV_LOCKED"), unreported},
		"query, read only":         {query(unambiguous, nil), named(t, "UNAMBIGUOUS_TIMEOUT"), unreported},
		"query":                    {query(ambiguous, nil), netretry.TimedOut, unreported},
		"query, by the service":    {query(unambiguous, timedOut), netretry.TimedOut, unreported},
		"query, gocb's own retry":  {query(unambiguous, nil, socket), weak(named(t, "SOCKET_NOT_AVAILABLE")), unreported},
		"query without a config":   {&gocb.QueryError{InnerError: ambiguous}, netretry.TimedOut, unreported},
		"search":                   {&gocb.SearchError{InnerError: unambiguous}, named(t, "UNAMBIGUOUS_TIMEOUT"), unreported},
		"analytics":                {&gocb.AnalyticsError{InnerError: ambiguous}, netretry.TimedOut, unreported},
		"views":                    {&gocb.ViewError{InnerError: unambiguous}, named(t, "UNAMBIGUOUS_TIMEOUT"), unreported},
		"couchbase2, no addresses": {&gocb.TimeoutError{InnerError: ambiguous, Opaque: "5d41f0"}, netretry.TimedOut, unreported},
		"couchbase2, between retries": {
			&gocb.TimeoutError{InnerError: unambiguous, Opaque: "5d41f0", RetryReasons: []gocb.RetryReason{gocb.ServiceNotAvailableRetryReason}},
			weak(named(t, "SERVICE_NOT_AVAILABLE")), unreported,
		},
		"query, between its retries": {
			query(unambiguous, nil, gocb.QueryErrorRetryable), weak(named(t, "QUERY_ERROR_RETRYABLE")), unreported,
		},
		"query as a transaction": {unambiguous, netretry.TimedOut, unreported}, // without a type
		"waiting for replicas": {
			&gocb.TimeoutError{InnerError: unambiguous, OperationID: "WaitForConfigSnapshot"}, netretry.TimedOut, unreported,
		},
	} {
		reason, stage := classify(tt.err)
		assert.Equal(t, tt.want, reason, name)
		assert.Equal(t, tt.stage, stage, name)
	}
}

// gocb reports for a timeout of couchbase2:// whether the operation is idempotent. All
// other errors of couchbase2:// may hide a request that took effect: gRPC reports a
// connection that ends after the request was executed as Unavailable.
func TestClassifier_ErrorsOfCouchbase2(t *testing.T) {
	generic := func(inner error) error { return &gocb.GenericError{InnerError: inner} }
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, tt := range map[string]struct {
		err  error
		want predicates.Reason
	}{
		"unavailable": {generic(gocb.ErrServiceNotAvailable), weak(named(t, "SERVICE_NOT_AVAILABLE"))},
		"overload":    {generic(gocb.ErrOverload), weak(named(t, "PIPELINE_OVERLOADED"))},
		"refused":     {generic(refused), weak(named(t, "SOCKET_NOT_AVAILABLE"))},
		"ended":       {generic(io.EOF), named(t, "SOCKET_CLOSED_WHILE_IN_FLIGHT")},
		"read":        {&gocb.TimeoutError{InnerError: generic(gocb.ErrUnambiguousTimeout)}, named(t, "UNAMBIGUOUS_TIMEOUT")},
		"write":       {&gocb.TimeoutError{InnerError: generic(gocb.ErrAmbiguousTimeout)}, netretry.TimedOut},
		"internal":    {generic(gocb.ErrInternalServerFailure), none},
		"locked":      {generic(gocb.ErrDocumentLocked), none},
		"exists":      {generic(gocb.ErrDocumentExists), none},
		"refusal":     {generic(gocb.ErrAuthenticationFailure), none},
		"cancelled":   {generic(gocb.ErrRequestCanceled), none},
	} {
		reason, stage := classify(tt.err)
		assert.Equal(t, tt.want, reason, name)
		assert.Equal(t, unreported, stage, name)
	}
}

// The client of HTTP follows redirects. A server that redirects may have executed the
// request; the query service never redirects.
func TestClassifier_ConnectionAfterARedirect(t *testing.T) {
	refused := &url.Error{Op: "Post", URL: "http://127.0.0.1:8091/", Err: &net.OpError{
		Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED),
	}}
	for _, err := range []error{
		&gocb.HTTPError{InnerError: refused}, &gocb.AnalyticsError{InnerError: refused},
		&gocb.SearchError{InnerError: refused}, &gocb.ViewError{InnerError: refused}, refused,
	} {
		reason, stage := classify(err)
		assert.Equal(t, weak(named(t, "SOCKET_NOT_AVAILABLE")), reason, "%T", err)
		assert.Equal(t, unreported, stage, "%T", err)
	}
}

// With another strategy than NoRetries, gocb itself repeats requests that may have taken
// effect. Then the last error is not evidence about the earlier requests.
func TestClassifier_AfterRetriesOfGocb(t *testing.T) {
	inFlight := []gocb.RetryReason{gocb.SocketCloseInFlightRetryReason}
	exists := keyValue(memd.StatusKeyExists, gocb.ErrDocumentExists)
	exists.RetryReasons = inFlight
	locked := keyValue(memd.StatusLocked, gocb.ErrDocumentLocked)
	locked.RetryReasons = inFlight
	closed := keyValue(0, gocbcore.ErrMemdClientClosed)
	closed.RetryReasons = inFlight
	for _, tt := range []struct {
		err   error
		want  predicates.Reason
		stage predicates.Stage
	}{
		{exists, none, response},
		{locked, weak(named(t, "KV_LOCKED")), response},
		{closed, weak(named(t, "SOCKET_NOT_AVAILABLE")), unreported},
		{
			&gocb.QueryError{InnerError: gocb.ErrServiceNotAvailable, RetryReasons: []gocb.RetryReason{gocb.SocketNotAvailableRetryReason}},
			weak(named(t, "SERVICE_NOT_AVAILABLE")), unreported,
		},
	} {
		reason, stage := classify(tt.err)
		assert.Equal(t, tt.want, reason, "%v", tt.err)
		assert.Equal(t, tt.stage, stage, "%v", tt.err)
	}
}

// causedBy sets the cause of an error of a transaction, which gocb does not export.
func causedBy(err any, cause error) {
	field := reflect.ValueOf(err).Elem().FieldByName("cause")
	reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(cause))
}

// The cause of the error of a transaction is about one request of the transaction.
func TestClassifier_Transactions(t *testing.T) {
	ambiguous, failed, post := &gocb.TransactionCommitAmbiguousError{}, &gocb.TransactionFailedError{}, &gocb.TransactionFailedPostCommit{}
	for _, cause := range []error{
		gocb.ErrOverload, gocb.ErrCircuitBreakerOpen, gocb.ErrServiceNotAvailable, gocb.ErrUnambiguousTimeout,
		keyValue(memd.StatusLocked, gocb.ErrDocumentLocked), keyValue(memd.StatusKeyExists, gocb.ErrDocumentExists),
		&gocb.QueryError{InnerError: gocb.ErrParsingFailure, Errors: []gocb.QueryErrorDesc{{Code: 3000}}},
	} {
		causedBy(ambiguous, cause)
		causedBy(failed, cause)
		causedBy(post, cause)
		for _, err := range []error{ambiguous, failed, post, &gocb.TransactionExpiredError{}} {
			reason, stage := classify(err)
			assert.Equal(t, none, reason, "%T: %v", err, cause)
			assert.Equal(t, unreported, stage, "%T: %v", err, cause)
		}
		require.ErrorIs(t, ambiguous, cause)
	}
}

func TestClassifier_OtherOutcomes(t *testing.T) {
	c := couchbase.Classifier[string]()
	for _, a := range []predicates.Attempt[string]{{Err: assert.AnError}, {Results: []string{"x"}}, {}} {
		_, ok := c(&a)
		assert.False(t, ok)
		assert.Equal(t, unreported, a.Stage)
	}
	mine := predicates.NewReason("MINE", true, false)
	reason, ok := c(&predicates.Attempt[string]{Err: predicates.WithReason(keyValue(0x01, errServer), mine)})
	assert.True(t, ok)
	assert.Equal(t, mine, reason)
}

// A retry repeats all requests of the call.
func TestClassifier_JoinedErrors(t *testing.T) {
	locked := keyValue(memd.StatusLocked, gocb.ErrDocumentLocked)
	lost := keyValue(0, io.EOF)
	for name, tt := range map[string]struct {
		a, b error
		want predicates.Reason
	}{
		"both locked":   {locked, locked, named(t, "KV_LOCKED")},
		"and always":    {locked, keyValue(memd.StatusNotMyVBucket, errServer), named(t, "KV_LOCKED")},
		"and lost":      {locked, lost, named(t, "SOCKET_CLOSED_WHILE_IN_FLIGHT")},
		"and not sent":  {locked, &predicates.StageError{Stage: dispatch, Err: errServer}, named(t, "KV_LOCKED")},
		"and internal":  {locked, keyValue(memd.StatusInternalError, errServer), weak(named(t, "KV_LOCKED"))},
		"and unknown":   {locked, errServer, weak(named(t, "KV_LOCKED"))},
		"and a refusal": {locked, keyValue(memd.StatusKeyExists, gocb.ErrDocumentExists), named(t, "KV_LOCKED")},
	} {
		for _, err := range []error{errors.Join(tt.a, tt.b), errors.Join(tt.b, tt.a)} {
			reason, _ := classify(err)
			assert.Equal(t, tt.want, reason, "%s: %v", name, err)
		}
	}
}

// The client of another request of the call has reported that it was sent.
func TestClassifier_CallInDoubt(t *testing.T) {
	for _, err := range []error{
		keyValue(memd.StatusTmpFail, gocb.ErrTemporaryFailure),
		keyValue(memd.StatusNotMyVBucket, errServer),
		gocb.ErrOverload,
		predicates.WithReason(io.EOF, named(t, "SOCKET_NOT_AVAILABLE")),
	} {
		alone, _ := classify(err)
		assert.True(t, alone.AllowsNonIdempotentRetry(), "%v", err)
		a := &predicates.Attempt[string]{Err: err, Stage: network, InDoubt: true}
		beside, ok := couchbase.Classifier[string]()(a)
		assert.True(t, ok)
		assert.Equal(t, weak(alone), beside, "%v", err)
		assert.NotEqual(t, dispatch, a.Stage)
	}
}

// The function has reported the stage itself.
func TestClassifier_ReportedStage(t *testing.T) {
	for _, tt := range []struct {
		err      error
		reported predicates.Stage
		want     predicates.Reason
	}{
		{keyValue(0, io.EOF), dispatch, netretry.NotSent},
		{context.DeadlineExceeded, dispatch, netretry.NotSent},
		{gocb.ErrOverload, network, weak(named(t, "PIPELINE_OVERLOADED"))},
		{keyValue(memd.StatusLocked, gocb.ErrDocumentLocked), network, named(t, "KV_LOCKED")},
	} {
		reason, ok := couchbase.Classifier[string]()(&predicates.Attempt[string]{Err: tt.err, Stage: tt.reported})
		assert.True(t, ok)
		assert.Equal(t, tt.want, reason, "%v", tt.err)
	}
}

// request is a request as gocb passes it to its strategy.
type request struct{ reasons []gocb.RetryReason }

func (r request) RetryAttempts() uint32            { return uint32(len(r.reasons)) }
func (r request) Identifier() string               { return "1" }
func (r request) Idempotent() bool                 { return true }
func (r request) RetryReasons() []gocb.RetryReason { return r.reasons }

func TestNoRetries(t *testing.T) {
	delay := func(reason gocb.RetryReason, before ...gocb.RetryReason) time.Duration {
		return couchbase.NoRetries().RetryAfter(request{before}, reason).Duration()
	}
	for _, reason := range []gocb.RetryReason{
		gocb.UnknownRetryReason, gocb.SocketNotAvailableRetryReason, gocb.ServiceNotAvailableRetryReason,
		gocb.NodeNotAvailableRetryReason, gocb.KVLockedRetryReason, gocb.KVTemporaryFailureRetryReason,
		gocb.KVSyncWriteInProgressRetryReason, gocb.KVSyncWriteRecommitInProgressRetryReason,
		gocb.ServiceResponseCodeIndicatedRetryReason, gocb.SocketCloseInFlightRetryReason, gocb.CircuitBreakerOpenRetryReason,
		gocb.QueryIndexNotFoundRetryReason, gocb.QueryPreparedStatementFailureRetryReason,
		gocb.AnalyticsTemporaryFailureRetryReason, gocb.SearchTooManyRequestsRetryReason, gocb.QueryErrorRetryable,
	} {
		assert.Zero(t, delay(reason), "%v", reason) // 0 means no retry
	}
	errorMap := gocb.KVErrMapRetryReason
	assert.Positive(t, delay(errorMap))
	assert.Zero(t, delay(errorMap, errorMap), "once")
	for _, reason := range []gocb.RetryReason{
		gocbcore.NoPipelineSnapshotRetryReason, gocbcore.BucketNotReadyReason, gocbcore.ConnectionErrorRetryReason,
	} {
		assert.Positive(t, delay(reason), "%v: WaitUntilReady", reason)
	}
}

func ExampleClassifier() {
	policy := strategies.ReasonAware(couchbase.Classifier[string](), strategies.BestEffort[string]())
	for _, err := range []error{
		gocb.ErrOverload, // not sent
		&gocb.TimeoutError{InnerError: gocb.ErrAmbiguousTimeout, Opaque: "9", LastDispatchedTo: "10.0.0.1:11210"},
		&gocb.KeyValueError{InnerError: gocb.ErrDocumentLocked, StatusCode: 0x09},
		&gocb.KeyValueError{InnerError: gocb.ErrDocumentExists, StatusCode: 0x02},
	} {
		decision := strategiestest.Decide(policy, predicates.Attempt[string]{Number: 4, Err: err})
		text, _, _ := strings.Cut(err.Error(), " |")
		fmt.Printf("%s: %v\n", text, decision)
	}
	// Output:
	// queue overflowed: retry after 8ms (PIPELINE_OVERLOADED)
	// ambiguous timeout: no retry: refused (TIMED_OUT_IN_FLIGHT)
	// document locked: retry after 8ms (KV_LOCKED)
	// document exists: no retry: final (KV_STATUS_0x02)
}
