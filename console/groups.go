package console

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
)

const (
	newest      = 10_000          // messages that are counted first
	firstGroups = 1 * time.Second // reading time until people see the groups of the newest messages
	firstWait   = 2 * time.Second // that a page waits for them
	compareTime = 1 * time.Second // at most, to compare kept groups with the queue
)

// group is a group of similar dead letters, and a filter that finds them.
type group struct {
	jobs.Group
	Filter store.Filter
}

// grouping is the known groups of a queue and filter.
type grouping struct {
	Groups   []group
	More     int       // known groups that are left out
	Messages int       // that were counted
	Oldest   time.Time // when the oldest of them arrived
	At       time.Time // of the count; zero before the first count
	IsPart   bool      // older messages are still being counted
	Percent  int       // that were counted, if IsPart is set
	Err      error     // why the last count failed, or nil

	// If the engine has kept the groups: the queue's messages then, and when the newest
	// arrived. Zero if unknown.
	Now    int
	Newest time.Time
}

// groupTable counts the groups of a queue and filter.
type groupTable struct {
	queue  string
	filter store.Filter
	life   context.Context    // of its count: it ends when the table is dropped
	drop   context.CancelFunc // ends life

	mu         sync.Mutex // guards what follows
	shown      grouping
	isCounting bool
	next       time.Time     // the earliest time of the next count
	isKept     bool          // the engine keeps the queue's groups; owned by the count
	answered   chan struct{} // closed when there is something to show
	isAnswered bool          // answered is closed
}

