package call

import "math"

// CostKey is the context key of the [CostReporter] of a call.
type CostKey struct{}

// CostReporter receives the real costs of a call, which add up.
type CostReporter interface{ ReportCost(cost float64) }

// isReported marks a reported cost, which is not negative, by the sign bit.
const isReported = 1 << 63

// ReportCost adds to the cost, unless the attempt has ended.
func (t *Token) ReportCost(cost float64) {
	if t.state.Load()&contextEnded != 0 {
		return
	}
	sum := &t.ensureSignal().cost
	for {
		old := sum.Load()
		total := math.Float64frombits(old&^isReported) + cost
		if sum.CompareAndSwap(old, math.Float64bits(total)|isReported) {
			return
		}
	}
}

// Cost returns the reported cost, if there is one.
func (t *Token) Cost() (cost float64, ok bool) {
	s := t.signal.Load()
	if s == nil {
		return 0, false
	}
	bits := s.cost.Load()
	return math.Float64frombits(bits &^ isReported), bits&isReported != 0
}

// ReportCost divides the cost of a batch equally among its members.
func (b *Batch[IN, OUT]) ReportCost(cost float64) {
	for _, m := range b.ctxs {
		r, ok := m.Value(CostKey{}).(CostReporter)
		if ok {
			r.ReportCost(cost / float64(len(b.ctxs)))
		}
	}
}
