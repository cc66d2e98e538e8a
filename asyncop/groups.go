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

// Failures that are alike have one line in groupPeriod. In a storm only groupedFailures
// of a second are looked at: that costs some milliseconds.
const (
	mostGroups      = 100
	groupPeriod     = 10 * time.Second
	groupedFailures = 1000
)

// failureGroups are the failures of an operator, in groups.
type failureGroups struct {
	mu     sync.Mutex
	groups *counting.Groups // guarded by mu

	// Owned by the loop.
	second time.Duration // since when looked counts
	looked int
}

// Groups returns the failed elements that were handed over or dropped, grouped by similar
// failures: the largest group first, at most 100. Failures that fit into none, or came
// when more than 1,000 failed within a second, are in the last group, which has Rest.
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

// group counts a failure, and reports whether it has a line of its own. write writes that
// of the group when its period is over.
func (s *frontend[IN, OUT]) group(r core.Report[IN], write func(more int)) (hasLine bool) {
	f, now := &s.groups, s.now()
	if now-f.second >= time.Second {
		f.second, f.looked = now, 0
	}
	key, text := counting.Key{Kind: "more than a second allows"}, ""
	if f.looked++; f.looked <= groupedFailures {
		_ = s.offLoop(func() error { // the error is of the user's code
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