// groupsOf returns the groups of a queue. If they are unknown it waits for the groups of
// the newest messages, up to firstWait.
func (s *server) groupsOf(ctx context.Context, queue string, f store.Filter) grouping {
	t := s.groupTable(queue, f)
	t.mu.Lock()
	if !t.isCounting && !s.Clock.Now().Before(t.next) {
		t.isCounting = true
		go s.countGroups(t) // ends with the count, or t.life
	}
	t.mu.Unlock()
	limit := s.Clock.Timer(firstWait)
	defer limit.Stop()
	select {
	case <-t.answered:
	case <-limit.C:
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shown
}

// lastGrouping returns the groups that people have seen last, without counting.
func (s *server) lastGrouping(queue string, f store.Filter) grouping {
	s.mu.Lock()
	t := s.groups[filterValues(queue, f).Encode()]
	s.mu.Unlock()
	if t == nil {
		return grouping{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shown
}

// groupLike returns the group of a queue's dead letters that people have followed to a
// filter, from the count of all groups. The count of the messages that match would read
// the queue once more.
func (s *server) groupLike(ctx context.Context, queue string, f store.Filter) (g grouping, isKnown bool) {
	address := filterValues(queue, f).Encode()
	isLike := func(one group) bool { return filterValues(queue, one.Filter).Encode() == address }
	if !slices.ContainsFunc(s.lastGrouping(queue, store.Filter{}).Groups, isLike) {
		return grouping{}, false
	}
	g = s.groupsOf(ctx, queue, store.Filter{})
	i := slices.IndexFunc(g.Groups, isLike)
	if i < 0 {
		return grouping{}, false
	}
	g.Groups = g.Groups[i : i+1]
	g.Messages = g.Groups[0].Count
	g.More = 0
	g.Now = 0
	return g, true
}

// groupTable returns the table of a queue and filter. A new table may replace another,
// whose count ends.
func (s *server) groupTable(queue string, f store.Filter) *groupTable {
	key := filterValues(queue, f).Encode()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.groups[key]
	if t != nil {
		return t
	}
	for other, dropped := range s.groups {
		if len(s.groups) < manyKinds {
			break
		}
		dropped.drop()
		delete(s.groups, other) // an arbitrary table
	}
	t = &groupTable{queue: queue, filter: f, answered: make(chan struct{})}
	t.life, t.drop = context.WithCancel(s.ctx)
	s.groups[key] = t
	return t
}

// countGroups counts the newest messages, then the others, with rests.
func (s *server) countGroups(t *groupTable) {
	wait := freshFor
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.isCounting, t.next = false, s.Clock.Now().Add(wait)
	}()
	isFiltered := len(filterValues(t.queue, t.filter)) > 1
	if !isFiltered && t.isNew() {
		age := s.showKept(t)
		if age > 0 {
			wait = age
			return
		}
	}
	begun := s.Clock.Now()
	c := jobs.CountGroups(s.engine, t.queue, t.filter)
	took, err := s.countNewest(t, c)
	if err == nil {
		err = s.countRest(t, c)
	}
	wait = max(freshFor, share*took)
	if err != nil {
		t.fail(err)
		return
	}
	t.show(groupingOf(c, t.filter, s.Clock.Now()))
	messages, _ := c.Counted()
	switch {
	case isFiltered:
	case messages > newest:
		wait = max(wait, s.Clock.Since(begun)/share)
		s.keep(t, jobs.GroupReport{Took: s.Clock.Since(begun), Messages: messages, Groups: c.Groups()})
	case t.isKept: // the queue is counted soon
		s.keep(t, jobs.GroupReport{})
	}
}

// keep makes the engine keep the groups of a queue, or removes them if the report has no
// messages.
func (s *server) keep(t *groupTable, r jobs.GroupReport) {
	ctx, cancel := context.WithTimeout(t.life, callTime)
	defer cancel()
	err := s.jobs.KeepGroups(ctx, t.queue, r)
	if err == nil {
		t.isKept = r.Messages > 0
	}
	if err != nil && t.life.Err() == nil {
		s.Logger.LogAttrs(t.life, slog.LevelWarn, "console: the kept groups of a queue cannot be changed, so that each console counts them",
			slog.String("queue", t.queue), slog.String("error", guard.Text(err)))
	}
}

// countNewest counts the newest messages, and returns its reading time. A first count
// does not wait for rests.
func (s *server) countNewest(t *groupTable, c *jobs.GroupCount) (took time.Duration, err error) {
	reserve := s.pace.reserve
	if t.isNew() {
		reserve = s.pace.reserveFirst
	}
	release, err := reserve(t.life)
	if err != nil {
		return 0, err
	}
	defer release()
	begun := s.Clock.Now()
	for {
		isDone, err := s.step(t, c)
		took = s.Clock.Since(begun)
		messages, _ := c.Counted()
		if err != nil || isDone || messages >= newest || took >= firstGroups {
			return took, err
		}
	}
}

// countRest counts the other messages, and shows progress.
func (s *server) countRest(t *groupTable, c *jobs.GroupCount) error {
	for c.Progress() < 1 {
		t.showPart(groupingOf(c, t.filter, s.Clock.Now()))
		release, err := s.pace.reserve(t.life)
		if err != nil {
			return err
		}
		_, err = s.step(t, c)
		release()
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *server) step(t *groupTable, c *jobs.GroupCount) (isDone bool, err error) {
	ctx, cancel := context.WithTimeout(t.life, callTime)
	defer cancel()
	return c.Step(ctx)
}

// showKept shows the groups that the engine keeps, perhaps of another console, unless the
// queue has changed since. It returns the time until they should be counted anew.
func (s *server) showKept(t *groupTable) time.Duration {
	ctx, cancel := context.WithTimeout(t.life, callTime)
	defer cancel()
	kept, isThere, err := s.jobs.KeptGroups(ctx, t.queue)
	if err != nil || !isThere {
		return 0
	}
	t.isKept = true
	g := grouping{Messages: kept.Messages, At: kept.At, More: kept.More, Groups: groupsFor(kept.Groups, t.filter)}
	isValid, err := s.compare(ctx, t.queue, &g)
	if err != nil {
		return 0
	}
	if !isValid {
		s.keep(t, jobs.GroupReport{})
		return 0
	}
	t.show(g)
	return min(kept.Took, kept.Took-s.Clock.Since(kept.At))
}

// compare reports whether kept groups still describe a queue: a message that they count
// is still there, and the number of messages has changed by a tenth at most, or takes
// longer than compareTime to count. It sets g.Now and g.Newest.
func (s *server) compare(ctx context.Context, queue string, g *grouping) (isValid bool, err error) {
	first, err := s.engine.List(ctx, queue, store.Filter{}, store.Page{Max: 1})
	if err != nil || len(first) == 0 || first[0].Arrived.After(g.At) {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, compareTime)
	defer cancel()
	begun := s.Clock.Now()
	n, err := s.engine.Count(ctx, queue, store.Filter{})
	s.pace.chargeRead(s.Clock.Since(begun))
	if ctx.Err() != nil {
		return true, nil
	}
	if err != nil || n.Messages == 0 {
		return false, err
	}
	last, err := s.engine.List(ctx, queue, store.Filter{}, store.Page{After: n.Last - 1, Max: 1})
	if err != nil {
		return false, err
	}
	g.Now = n.Messages
	if len(last) > 0 {
		g.Newest = last[0].Arrived
	}
	change := max(n.Messages-g.Messages, g.Messages-n.Messages)
	return change <= g.Messages/10, nil
}

func groupingOf(c *jobs.GroupCount, f store.Filter, now time.Time) grouping {
	g := grouping{At: now, Groups: groupsFor(c.Groups(), f), IsPart: c.Progress() < 1, Percent: int(100 * c.Progress())}
	g.Messages, g.Oldest = c.Counted()
	return g
}

func groupsFor(found []jobs.Group, f store.Filter) []group {
	groups := make([]group, len(found))
	for i, g := range found {
		groups[i] = group{g, likeGroup(f, g)}
	}
	return groups
}

func (t *groupTable) isNew() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shown.At.IsZero()
}

func (t *groupTable) show(g grouping) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown = g
	t.answer()
}

// showPart shows a part of a count, unless there is an older complete one.
func (t *groupTable) showPart(g grouping) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shown.At.IsZero() || t.shown.IsPart {
		t.shown = g
		t.answer()
	}
}

