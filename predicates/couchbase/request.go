package couchbase

import (
	"fmt"
	"net/http"

	"github.com/weirflow/weir/predicates"
)

// Service is the service that a request is sent to.
type Service uint8

// The services. The zero value is not a service.
const (
	KV Service = iota + 1
	Query
	Analytics
	Search
	Views
	ClusterManager
	Management
)

// String returns the name of the service.
func (s Service) String() string {
	names := [...]string{"none", "key-value", "query", "analytics", "search", "views", "cluster manager", "management"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("Service(%d)", uint8(s))
}

// Request has the properties of a request that decide whether it may be sent twice. Embed
// it in an element, so that the operator uses it.
type Request struct {
	Service  Service
	Command  Command // of KV
	ReadOnly bool    // of Query and Analytics: their property "readonly"
	Method   string  // of ClusterManager and Management: the HTTP method
}

var _ predicates.Idempotent = Request{}

// Idempotent reports whether the request is in the list of idempotent operations of RFC
// 0049:
//
//	KV                           by command, see Command.Idempotent
//	Query, Analytics             if readonly
//	Search, Views                always, although they are POST requests
//	ClusterManager, Management   every GET
func (r Request) Idempotent() bool {
	switch r.Service {
	case KV:
		return r.Command.Idempotent()
	case Query, Analytics:
		return r.ReadOnly
	case Search, Views:
		return true
	case ClusterManager, Management:
		return r.Method == http.MethodGet
	}
	return false
}
