package couchbase

import (
	"errors"
	"fmt"
	"strings"
)

// ErrCASMismatch is matched by a key-value error if the document is not in the state that
// the caller expected: Locked as the answer to Unlock.
var ErrCASMismatch = errors.New("couchbase: CAS mismatch")

// KVError is a response of the key-value service that is not a success.
type KVError struct {
	Command Command
	Status  Status
}

func (e *KVError) Error() string {
	return fmt.Sprintf("couchbase: %v: status %v", e.Command, e.Status)
}

// Is reports that Locked on Unlock is an [ErrCASMismatch].
func (e *KVError) Is(target error) bool {
	return target == ErrCASMismatch && e.Command == Unlock && e.Status == Locked
}

// CodedError is an error in a response of query or analytics.
type CodedError struct {
	Code    int
	Message string
}

// QueryError is a response of query or analytics with errors in it.
type QueryError struct {
	Service Service // Query or Analytics
	Errors  []CodedError
}

func (e *QueryError) Error() string {
	texts := make([]string, len(e.Errors))
	for i, c := range e.Errors {
		texts[i] = fmt.Sprintf("%d %s", c.Code, c.Message)
	}
	return fmt.Sprintf("couchbase: %v: %s", e.Service, strings.Join(texts, "; "))
}

// HTTPError is a response of search or views whose status is not a success.
type HTTPError struct {
	Service    Service // Search or Views
	StatusCode int
	Body       string
}

func (e *HTTPError) Error() string {
	return fmt.Sprintf("couchbase: %v: http status %d", e.Service, e.StatusCode)
}
