package participant

import "github.com/weirflow/weir/internal/wiring"

// Passer is a flow or sink that declares whether barriers pass it, which [CanPass] trusts. It is for flows whose type does not show it, such as
// a Throttler of go-streams that is known not to discard:
//
//	type throttler struct{ *flow.Throttler }
//
//	func (throttler) PassesBarriers() bool { return true }
type Passer interface {
	// PassesBarriers reports whether each [Barrier] is passed on downstream, or is understood by a sink, and keeps its place.
	PassesBarriers() bool
}

// CanPass returns an error for a flow or sink that is known not to let a [Barrier] pass. A [Passer] is asked. The types of go-streams that
// assert the type of their elements would panic on a barrier or write it out, and a Throttler may discard it. CanPass accepts types that it does
// not know; if such a flow swallows barriers, checkpoints time out and name the participants that did not report.
func CanPass(next any) error { return wiring.CanPass(next) }
