package jobs

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
)

// groupStep is the most messages that a step of a GroupCount reads.
const groupStep = 1000

// GroupCount counts the dead letters of a queue in groups, the newest first.
// [CountGroups] makes it. It is not safe for concurrent use.
type GroupCount struct {
	store  store.Lister
	queue  string
	filter store.Filter

	// The positions of the first and the last message at the beginning, known if isBegun.
	// The count covers windows of positions, from the last to the first. In a window it
	// reads pages in the order of positions.
	isBegun     bool
	first, last int64
	isDone      bool
	until       int64 // last position of the window
	before      int64 // position before the window
	after       int64 // position of the last message that was read in it
	inWindow    int   // messages that were read in it
	window      int64 // its size

	groups  *counting.Groups
	details map[counting.Key]*details
	counted int
	oldest  time.Time // when the oldest counted message arrived
}

// CountGroups begins to count the dead letters of a queue that match f in groups, as
// [Groups] does, but in steps, the newest messages first, so that their groups are seen
// soon. Messages that arrive after the first step are left out.
func CountGroups(s store.Lister, queue string, f store.Filter) *GroupCount {
	return &GroupCount{
		store: s, queue: queue, filter: f, window: groupStep,
		groups: counting.NewGroups(maxGroups), details: map[counting.Key]*details{},
	}
}

// Step reads up to 1,000 messages, and reports whether they were the last. After an error
// it can be called again, and continues where it was.
func (c *GroupCount) Step(ctx context.Context) (isDone bool, err error) {
	if !c.isBegun {
		err := c.begin(ctx)
		if err != nil {
			return false, err
		}
	}
	if c.isDone {
		return true, nil
	}
	entries, err := c.store.List(ctx, c.queue, c.filter, store.Page{After: c.after, Until: c.until, Max: groupStep})
	if err != nil {
		return false, err
	}
	for i := range entries {
		c.add(&entries[i])
	}
	c.forgetDropped()
	if len(entries) > 0 {
		c.after = entries[len(entries)-1].Position
		c.inWindow += len(entries)
	}
	if len(entries) == 0 || c.after >= c.until {
		c.nextWindow()
	}
	return c.isDone, nil
}

func (c *GroupCount) begin(ctx context.Context) error {
	first, err := c.firstBehind(ctx, 0)
	if err != nil {
		return err
	}
	last := first
	if first > 0 {
		last, err = c.findLast(ctx, first)
		if err != nil {
			return err
		}
	}
	c.isDone = first == 0
	c.first = first
	c.last = last
	c.until = last
	c.before = max(first-1, last-c.window)
	c.after = c.before
	c.isBegun = true
	return nil
}

// findLast returns the position of the last message of the queue. It does not count the
// queue, which may take long: it looks ahead in steps that double, and then halve.
func (c *GroupCount) findLast(ctx context.Context, first int64) (last int64, err error) {
	last = first
	step := int64(1)
	for step > 0 { // it ends at an overflow as well
		next, err := c.firstBehind(ctx, last+step)
		if err != nil {
			return 0, err
		}
		if next == 0 {
			break
		}
		last = next
		step *= 2
	}
	for step > 0 {
		step /= 2
		next, err := c.firstBehind(ctx, last+step)
		if err != nil {
			return 0, err
		}
		if next > 0 {
			last = next
		}
	}
	return last, nil
}

// firstBehind returns the position of the first message behind a position, or 0.
func (c *GroupCount) firstBehind(ctx context.Context, position int64) (next int64, err error) {
	entries, err := c.store.List(ctx, c.queue, store.Filter{}, store.Page{After: position, Max: 1})
	if err != nil || len(entries) == 0 {
		return 0, err
	}
	return entries[0].Position, nil
}

// nextWindow begins the window before this one. Windows grow where few messages match.
func (c *GroupCount) nextWindow() {
	switch {
	case c.inWindow < groupStep/2:
		c.window *= 2
	case c.inWindow > 2*groupStep:
		c.window = max(1, c.window/2)
	}
	c.inWindow = 0
	c.until = c.before
	c.isDone = c.until < c.first
	c.before = max(c.first-1, c.until-c.window)
	c.after = c.before
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
func (c *GroupCount) Progress() float64 {
	switch {
	case c.isDone:
		return 1
	case !c.isBegun:
		return 0
	}
	return float64(c.last-c.until) / float64(c.last-c.first+1)
}

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
