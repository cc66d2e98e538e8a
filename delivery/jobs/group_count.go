package jobs

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

// GroupCount counts the dead letters of a queue in groups, the newest first.
// [CountGroups] makes it. It is not safe for concurrent use.
type GroupCount struct {
	messages *storearg.Backward
	groups   *counting.Groups
	details  map[counting.Key]*details
	counted  int
	oldest   time.Time // when the oldest counted message arrived
}

// CountGroups begins to count the dead letters of a queue that match f in groups, as
// [Groups] does, but in steps, the newest messages first. Messages that arrive after the
// first step are left out. If f has times, CountGroups relies on messages that arrived in
// the order of their positions, to within a minute.
func CountGroups(s store.Lister, queue string, f store.Filter) *GroupCount {
	return &GroupCount{
		messages: storearg.ReadBackward(s, queue, f, store.Counts{}),
		groups:   counting.NewGroups(maxGroups), details: map[counting.Key]*details{},
	}
}

// Step reads up to 1,000 messages, and reports whether they were the last. After an error
// it can be called again, and continues where it was.
func (c *GroupCount) Step(ctx context.Context) (isDone bool, err error) {
	entries, err := c.messages.Step(ctx)
	if err != nil {
		return false, err
	}
	for i := range entries {
		c.add(&entries[i])
	}
	c.forgetDropped()
	return c.messages.IsDone(), nil
}

func (c *GroupCount) add(e *store.Entry) {
	text := guard.WithoutSecrets(e.Meta.LastError) // another program may have stored it
	common, replaced := counting.AlikeParts(text)
	key := counting.Key{Kind: string(e.Cause), Error: common}
	n := len(e.Meta.Reasons)
	if n > 0 {
		key.Reason = e.Meta.Reasons[n-1]
	}
	isNew := c.groups.Add(key, e.Arrived, e.Meta.ID, text)
	if isNew {
		c.details[key] = newDetails()
	}
	c.details[key].add(e, replaced)
	c.counted++
	if c.oldest.IsZero() || e.Arrived.Before(c.oldest) {
		c.oldest = e.Arrived
	}
}

// forgetDropped removes the details of groups that were merged into the rest.
func (c *GroupCount) forgetDropped() {
	if len(c.details) <= maxGroups {
		return
	}
	found, _ := c.groups.All()
	kept := make(map[counting.Key]*details, len(found))
	for _, g := range found {
		kept[g.Key] = c.details[g.Key]
	}
	c.details = kept
}

// Counted returns the number of counted messages, and when the oldest of them arrived.
func (c *GroupCount) Counted() (messages int, oldest time.Time) { return c.counted, c.oldest }

// Progress returns the share of the queue that was read, from 0 to 1.
func (c *GroupCount) Progress() float64 { return c.messages.Progress() }

// Groups returns the groups of the counted messages, the largest first.
func (c *GroupCount) Groups() []Group {
	found, rest := c.groups.All()
	all := make([]Group, 0, len(found)+1)
	for _, f := range found {
		g := Group{
			Cause: store.Cause(f.Kind), Reason: f.Reason, Error: f.Error, Count: f.Count, First: f.First, Last: f.Last,
			Example: f.Example, ExampleText: f.ExampleText,
		}
		c.details[f.Key].into(&g)
		all = append(all, g)
	}
	if rest.Count > 0 {
		all = append(all, Group{Count: rest.Count, First: rest.First, Last: rest.Last, Rest: true})
	}
	return all
}
