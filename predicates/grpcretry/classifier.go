package grpcretry

import (
	"maps"

	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// The reasons that [Classifier] names, beside netretry.NotSent.
var (
	// DeadlineExceeded, 4: time ran out, maybe after the call had been executed.
	DeadlineExceeded = predicates.NewReason("GRPC_DEADLINE_EXCEEDED", false, false)
	// ResourceExhausted, 8: a quota or a limit.
	ResourceExhausted = predicates.NewReason("GRPC_RESOURCE_EXHAUSTED", false, false)
	// Unavailable, 14: the server could not be reached, or was lost.
	Unavailable = predicates.NewReason("GRPC_UNAVAILABLE", false, false)
)

// Reasons returns all reasons of this package, for [predicates.ReasonByName].
func Reasons() []predicates.Reason {
	return []predicates.Reason{DeadlineExceeded, ResourceExhausted, Unavailable}
}

var (
	byCode = map[uint32]predicates.Reason{
		4:  DeadlineExceeded,
		8:  ResourceExhausted,
		14: Unavailable,
	}
	// unsentByCode applies to calls of which the function reported that nothing was
	// sent. A resource that was exhausted then is one of the client, such as the
	// size of a message.
	unsentByCode = map[uint32]predicates.Reason{
		4:  netretry.NotSent,
		14: netretry.NotSent,
	}
)

// Classifier returns the classifier of gRPC calls by their status code, which
// code extracts from an error: status.Code of google.golang.org/grpc, or
// connect.CodeOf of connectrpc.com/connect. See the package documentation for its
// table. It panics if code is nil.
func Classifier[OUT any, C ~uint32](code func(err error) C) predicates.Classifier[OUT] {
	extract := Code[OUT](code)
	number := func(a *predicates.Attempt[OUT]) (uint32, bool) {
		c, ok := extract(a)
		return uint32(c), ok
	}
	sent := predicates.ByCode(number, maps.Clone(byCode))
	unsent := predicates.ByCode(number, maps.Clone(unsentByCode))
	return predicates.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if a.Stage == predicates.ClientDispatch {
			return unsent(a)
		}
		return sent(a)
	})
}

// Code returns the extraction, for [predicates.ByCode], of an error's code. It
// panics if code is nil.
func Code[OUT any, C ~uint32](code func(err error) C) func(a *predicates.Attempt[OUT]) (C, bool) {
	if code == nil {
		panic("grpcretry: Code: nil function")
	}
	return func(a *predicates.Attempt[OUT]) (C, bool) {
		if a.Err == nil {
			return 0, false
		}
		return code(a.Err), true
	}
}
