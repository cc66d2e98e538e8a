package grpcretry

import (
	"strconv"
	"time"

	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
)

// PushbackKey is the key in the trailer of a call with which a server demands a delay.
const PushbackKey = "grpc-retry-pushback-ms"

// WithPushback returns err with the delay that the server demands, which policies of
// strategies.ReasonAware obey. values are the values of [PushbackKey] in the trailer of
// the call:
//
//	var trailer metadata.MD
//	row, err := client.Get(ctx, key, grpc.Trailer(&trailer))
//	return row, grpcretry.WithPushback(err, trailer.Get(grpcretry.PushbackKey))
//
// Without values it returns err unchanged, and nil if err is nil. status.Code finds the
// code of the result.
func WithPushback(err error, values []string) error {
	if delay, ok := Pushback(values); ok {
		return predicates.WithPushback(err, delay)
	}
	return err
}

// Pushback returns the delay in values: milliseconds, as a signed 32-bit integer. A
// negative number, other text, and several values mean never (A6, as implemented by
// gRPC-Go). ok is false if there are no values.
func Pushback(values []string) (delay time.Duration, ok bool) {
	if len(values) == 0 {
		return 0, false
	}
	ms, err := strconv.ParseInt(values[0], 10, 32)
	if len(values) > 1 || err != nil || ms < 0 {
		return decision.Never, true
	}
	return time.Duration(ms) * time.Millisecond, true
}
