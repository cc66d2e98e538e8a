package asyncop

import (
	"fmt"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
)

// Similar failures have one line per groupPeriod. At most groupedFailures per second are
// grouped, in some milliseconds.
const (
	mostGroups      = 100
	groupPeriod     = 10 * time.Second
	groupedFailures = 1000
)

// failureGroups has the groups of failures of an operator.
type failureGroups struct {
	mu     sync.Mutex
	groups *counting.Groups // guarded by mu

	// Owned by the loop.
	second time.Duration // start of the second in which looked counts
	looked int
}

// Groups returns the failed elements that were handed over or dropped, grouped by similar
// failures: the largest group first, at most 100. Failures without a group, and failures
// beyond 1,000 in a second, are in the last group, which has Rest.
func (op *AsyncWaitOperator[IN, OUT]) Groups() (all []observe.Group) {
	f := &op.front.groups
	f.mu.Lock()
	found, rest := f.groups.All()
	f.mu.Unlock()
	for _, g := range found {
		all = append(all, observe.Group{
			Type: g.Kind, Reason: g.Reason, Error: g.Error, Count: int64(g.Count), First: g.First, Last: g.Last, ExampleText: g.ExampleText,
		})
	}
	if rest.Count > 0 {
		all = append(all, observe.Group{Count: int64(rest.Count), First: rest.First, Last: rest.Last, Rest: true})
	}
	return all
}

// group counts a failure, and reports whether it gets a line of its own. write writes the
// line of the group at the end of its period.
func (s *frontend[IN, OUT]) group(r core.Report[IN], write func(more int)) (hasLine bool) {
	f, now := &s.groups, s.now()
	if now-f.second >= time.Second {
		f.second, f.looked = now, 0
	}
	key, text := counting.Key{Kind: "more than a second allows"}, ""
	f.looked++
	if f.looked <= groupedFailures {
		_ = s.offLoop(func() error { // user code: the error
			text = guard.Text(r.Err)
			key = counting.Key{Kind: fmt.Sprintf("%T", r.Err), Reason: r.Reason.Name(), Error: counting.Alike(text)}
			return nil
		})
	}
	at := s.clock.Now()
	f.mu.Lock()
	if f.looked <= groupedFailures {
		f.groups.Add(key, at, "", text)
	} else {
		f.groups.AddRest(at)
	}
	f.mu.Unlock()
	return s.mayWrite(key, 1, groupPeriod, write)
}
