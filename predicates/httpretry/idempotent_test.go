package httpretry_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates/httpretry"
)

func TestIdempotentMethod(t *testing.T) {
	methods := map[string]bool{
		"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "PUT": true, "DELETE": true,
		"POST": false, "PATCH": false, "CONNECT": false, "get": false, "PROPFIND": false,
	}
	for method, want := range methods {
		assert.Equal(t, want, httpretry.IdempotentMethod(method), method)
		assert.Equal(t, want, httpretry.Idempotent(&http.Request{Method: method}), method)
		for _, key := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
			assert.True(t, httpretry.Idempotent(&http.Request{Method: method, Header: http.Header{key: {"42"}}}), method)
			assert.True(t, httpretry.Idempotent(&http.Request{Method: method, Header: http.Header{key: nil}}), method)
		}
		assert.Equal(t, want, httpretry.Idempotent(&http.Request{Method: method, Header: http.Header{"Key": {"42"}}}), method)
	}
	assert.True(t, httpretry.Idempotent(&http.Request{}))
	assert.False(t, httpretry.Idempotent("another type"))
	assert.False(t, httpretry.Idempotent(nil))
}
