package asyncop

import (
	"slices"
	"sync"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/gate"
	"github.com/weirflow/weir/message"
)

// mostWays bounds the ways that an operator keeps.
const mostWays = 256

// keptWays are the ways of the elements that have ended last. Safe for concurrent use.
type keptWays struct {
	mu   sync.Mutex
	ways []observe.Way // a ring
	next int
}

func (k *keptWays) add(w observe.Way) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ways) < mostWays {
		k.ways = append(k.ways, w)
		return
	}
	k.ways[k.next] = w
	k.next = (k.next + 1) % mostWays
}

// Ways returns what elements have been through that failed, were slow (more than half of their timeout) or were asked for ([WithWaysOf]):
// the last 256 that have ended, at most 10 of a second, the oldest first. Steps are noted for up to 512 elements in flight at a time.
// A delivery.Queue stores them with a message that failed, and weir dead show shows them.
func (op *AsyncWaitOperator[IN, OUT]) Ways() []observe.Way {
	k := op.ways
	k.mu.Lock()
	defer k.mu.Unlock()
	return append(slices.Clone(k.ways[k.next:]), k.ways[:k.next]...)
}

// WithWaysOf asks for the ways of elements, although they succeed at once: see [AsyncWaitOperator.Ways]. asked is called for each element
// that does, while the operator waits, and must not block. The element of a panic is not asked for. IN must be the operator's. It panics
// if asked is nil.
func WithWaysOf[IN any](asked func(in IN) bool) Option {
	if asked == nil {
		panic("asyncop: WithWaysOf: nil function")
	}
	return func(cfg *config) { cfg.waysOf = asked }
}

// wayKeeper is the user's side of the ways.
func (s *userSide[IN, OUT]) wayKeeper() core.WayKeeper[IN] {
	k := core.WayKeeper[IN]{Keep: s.keepWay}
	if asked, _ := s.waysOf.(func(IN) bool); asked != nil {
		k.Asked = func(in IN) (yes bool) {
			return s.offLoop(func() error { yes = asked(in); return nil }) == nil && yes
		}
	}
	if b, ok := s.backend.(gate.Steered); ok {
		k.Backend = func() string { return b.Report().State }
	}
	return k
}

// keepWay keeps the way of an element that has ended.
func (s *userSide[IN, OUT]) keepWay(r core.Report[IN], how observe.EndKind, steps []observe.Step) {
	w := observe.Way{
		Element: s.logLabelOf(r.Element), Accepted: s.clock.Now().Add(-r.Elapsed), Total: r.Elapsed, Attempts: r.Attempts, Steps: steps, How: how,
	}
	if how != observe.Emitted && how != observe.Empty {
		w.Err = r.Err
	}
	_ = s.offLoop(func() error { // the context is one of the observers'
		meta, _ := message.MetaFromContext(r.Context)
		w.ID, w.Visit = meta.ID, meta.Visit
		return nil
	})
	s.ways.add(w)
}
