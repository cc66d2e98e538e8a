package httpretry

import "net/http"

// Idempotent reports whether input is a *[http.Request] that may be sent twice: by its
// method (RFC 9110, 9.2.2), or because it carries an Idempotency-Key or
// X-Idempotency-Key, by which the server recognises the repetition. The key has to be the
// same for all attempts.
//
// As in net/http, an empty key counts, too: the request is sent without it, but may be
// repeated.
//
//	policy.IdempotentIf(httpretry.Idempotent)
func Idempotent(input any) bool {
	req, ok := input.(*http.Request)
	return ok && (IdempotentMethod(req.Method) || hasKey(req))
}

// IdempotentMethod reports whether requests of method may be sent twice; "" is GET. POST,
// PATCH, CONNECT and methods outside RFC 9110 may not.
func IdempotentMethod(method string) bool {
	return safeMethod(method) || method == http.MethodPut || method == http.MethodDelete
}

// safeMethod reports whether method has no effect (RFC 9110, 9.2.1).
func safeMethod(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return false
}

func hasKey(req *http.Request) bool {
	return has(req.Header, "Idempotency-Key") || has(req.Header, "X-Idempotency-Key")
}

func has(h http.Header, key string) bool {
	_, ok := h[key]
	return ok
}
