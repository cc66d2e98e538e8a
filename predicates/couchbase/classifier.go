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

// codeRow is a row of the codes of query and analytics: a code whose message must contain a text, which may be "".
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

// httpRow is a row of the statuses of search and views: a status whose body must satisfy a condition; nil: none.
type httpRow struct {
	reason predicates.Reason
	body   func(body string) bool
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

// missing reports whether the body of a 404 says that something is not there yet.
func missing(body string) bool { return strings.Contains(body, `"reason":"missing"`) }

// temporary reports whether the body of a 500 does not say that the view does not exist, or that the arguments are wrong.
func temporary(body string) bool {
	permanent := strings.Contains(body, "{not_found, missing_named_view}") || strings.Contains(body, `"badarg"`)
	return !strings.Contains(body, "error") || !permanent
}

// Classifier returns the classifier of the errors of this package, and of errors that name their own reason
// ([predicates.WithReason]). errorMap returns the server's current error map, which may be nil; where errorMap is nil itself,
// a client does not know the statuses that only the server knows.
//
// It sets the stage of the attempt to ResponseReceived for all responses. Of joined errors the reason that allows least counts:
// see [predicates.Classifier]. If another request of the call is in doubt ([predicates.Attempt.InDoubt]), reasons are left with
// their name.
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
		return predicates.Reason{}, true // final, whatever a later classifier says
	}
	r, ok := byStatus[e.Status]
	return r, ok
}

// ofErrorMap asks the server about the statuses that only its error map knows. One that the map does not have retried is
// accepted, and no other classifier is asked: what neither the client nor the server knows to be safe to repeat is not. How
// long to wait is not asked: RFC 0049 leaves that to the strategy.
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

// response returns the E that a ended with, or nil, and sets the stage.
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