func (t *groupTable) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shown.Err = err
	t.answer()
}

// answer ends the wait of pages. t.mu is held.
func (t *groupTable) answer() {
	if !t.isAnswered {
		t.isAnswered = true
		close(t.answered)
	}
}

// likeGroup returns a filter for the messages of a group. A filter finds parts of an
// error, so it may find others.
func likeGroup(f store.Filter, g jobs.Group) store.Filter {
	f.Cause = g.Cause
	if g.Reason != "" {
		f.Reason = g.Reason
	}
	longest := ""
	for part := range strings.SplitSeq(g.Error, "#") {
		part = strings.TrimSpace(part)
		if len(part) > len(longest) && strings.Contains(g.ExampleText, part) {
			longest = part
		}
	}
	if len(longest) > len(f.Error) {
		f.Error = longest
	}
	return f
}

type groupRow struct {
	group
	Path     string
	SendBack string // the page before the messages are sent back
}

// Text is the common text of the errors, with the words that are the same in all of them.
func (g groupRow) Text() string {
	if counting.Alike(g.ExampleText) != g.Error {
		return g.Error
	}
	return counting.AlikeBut(g.ExampleText, func(word string) bool {
		return slices.ContainsFunc(g.Replaced, func(v jobs.Frequency) bool { return v.Text == word && v.Count == g.Count })
	})
}

// Frequent describes what most messages of the group have in common.
func (g groupRow) Frequent() (list []string) {
	for _, kind := range []struct {
		name   string
		values []jobs.Frequency
	}{{"key ", g.Keys}, {"provider ", g.Providers}, {"", g.Replaced}} {
		for _, v := range kind.values {
			count := num(v.Count)
			if v.AtLeast {
				count = "at least " + count
			}
			list = append(list, fmt.Sprintf("%s%s: %s of %s", kind.name, cut(60, v.Text), count, num(g.Count)))
		}
	}
	return list
}

// bar is a span of a histogram, in a picture 96 wide and 20 high.
type bar struct{ X, Y, Height int }

// Bars returns when the messages of the group arrived, the newest on the right.
func (g groupRow) Bars() (list []bar) {
	most := 1
	for _, n := range g.Arrivals.Counts {
		most = max(most, n)
	}
	for i, n := range g.Arrivals.Counts {
		if n > 0 {
			height := max(1, 20*n/most)
			list = append(list, bar{92 - 4*i, 20 - height, height})
		}
	}
	return list
}

// grouped adds groups to a page of dead letters, and notes whether one stands out.
func (s *server) grouped(ctx context.Context, d *queueData) {
	if len(d.Filter.IDs) > 0 {
		return // of few messages, which the list has
	}
	isKnown := false
	if d.Filtered {
		d.Grouping, isKnown = s.groupLike(ctx, d.Queue, d.Filter)
	}
	if !isKnown {
		d.Grouping = s.groupsOf(ctx, d.Queue, d.Filter)
	}
	g := &d.Grouping
	if g.Err != nil {
		d.Failed = failure(300, g.Err)
	}
	for i, one := range g.Groups {
		if i == maxGroups {
			d.Rest = len(g.Groups) - i
			break
		}
		values := filterValues(d.Queue, one.Filter)
		row := groupRow{group: one, Path: s.address("/queue", values)}
		values.Set("do", "merge")
		row.SendBack = s.address("/start", values)
		d.Groups = append(d.Groups, row)
	}
	d.Rest += g.More
	isOfOneError := d.Filter.Error != "" && len(g.Groups) == 1 // the filter makes them alike
	if len(g.Groups) > 0 && !isOfOneError {
		d.Headline = headline(g)
	}
}

func headline(g *grouping) string {
	of := num(g.Messages)
	if g.IsPart {
		of = "the newest " + num(g.Messages)
	}
	largest := g.Groups[0].Count
	switch {
	case len(g.Groups) == 1 && g.IsPart:
		return "All of " + of + " failed alike, so it is one cause: look at one of them, and at the backend."
	case len(g.Groups) == 1:
		return "All of them failed alike, so it is one cause: look at one of them, and at the backend."
	case largest*10 >= g.Messages*8:
		return fmt.Sprintf("One failure stands out: %s of %s failed alike.", num(largest), of)
	default:
		return fmt.Sprintf("There are %d kinds of failures; the largest is %s of %s.", len(g.Groups)+g.More, num(largest), of)
	}
}
