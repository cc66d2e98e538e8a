package grpcretry

import (
	"maps"
	"slices"
	"strings"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/netretry"
)

// The reasons of [Classifier], in addition to netretry.NotSent.
var (
	// DeadlineExceeded, 4: time ran out, maybe after the call had been executed.
	DeadlineExceeded = predicates.NewReason("GRPC_DEADLINE_EXCEEDED", false, false)
	// ResourceExhausted, 8: a quota or a limit.
	ResourceExhausted = predicates.NewReason("GRPC_RESOURCE_EXHAUSTED", false, false)
	// Unavailable, 14: the server could not be reached, or was lost.
	Unavailable = predicates.NewReason("GRPC_UNAVAILABLE", false, false)

	// InvalidArgument, 3, is a rejection, like the following reasons: the call was
	// refused for good, without effect.
	InvalidArgument = predicates.NewRejection("GRPC_INVALID_ARGUMENT")
	// NotFound, 5, is a rejection.
	NotFound = predicates.NewRejection("GRPC_NOT_FOUND")
	// AlreadyExists, 6, is a rejection.
	AlreadyExists = predicates.NewRejection("GRPC_ALREADY_EXISTS")
	// PermissionDenied, 7, is a rejection.
	PermissionDenied = predicates.NewRejection("GRPC_PERMISSION_DENIED")
	// FailedPrecondition, 9, is a rejection.
	FailedPrecondition = predicates.NewRejection("GRPC_FAILED_PRECONDITION")
	// Unauthenticated, 16, is a rejection.
	Unauthenticated = predicates.NewRejection("GRPC_UNAUTHENTICATED")
)

// Reasons returns all reasons of this package.
func Reasons() []predicates.Reason {
	return []predicates.Reason{
		DeadlineExceeded, ResourceExhausted, Unavailable,
		InvalidArgument, NotFound, AlreadyExists, PermissionDenied, FailedPrecondition, Unauthenticated,
	}
}

var (
	byCode = map[uint32]predicates.Reason{
		3:  InvalidArgument,
		4:  DeadlineExceeded,
		5:  NotFound,
		6:  AlreadyExists,
		7:  PermissionDenied,
		8:  ResourceExhausted,
		9:  FailedPrecondition,
		14: Unavailable,
		16: Unauthenticated,
	}
	// unsentByCode is for unsent calls. RESOURCE_EXHAUSTED then concerns the client, such
	// as the size of a message.
	unsentByCode = map[uint32]predicates.Reason{
		4:  netretry.NotSent,
		14: netretry.NotSent,
	}
)

// Classifier returns a classifier of gRPC calls by their status code, according to the
// table of the package. code returns the code of an error: status.Code of
// google.golang.org/grpc, or connect.CodeOf of connectrpc.com/connect. It panics if code
// is nil.
func Classifier[OUT any, C ~uint32](code func(err error) C) predicates.Classifier[OUT] {
	extract := Code[OUT](code)
	number := func(a *predicates.Attempt[OUT]) (uint32, bool) {
		c, ok := extract(a)
		return uint32(c), ok
	}
	sent := predicates.ByCode(number, maps.Clone(byCode))
	unsent := predicates.ByCode(number, maps.Clone(unsentByCode))
	return decision.EachError(func(a *predicates.Attempt[OUT]) (predicates.Reason, bool) {
		if a.Stage == predicates.ClientDispatch {
			return unsent(a)
		}
		reason, ok := sent(a)
		switch {
		case reason == ResourceExhausted && tooLarge(a.Err):
			return predicates.Reason{}, true // the answer may be too large, after an effect
		case reason.IsRejection() && a.InDoubt: // another request may have had an effect
			return predicates.Reason{}, true
		}
		return reason, ok
	})
}

// tooLarge reports whether a message exceeded a limit, by the texts of gRPC and Connect,
// which have no code for it.
func tooLarge(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "message") && slices.ContainsFunc(limits, func(limit string) bool {
		return strings.Contains(text, limit)
	})
}

var limits = []string{
	"larger than", // gRPC for Go, C++ and its dependents, JavaScript; Connect
	"too large",
	"exceeds maximum size", // Java
	"exceeds the maximum",  // .NET
	"exceeds sendmaxbytes", // Connect
}

// Code returns a function for [predicates.ByCode] that returns the code of an error. It
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
