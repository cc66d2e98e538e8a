package console

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

const (
	countTime     = 50 * time.Millisecond  // of a count before an action
	surveyTime    = 150 * time.Millisecond // of the count, and of looking at messages
	longestSurvey = queryTime / 2          // until the first message is found
)

// survey describes the messages of an action on the page before it.
type survey struct {
	Count     int
	IsAtLeast bool      // there may be more than Count
	CountedAt time.Time // when the messages were counted; zero for now

	// Of a merge and a purge: the newest messages are looked at, as many as can be read.
	Looked int
	IsPart bool // these are not all
	Unsafe int  // of these, in doubt
	Lapsed int  // of these, to be looked at first

	// Of a merge, also of the messages that were looked at.
	Safe      int       // to repeat
	SafeUntil int       // to repeat for a while
	Until     time.Time // the earliest end of that while
	Pointless int       // that fail again unless something has changed
	Stays     int       // that no choice sends back

	newest    time.Time // the last arrival among the messages that were looked at
	hasCauses bool      // of dead letters
}

// surveyOf counts the messages of an action, and looks at the newest of them. A page can
// wait for it: if the queue is long, the count is an earlier one or a lower bound, and a
// part of the messages is looked at.
func (s *server) surveyOf(ctx context.Context, do, queue string, f store.Filter) (v survey, err error) {
	begun := s.Clock.Now()
	defer func() { s.pace.chargeRead(s.Clock.Since(begun)) }()
	last, isLong := s.longQueue(ctx, queue, f)
	var n store.Counts
	isCounted := false
	if !isLong {
		n, isCounted, err = s.countSoon(ctx, queue, f)
		if err != nil || isCounted && n.Messages == 0 {
			return v, err
		}
	}
	wasCounted := isLong && !last.Counting()
	enough := newest
	if do != "merge" && do != "purge" && (isCounted || wasCounted) {
		enough = 1
	}
	b := storearg.ReadBackward(s.engine, queue, f, n)
	err = s.readNewest(ctx, b, enough, begun.Add(surveyTime), func(e *store.Entry) { v.add(do, e, begun) })
	if err != nil {
		return v, err
	}
	v.IsPart = !b.IsDone() && (!isCounted || v.Looked < n.Messages)
	v.Count = v.Looked
	switch {
	case !v.IsPart:
	case isCounted:
		v.Count = n.Messages
	case wasCounted:
		v.Count = max(v.Looked, last.Messages)
		v.CountedAt = last.at
	default:
		v.IsAtLeast = true
		v.useGroups(s.lastGrouping(queue, f))
		v.useGroup(s.lastGrouping(queue, store.Filter{}), queue, f)
	}
	return v, nil
}

// useGroups takes the number of messages from a count of their groups, if it has counted
// more than were looked at.
func (v *survey) useGroups(g grouping) {
	if g.Messages > v.Looked {
		v.Count, v.CountedAt = g.Messages, g.At
		v.IsAtLeast = g.IsPart
	}
}

// useGroup does the same with a count of all groups, if f is the filter of a group. It
// does not use a group that has messages after the end of the filter (Filter.Before).
func (v *survey) useGroup(all grouping, queue string, f store.Filter) {
	before := f.Before
	f.Before = time.Time{}
	address := filterValues(queue, f).Encode()
	for _, g := range all.Groups {
		isWhole := before.IsZero() || g.Last.Before(before)
		if isWhole && g.Count > v.Count && filterValues(queue, g.Filter).Encode() == address {
			v.Count, v.CountedAt = g.Count, all.At
			v.IsAtLeast = true // the filter may find messages of other groups, too
		}
	}
}

// longQueue returns the last count of a queue that is long: it has many messages, or its
// first count has not ended yet. The number of messages that match a filter is not known.
func (s *server) longQueue(ctx context.Context, queue string, f store.Filter) (last queueState, isLong bool) {
	_, looked, _ := s.looks.peek()
	if looked.IsZero() || len(filterValues(queue, f)) > 1 {
		return queueState{}, false // the first look may take long
	}
	l, err := s.latest(ctx)
	if err != nil {
		return queueState{}, false
	}
	for _, q := range l.Queues {
		if q.Name == queue {
			return q, q.Counting() || q.Messages >= newest
		}
	}
	return queueState{}, false
}

// countSoon counts messages, unless that takes long.
func (s *server) countSoon(ctx context.Context, queue string, f store.Filter) (n store.Counts, isCounted bool, err error) {
	counting, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	n, err = s.engine.Count(counting, queue, f)
	if err != nil && counting.Err() != nil && ctx.Err() == nil {
		return store.Counts{}, false, nil
	}
	return n, err == nil, err
}

// readNewest calls do for the newest messages, until there were enough, or until a time.
// It looks longer for the first one, since few messages of a long queue may match.
func (s *server) readNewest(ctx context.Context, b *storearg.Backward, enough int, until time.Time, do func(*store.Entry)) error {
	reading, cancel := context.WithTimeout(ctx, longestSurvey)
	defer cancel()
	for read := 0; read < enough && !b.IsDone(); {
		entries, err := b.Step(reading)
		if err != nil && reading.Err() != nil && ctx.Err() == nil {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range entries {
			do(&entries[i])
		}
		read += len(entries)
		if read > 0 && !s.Clock.Now().Before(until) {
			return nil
		}
	}
	return nil
}

// add judges a message as the job of an action does. A merge leaves the messages that it
// counts, unless the person chooses otherwise. A purge removes them.
func (v *survey) add(do string, e *store.Entry, now time.Time) {
	v.Looked++
	v.newest = later(v.newest, e.Arrived)
	v.hasCauses = v.hasCauses || e.Cause != ""
	switch do {
	case "merge":
		v.addMerge(e, now)
	case "purge":
		switch e.Repetition(now) {
		case store.RepeatInDoubt:
			v.Unsafe++
		case store.RepeatLookFirst:
			v.Lapsed++
		default:
		}
	default:
	}
}

// addMerge judges a message that is sent back.
func (v *survey) addMerge(e *store.Entry, now time.Time) {
	spec := jobs.Spec{LeaveLapsed: true}
	var stays jobs.Progress
	if !spec.SendsBack(e, now, &stays) {
		v.Unsafe += stays.Unsafe
		v.Lapsed += stays.Lapsed
		v.Stays += stays.Looping + stays.Skipped
		return
	}
	switch e.Repetition(now) {
	case store.RepeatSafeUntil:
		v.SafeUntil++
		if v.Until.IsZero() || e.Meta.Remembered.Before(v.Until) {
			v.Until = e.Meta.Remembered
		}
	case store.RepeatPointless:
		v.Pointless++
	default:
		v.Safe++
	}
}

// restrict restricts the filter of an action to the messages that are there now: it
// leaves messages alone that arrive while a person thinks.
func (v *survey) restrict(f *store.Filter, now time.Time) {
	if v.Count == 0 && !v.IsAtLeast {
		return
	}
	end := now
	if !v.newest.IsZero() { // the clock of the engine may be another one
		end = v.newest.Add(time.Microsecond)
	}
	if f.Before.IsZero() || end.Before(f.Before) {
		f.Before = end
	}
}

// messages describes the messages of an action by their number. of are all of them.
func (v *survey) messages(of string) string {
	switch {
	case !v.IsAtLeast:
		return count(v.Count, "message")
	case v.Count == 0:
		return fmt.Sprintf("%s (at least 0: the first was not found in %v)", of, longestSurvey)
	}
	return fmt.Sprintf("%s (at least %s)", of, num(v.Count))
}
