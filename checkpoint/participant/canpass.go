package participant

import "github.com/weirflow/weir/internal/wiring"

// Passer is a flow or sink that declares whether barriers pass it, for flows whose type
// does not show it, such as a Throttler of go-streams that is known not to discard:
//
//	type throttler struct{ *flow.Throttler }
//
//	func (throttler) PassesBarriers() bool { return true }
type Passer interface {
	// PassesBarriers reports whether each [Barrier] is passed on in order with the
	// elements, or is handled by a sink.
	PassesBarriers() bool
}

// CanPass returns an error for a flow or sink that is known not to let a [Barrier] pass.
// It calls PassesBarriers of a [Passer]. It rejects types of go-streams that assert the
// type of their elements, which would panic on a barrier or write it out, and a
// Throttler, which may discard it. It accepts unknown types; if one drops barriers,
// checkpoints time out.
func CanPass(next any) error { return wiring.CanPass(next) }
