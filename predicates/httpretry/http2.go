package httpretry

import "strings"

// net/http exports no types for errors of HTTP/2. golang.org/x/net/http2 has the same
// texts.

const (
	goAwayBelow   = "http2: Transport received Server's graceful shutdown GOAWAY"
	goAwayAtFirst = "http2: Transport received GOAWAY from server ErrCode:"
	cannotRetry   = "http2: Transport: cannot retry err ["
)

// lostOverHTTP2 reports whether text is an error of an ended connection or stream.
func lostOverHTTP2(text string) bool {
	if code, ok := streamError(text); ok {
		return code != "HTTP_1_1_REQUIRED" && code != "INADEQUATE_SECURITY" // a retry would fail the same way
	}
	for _, prefix := range []string{
		"http2: client connection lost", "http2: server sent GOAWAY and closed the connection", "http2: client conn",
		goAwayBelow, goAwayAtFirst, cannotRetry, "connection error: ",
	} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// streamError returns the code of the error that ended a stream. ok is false for another
// error, or if the client could not read the answer.
func streamError(text string) (code string, ok bool) {
	text, ok = strings.CutPrefix(text, "stream error: stream ID ")
	if !ok {
		return "", false
	}
	_, text, _ = strings.Cut(text, "; ")
	code, cause, _ := strings.Cut(text, "; ")
	return code, cause == "" || cause == "received from peer"
}

// unprocessed reports whether err proves that the server has not processed the request
// (RFC 9113, 8.7): RST_STREAM with REFUSED_STREAM, a GOAWAY below the stream of the
// request, or a request that was never written.
func unprocessed(err error) bool {
	text := err.Error()
	if inner, ok := strings.CutPrefix(text, cannotRetry); ok {
		text, _, _ = strings.Cut(inner, "]")
	}
	code, _ := streamError(text)
	return code == "REFUSED_STREAM" || text == goAwayBelow || text == cannotRewind || strings.HasPrefix(text, goAwayAtFirst)
}
