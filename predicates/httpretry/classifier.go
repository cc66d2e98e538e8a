package httpretry

import (
	"database/sql/driver"
	"errors"
	"io"
	"iter"
	"net/http"
	"strings"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

func init() { decision.SetNamedErrors(Classifier[struct{}](), plainTexts...) }

// plainTexts are the beginnings of the texts of all plain errors that the classifier may
// know: see kindOf and netretry.KindOf.
var plainTexts = []string{
	"http: server closed idle connection", "net/http: ", "http2: ", "stream error: ", "connection error: ",
	io.EOF.Error(), io.ErrUnexpectedEOF.Error(), io.ErrClosedPipe.Error(), driver.ErrBadConn.Error(),
}

// Classifier returns a classifier of HTTP calls: by the status of each [*StatusError] or
// each *http.Response among the results, otherwise by the error of the connection, as in
// the package documentation.
func Classifier[OUT any]() predicates.Classifier[OUT] {
	connection := netretry.ClassifierOf[OUT](kindOf)
	ofError := decision.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if e, ok := errors.AsType[*StatusError](a.Err); ok {
			return ofStatus(a, e)
		}
		if a.Stage == predicates.Unreported && notSent(a.Err) {
			a.Stage = predicates.ClientDispatch
		}
		return connection(a)
	})
	return func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if a.Err == nil {
			return ofResponses(a)
		}
		return ofError(a)
	}
}

func ofStatus[OUT any](a *predicates.Attempt[OUT], e *StatusError) (predicates.Reason, bool) {
	reason, ok := reasonFor(e.StatusCode, e.tracker)
	if around, found := errors.AsType[*predicates.StageError](a.Err); found &&
		around.Stage == predicates.ClientDispatch && a.Stage == predicates.ClientDispatch {
		if ok && !reason.IsRejection() {
			reason = netretry.NotSent
		}
		a.Stage = predicates.ClientDispatch
		return reason, ok
	}
	a.Stage = predicates.ResponseReceived
	return besideOthers(a, reason, e), ok
}

// besideOthers weakens the reason of one request, if another may have had an effect.
func besideOthers[OUT any](a *predicates.Attempt[OUT], reason predicates.Reason, e *StatusError) predicates.Reason {
	switch {
	case !e.Redirected && !a.InDoubt:
		return reason
	case e.Redirected && reason.AllowsNonIdempotentRetry() && !reason.IsRejection():
		return AfterRedirect
	}
	return decision.WeakestOf(reason, predicates.Reason{})
}

func ofResponses[OUT any](a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
	var reasons []predicates.Reason
	for resp := range responses(a) {
		e := statusError(resp)
		reason, _ := reasonFor(e.StatusCode, e.tracker)
		if !reason.IsZero() {
			reason = besideOthers(a, reason, e)
		}
		reasons = append(reasons, reason)
		a.Stage = predicates.ResponseReceived
	}
	reason := decision.WeakestOf(reasons...)
	return reason, !reason.IsZero()
}

// StatusCode returns a function for [predicates.ByCode] that returns the status of a
// [*StatusError] or of an *http.Response among the results. It returns false if several
// codes differ, or a joined error has no status.
func StatusCode[OUT any]() func(a *predicates.Attempt[OUT]) (int, bool) {
	return func(a *predicates.Attempt[OUT]) (int, bool) {
		var code int
		differ := false
		saw := func(c int) {
			differ = differ || code != 0 && code != c
			code = c
		}
		if a.Err == nil {
			for resp := range responses(a) {
				saw(resp.StatusCode)
			}
		} else {
			for _, err := range decision.Branches(a.Err) {
				e, ok := errors.AsType[*StatusError](err)
				if !ok {
					return 0, false
				}
				saw(e.StatusCode)
			}
		}
		if code == 0 || differ {
			return 0, false
		}
		return code, true
	}
}

func responses[OUT any](a *predicates.Attempt[OUT]) iter.Seq[*http.Response] {
	return func(yield func(*http.Response) bool) {
		if a.Err != nil || !holdsResponse[OUT]() {
			return
		}
		for i := range a.Results {
			if resp, ok := any(a.Results[i]).(*http.Response); ok && resp != nil && !yield(resp) {
				return
			}
		}
	}
}

// holdsResponse reports whether an OUT can be a response.
func holdsResponse[OUT any]() bool {
	var none OUT
	switch any(&none).(type) {
	case **http.Response, *any:
		return true
	}
	return false
}

// cannotRewind is the error of a request that could not be written to its connection, nor
// to another, since its body was closed. net/http repeats a written request only if its
// body can be read again.
const cannotRewind = "net/http: cannot rewind body after connection loss"

// kindOf is netretry.KindOf, and also knows texts of net/http.
func kindOf(err error) netretry.Kind {
	if e, ok := errors.AsType[*notSentError](err); ok && refusedByProxy(e.error) {
		return netretry.Dial
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		switch text := e.Error(); {
		case text == "net/http: TLS handshake timeout":
			return netretry.Dial
		case text == "http: server closed idle connection", text == cannotRewind,
			strings.HasPrefix(text, "net/http: HTTP/1.x transport connection broken: "),
			lostOverHTTP2(text):
			return netretry.Lost
		}
	}
	return netretry.KindOf(err)
}

// refusedByProxy reports whether err, of an unsent request, is a temporary refusal of
// CONNECT by a proxy. net/http keeps only the status text.
func refusedByProxy(err error) bool {
	switch err.Error() {
	case http.StatusText(http.StatusTooManyRequests), http.StatusText(http.StatusBadGateway),
		http.StatusText(http.StatusServiceUnavailable), http.StatusText(http.StatusGatewayTimeout):
		return true
	}
	return false
}
