package asyncop

import (
	"fmt"
	"sync"
	"time"

	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/predicates"
)

// Similar failures have one line per groupPeriod. At most groupedFailures per second are
// grouped, which takes some milliseconds; others share a group.
const (
	mostGroups      = 100
	groupPeriod     = 10 * time.Second
	groupedFailures = 1000
)

// failureGroups has an operator's groups of failures.
type failureGroups struct {
	mu     sync.Mutex
	groups *counting.Groups // guarded by mu

	// Owned by the loop.
	failures  looks
	decisions looks // of debug lines, which do not count as failures
}

// looks counts the errors that were grouped in a second.
type looks struct {
	second time.Duration // its start
	n      int
}

// take reports whether another error may be grouped.
func (l *looks) take(now time.Duration) bool {
	if now-l.second >= time.Second {
		l.second, l.n = now, 0
	}
	l.n++
	return l.n <= groupedFailures
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

// count counts a failed element, and returns its group.
func (s *frontend[IN, OUT]) count(r core.Report[IN]) counting.Key {
	f := &s.groups
	key, text := s.groupOf(r.Err, r.Reason, &f.failures)
	at := s.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if key == beyondSecond {
		f.groups.AddRest(at)
	} else {
		f.groups.Add(key, at, "", text)
	}
	return key
}

// beyondSecond is the group of failures beyond groupedFailures, and of errors that break.
var beyondSecond = counting.Key{Kind: "more than a second allows"}

// groupOf returns the group of an error, and its text. The error is user code, and if it
// breaks, the group is beyondSecond.
func (s *frontend[IN, OUT]) groupOf(err error, reason predicates.Reason, looked *looks) (key counting.Key, text string) {
	if !looked.take(s.now()) {
		return beyondSecond, ""
	}
	key = beyondSecond
	_ = s.offLoop(func() error {
		text = guard.Text(err)
		key = counting.Key{Kind: fmt.Sprintf("%T", err), Reason: reason.Name(), Error: counting.Alike(text)}
		return nil
	})
	return key, text
}
