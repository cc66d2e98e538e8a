package couchbase

import (
	"errors"
	"strings"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// byStatus are the listed statuses of the key-value service.
var byStatus = map[Status]predicates.Reason{
	NotMyVBucket:                KVNotMyVBucket,
	CollectionOutdated:          KVCollectionOutdated,
	Locked:                      KVLocked,
	TemporaryFailure:            KVTemporaryFailure,
	SyncWriteInProgress:         KVSyncWriteInProgress,
	SyncWriteReCommitInProgress: KVSyncWriteReCommitInProgress,
}

// codeRow is the reason for a code of query or analytics, if the message contains text,
// which may be "".
type codeRow struct {
	text   string
	reason predicates.Reason
}

var byCode = map[Service]map[int]codeRow{
	Query: {
		4040: {reason: QueryPreparedStatementFailure},
		4050: {reason: QueryPreparedStatementFailure},
		4070: {reason: QueryPreparedStatementFailure},
		5000: {text: "queryport.indexNotFound", reason: QueryIndexNotFound},
	},
	Analytics: {
		23000: {reason: AnalyticsTemporaryFailure},
		23003: {reason: AnalyticsTemporaryFailure},
		23007: {reason: AnalyticsTemporaryFailure},
	},
}

// httpRow is the reason for a status of search or views.
type httpRow struct {
	reason predicates.Reason
	body   func(body string) bool // condition for the body, or nil
}

var byHTTPStatus = map[Service]map[int]httpRow{
	Search: {
		429: {reason: SearchTooManyRequests},
	},
	Views: {
		300: {reason: ViewsTemporaryFailure},
		301: {reason: ViewsTemporaryFailure},
		302: {reason: ViewsNoActivePartition},
		303: {reason: ViewsTemporaryFailure},
		307: {reason: ViewsTemporaryFailure},
		401: {reason: ViewsTemporaryFailure},
		404: {reason: ViewsTemporaryFailure, body: missing},
		408: {reason: ViewsTemporaryFailure},
		409: {reason: ViewsTemporaryFailure},
		412: {reason: ViewsTemporaryFailure},
		416: {reason: ViewsTemporaryFailure},
		417: {reason: ViewsTemporaryFailure},
		500: {reason: ViewsTemporaryFailure, body: temporary},
		501: {reason: ViewsTemporaryFailure},
		502: {reason: ViewsTemporaryFailure},
		503: {reason: ViewsTemporaryFailure},
		504: {reason: ViewsTemporaryFailure},
	},
}

// missing reports whether the body of a 404 has the reason "missing".
func missing(body string) bool { return strings.Contains(body, `"reason":"missing"`) }

// temporary returns false if the body of a 500 reports that the view does not exist, or
// that the arguments are wrong.
func temporary(body string) bool {
	permanent := strings.Contains(body, "{not_found, missing_named_view}") || strings.Contains(body, `"badarg"`)
	return !strings.Contains(body, "error") || !permanent
}

// Classifier returns a classifier of the errors of this package, and of errors with a
// reason ([predicates.WithReason]). errorMap returns the server's current error map,
// which may be nil. If errorMap itself is nil, the classifier does not know statuses that
// only the error map explains.
//
// It sets the stage of the attempt to ResponseReceived for all responses. Of joined
// errors the reason that allows least counts: see [predicates.Classifier]. If another
// request of the call is in doubt ([predicates.Attempt.InDoubt]), reasons keep their
// names but do not allow a retry of calls that must not happen twice.
func Classifier[OUT any](errorMap func() *ErrorMap) predicates.Classifier[OUT] {
	chain := []predicates.Classifier[OUT]{predicates.Named[OUT](), ofKV[OUT], ofQuery[OUT], ofHTTP[OUT]}
	if errorMap != nil {
		chain = append(chain, ofErrorMap[OUT](errorMap))
	}
	listed := decision.EachError(predicates.Classifiers(chain...))
	return func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		reason, ok := listed(a)
		if ok && a.InDoubt {
			reason = decision.WeakestOf(reason, predicates.Reason{})
		}
		return reason, ok
	}
}

func ofKV[OUT any](a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
	e := response[*KVError](a)
	switch {
	case e == nil, e.Command.DCP(), e.Command == GetCollectionID && e.Status == CollectionOutdated:
		return predicates.Reason{}, false
	case e.Command == Unlock && e.Status == Locked:
		return predicates.Reason{}, true // accept, and skip later classifiers
	}
	r, ok := byStatus[e.Status]
	return r, ok
}

// ofErrorMap returns a classifier of the statuses that only the server's error map knows.
// Without a retry indication it accepts the outcome and ends the chain: a repetition is
// not known to be safe. It ignores delays in the map, since RFC 0049 leaves them to the
// strategy.
func ofErrorMap[OUT any](errorMap func() *ErrorMap) predicates.Classifier[OUT] {
	return func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		e := response[*KVError](a)
		switch {
		case e == nil || e.Command.DCP() || e.Status.Known():
			return predicates.Reason{}, false
		case !errorMap().Retry(e.Status):
			return predicates.Reason{}, true
		}
		return KVErrorMapRetryIndicated, true
	}
}

func ofQuery[OUT any](a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
	e := response[*QueryError](a)
	if e == nil {
		return predicates.Reason{}, false
	}
	var reason predicates.Reason
	for _, c := range e.Errors {
		row, ok := byCode[e.Service][c.Code]
		if !ok || !strings.Contains(c.Message, row.text) {
			return predicates.Reason{}, false
		}
		if reason.IsZero() {
			reason = row.reason
		}
	}
	return reason, !reason.IsZero()
}

func ofHTTP[OUT any](a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
	e := response[*HTTPError](a)
	if e == nil {
		return predicates.Reason{}, false
	}
	row, ok := byHTTPStatus[e.Service][e.StatusCode]
	return row.reason, ok && (row.body == nil || row.body(e.Body))
}

// response returns the E in the error of a, or nil, and sets the stage if it finds one.
func response[E interface {
	*KVError | *QueryError | *HTTPError
	error
}, OUT any](a *predicates.Attempt[OUT]) E {
	if a.Err == nil {
		return nil
	}
	e, ok := errors.AsType[E](a.Err)
	if ok {
		a.Stage = predicates.ResponseReceived
	}
	return e
}
