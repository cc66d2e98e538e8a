package asyncop

import (
	"slices"
	"sync"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
)

const maxTimelines = 256

// timelines has the newest timelines. It is safe for concurrent use.
type timelines struct {
	mu   sync.Mutex
	kept []observe.Timeline // oldest first
}

// Timelines returns the timelines of elements that failed, that took more than half of
// their timeout, or that have a method KeepsTimeline() bool which returned true. The
// operator waits for this method, so it must not block. The result has the last 256 such
// elements, at most 10 per second, the oldest first. Attempts are recorded for up to 512
// elements in flight at a time. An element that AsyncInvoke itself completes may not
// count as slow. A delivery.Queue stores the timeline with a failed message, and weir
// dead show prints it.
func (op *AsyncWaitOperator[IN, OUT]) Timelines() []observe.Timeline {
	k := &op.front.timelines
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.kept)
}

// timelineAsker is an element that asks for its timeline: see Timelines.
type timelineAsker interface{ KeepsTimeline() bool }

// AsksForTimeline is a method of drive.User.
func (s *frontend[IN, OUT]) AsksForTimeline(in IN) (yes bool) {
	err := s.offLoop(func() error { yes = any(in).(timelineAsker).KeepsTimeline(); return nil })
	return err == nil && yes
}

// KeepTimeline is a method of drive.User.
func (s *frontend[IN, OUT]) KeepTimeline(r core.Report[IN], how observe.EndKind, steps []observe.Step) {
	meta := s.metaOf(r.Context)
	t := observe.Timeline{
		Element: s.labelOf(r.Element, false), ID: meta.ID, Visit: meta.Visit,
		Accepted: s.clock.Now().Add(-r.Elapsed), Total: r.Elapsed, Attempts: r.Attempts, Steps: steps, How: how,
	}
	if how != observe.Emitted && how != observe.Empty {
		t.Err = r.Err
	}
	k := &s.timelines
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.kept) == maxTimelines {
		k.kept = slices.Delete(k.kept, 0, 1) // cheap: at most 10 per second
	}
	k.kept = append(k.kept, t)
}
