package asyncop

import (
	"reflect"
	"slices"
	"sync"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/gate"
)

// mostWays bounds the ways that an operator keeps.
const mostWays = 256

// keptWays are the ways of the elements that have ended last. Safe for concurrent use.
type keptWays struct {
	mu   sync.Mutex
	ways []observe.Way // the oldest first
}

// Ways returns the histories of elements that failed, were slow (more than half of their timeout) or ask for it by a method KeepsWay() bool,
// which is called while the operator waits and must not block. It has the last 256 that have ended, at most 10 of each second, the oldest first.
// Steps are noted for up to 512 elements in flight at a time. An element that AsyncInvoke itself completes may not count as slow, however long that
// took: the operator need not read the clock for it. A delivery.Queue stores the steps with a message that failed, and weir dead show shows them.
func (op *AsyncWaitOperator[IN, OUT]) Ways() []observe.Way {
	k := &op.side.ways
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.ways)
}

// wayKeeper is the user's side of the ways.
func (s *userSide[IN, OUT]) wayKeeper() core.WayKeeper[IN] {
	k := core.WayKeeper[IN]{Keep: s.keepWay}
	type asker interface{ KeepsWay() bool }
	if reflect.TypeFor[IN]().Implements(reflect.TypeFor[asker]()) {
		k.Asked = func(in IN) (yes bool) {
			return s.offLoop(func() error { yes = any(in).(asker).KeepsWay(); return nil }) == nil && yes
		}
	}
	if b, ok := s.backend.(gate.Steered); ok {
		k.Backend = func() string { return b.Report().State }
	}
	return k
}

// keepWay keeps the way of an element that has ended.
func (s *userSide[IN, OUT]) keepWay(r core.Report[IN], how observe.EndKind, steps []observe.Step) {
	meta := s.metaOf(r.Context)
	w := observe.Way{
		Element: s.labelOf(r.Element, false), ID: meta.ID, Visit: meta.Visit,
		Accepted: s.clock.Now().Add(-r.Elapsed), Total: r.Elapsed, Attempts: r.Attempts, Steps: steps, How: how,
	}
	if how != observe.Emitted && how != observe.Empty {
		w.Err = r.Err
	}
	k := &s.ways
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.ways) == mostWays {
		k.ways = slices.Delete(k.ways, 0, 1) // few come in a second
	}
	k.ways = append(k.ways, w)
}
