package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/golden"
	"github.com/weirflow/weir/message"
)

func TestGroups(t *testing.T) {
	mock := clock.NewMock()
	s := memory.Open(memory.WithClock(mock))
	put := func(id string, cause store.Cause, text string, reasons ...string) {
		t.Helper()
		mock.Add(time.Second)
		require.NoError(t, s.Put(t.Context(), "dead", store.Message{Meta: message.Meta{ID: id, LastError: text, Reasons: reasons}, Cause: cause}))
	}
	begun := mock.Now().UTC()
	for i := range 30 {
		put(fmt.Sprint("t", i), store.Exhausted, fmt.Sprintf("no answer of 10.0.0.%d:5432 after %dms for order-%08x", i, 100*i, 1<<i+i), "BUSY", "TIMED_OUT")
	}
	put("a", store.Permanent, `no row for airport "XQQ"`)
	put("b", store.Permanent, `no row for airport "ZZZ"`)
	put("c", store.Permanent, `no row for airport "ZZZ"`, "NO_ROW") // another reason
	put("d", store.Undecodable, "")

	groups, err := jobs.Groups(t.Context(), s, "dead", store.Filter{})
	require.NoError(t, err)
	at := func(seconds int) time.Time { return begun.Add(time.Duration(seconds) * time.Second) }
	for i := range groups {
		groups[i].First, groups[i].Last = groups[i].First.UTC(), groups[i].Last.UTC()
		groups[i].Arrivals, groups[i].Replaced = jobs.Histogram{}, nil // see TestGroups_Details
	}
	require.Equal(t, []jobs.Group{
		{
			Cause: store.Exhausted, Reason: "TIMED_OUT", Error: "no answer of # after # for #", Count: 30, First: at(1), Last: at(30),
			Example: "t29", ExampleText: "no answer of 10.0.0.29:5432 after 2900ms for order-2000001d",
		},
		{Cause: store.Permanent, Error: "no row for airport #", Count: 2, First: at(31), Last: at(32), Example: "b", ExampleText: `no row for airport "ZZZ"`},
		{Cause: store.Undecodable, Count: 1, First: at(34), Last: at(34), Example: "d"},
		{Cause: store.Permanent, Reason: "NO_ROW", Error: "no row for airport #", Count: 1, First: at(33), Last: at(33), Example: "c", ExampleText: `no row for airport "ZZZ"`},
	}, groups)

	groups, err = jobs.Groups(t.Context(), s, "dead", store.Filter{Cause: store.Undecodable})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	groups, err = jobs.Groups(t.Context(), s, "none", store.Filter{})
	require.NoError(t, err)
	require.Empty(t, groups)
}

// A group has the most frequent keys, providers and replaced words of its messages, and
// when they arrived.
func TestGroups_Details(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(golden.At)
	s := memory.Open(memory.WithClock(mock))
	for i := range 100 {
		m := store.Message{Cause: store.Permanent, Meta: message.Meta{ID: fmt.Sprint(i), Key: "customer 7", Provider: fmt.Sprint("bank ", i%2), LastError: fmt.Sprintf("account 13 has no row %d for \"XQQ\"", i)}}
		if i < 5 {
			m.Meta.Key = strings.Repeat("ü", 200)
		}
		require.NoError(t, s.Put(t.Context(), "dead", m))
		mock.Add(time.Minute)
	}
	groups, err := jobs.Groups(t.Context(), s, "dead", store.Filter{})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	g := groups[0]
	require.Equal(t, "account # has no row # for #", g.Error)
	require.Equal(t, []jobs.Frequency{{Text: "customer 7", Count: 95}}, g.Keys, "the other key is less than a tenth")
	require.Equal(t, []jobs.Frequency{{Text: "bank 0", Count: 50}, {Text: "bank 1", Count: 50}}, g.Providers)
	require.Equal(t, []jobs.Frequency{{Text: "account 13", Count: 100}, {Text: "for XQQ", Count: 100}}, g.Replaced)
	require.Equal(t, 8*time.Minute, g.Arrivals.Width)
	require.WithinRange(t, g.Arrivals.End, g.Last, g.Last.Add(g.Arrivals.Width))
	arrived := 0
	for i, n := range g.Arrivals.Counts {
		arrived += n
		if i > 0 && i < len(g.Arrivals.Counts)-1 {
			require.Equal(t, 8, n, "one a minute")
		}
	}
	require.Equal(t, 100, arrived)
	require.Len(t, g.Arrivals.Counts, 13)
	require.Equal(t, "99", g.Example)
}

// The newest messages are counted first. The result is the same as in one pass, also in a
// queue whose positions have gaps, and with a filter that few messages match.
func TestCountGroups_NewestFirst_CountedAndProgress(t *testing.T) {
	s := memory.Open()
	for i := range 8 {
		ms := make([]store.Message, 1000)
		for k := range ms {
			ms[k] = store.Message{Cause: store.Permanent, Meta: message.Meta{ID: fmt.Sprint(i, "/", k), LastError: fmt.Sprintf("%c is gone", 'a'+i)}}
			if i == 0 && k < 3 {
				ms[k].Meta.Key = "few"
			}
		}
		require.NoError(t, s.Put(t.Context(), "dead", ms...))
		require.NoError(t, s.Put(t.Context(), "other", ms[:700]...))
	}
	_, err := s.Purge(t.Context(), "dead", store.Filter{Error: "d is gone"})
	require.NoError(t, err)
	c := jobs.CountGroups(s, "dead", store.Filter{})
	require.Zero(t, c.Progress())
	isDone, err := c.Step(t.Context())
	require.NoError(t, err)
	require.False(t, isDone)
	require.Equal(t, "h is gone", c.Groups()[0].Error)
	progress := c.Progress()
	require.NoError(t, s.Put(t.Context(), "dead", store.Message{Cause: store.Permanent, Meta: message.Meta{ID: "later", LastError: "later"}}))
	for !isDone {
		isDone, err = c.Step(t.Context())
		require.NoError(t, err)
		require.GreaterOrEqual(t, c.Progress(), progress)
		progress = c.Progress()
	}
	require.InDelta(t, 1, progress, 0)
	counted, oldest := c.Counted()
	require.Equal(t, 7000, counted, "the last message is left out")
	require.False(t, oldest.IsZero())
	require.Len(t, c.Groups(), 7)
	for _, g := range c.Groups() {
		require.Equal(t, 1000, g.Count)
	}
	isDone, err = c.Step(t.Context())
	require.NoError(t, err)
	require.True(t, isDone)

	few, err := jobs.Groups(t.Context(), s, "dead", store.Filter{Key: "few"})
	require.NoError(t, err)
	require.Len(t, few, 1)
	require.Equal(t, 3, few[0].Count)
}

// A step that fails is made again, and no message counts twice.
func TestCountGroups_StepThatFails(t *testing.T) {
	s := memory.Open()
	for i := range 3000 {
		require.NoError(t, s.Put(t.Context(), "dead", store.Message{Cause: store.Permanent, Meta: message.Meta{ID: fmt.Sprint(i), LastError: "gone"}}))
	}
	f := &failsEachSecond{Engine: s}
	c := jobs.CountGroups(f, "dead", store.Filter{})
	failures := 0
	for isDone := false; !isDone; {
		var err error
		isDone, err = c.Step(t.Context())
		if err != nil {
			failures++
		}
	}
	require.Positive(t, failures)
	require.Equal(t, 3000, c.Groups()[0].Count)
}

type failsEachSecond struct {
	*memory.Engine
	calls int
}

func (f *failsEachSecond) List(ctx context.Context, queue string, filter store.Filter, p store.Page) ([]store.Entry, error) {
	f.calls++
	if f.calls%2 == 0 && p.Until != 0 {
		return nil, errors.New("it is away")
	}
	return f.Engine.List(ctx, queue, filter, p)
}

func TestKeepGroups(t *testing.T) {
	j, err := jobs.New(memory.Open(), jobs.Config{})
	require.NoError(t, err)
	_, isThere, err := j.KeptGroups(t.Context(), "orders-dead")
	require.NoError(t, err)
	require.False(t, isThere)
	groups := make([]jobs.Group, 100)
	for i := range groups {
		groups[i] = jobs.Group{Error: fmt.Sprint("error ", i), Count: 200 - i, ExampleText: strings.Repeat("ü", 5000)}
	}
	for i := range 30 { // names around it
		require.NoError(t, j.KeepGroups(t.Context(), fmt.Sprint("orders-d", i), jobs.GroupReport{Messages: 1}))
	}
	for range 2 {
		require.NoError(t, j.KeepGroups(t.Context(), "orders-dead", jobs.GroupReport{Took: time.Minute, Messages: 15000, Groups: groups}))
	}
	require.NoError(t, j.KeepGroups(t.Context(), "ü", jobs.GroupReport{Messages: 1}))
	kept, isThere, err := j.KeptGroups(t.Context(), "orders-dead")
	require.NoError(t, err)
	require.True(t, isThere)
	require.Equal(t, []any{"orders-dead", time.Minute, 15000, 70}, []any{kept.Queue, kept.Took, kept.Messages, kept.More})
	require.Len(t, kept.Groups, 30)
	require.Equal(t, "error 0", kept.Groups[0].Error)
	require.Equal(t, strings.Repeat("ü", 500), kept.Groups[0].ExampleText)
	kept, isThere, err = j.KeptGroups(t.Context(), "ü")
	require.NoError(t, err)
	require.True(t, isThere)
	require.Equal(t, 1, kept.Messages)

	for range 2 { // the second call does not find a record
		require.NoError(t, j.KeepGroups(t.Context(), "ü", jobs.GroupReport{}))
		_, isThere, err = j.KeptGroups(t.Context(), "ü")
		require.NoError(t, err)
		require.False(t, isThere, "a report without messages removes the record")
	}
}

// An endless variety of errors does not fill the memory, and the counts are complete.
func TestGroupsAreBounded(t *testing.T) {
	s := memory.Open()
	word := func(i int) string {
		return strings.Map(func(r rune) rune { return r - '0' + 'a' }, fmt.Sprintf("%06d", i))
	}
	for i := range 3000 {
		ms := []store.Message{{Meta: message.Meta{ID: fmt.Sprint(i), LastError: word(i)}, Cause: store.Permanent}}
		if i%3 == 0 {
			ms = append(ms, store.Message{Meta: message.Meta{ID: fmt.Sprint("often", i), LastError: "often"}, Cause: store.Permanent})
		}
		require.NoError(t, s.Put(t.Context(), "dead", ms...))
	}
	groups, err := jobs.Groups(t.Context(), s, "dead", store.Filter{})
	require.NoError(t, err)
	require.LessOrEqual(t, len(groups), 501)
	require.Equal(t, 1000, groups[0].Count)
	require.Equal(t, "often", groups[0].Error)
	sum := 0
	for i, g := range groups {
		sum += g.Count
		require.Equal(t, i == len(groups)-1, g.Rest)
	}
	require.Equal(t, 4000, sum)
}

// A text is compared without its numbers and ids.
func TestErrorsThatAreAlike(t *testing.T) {
	for text, want := range map[string]string{
		"dial tcp 127.0.0.1:80: connect: connection refused":           "dial tcp #: connect: connection refused",
		"order 550e8400-e29b-41d4-a716-446655440000 is unknown":        "order # is unknown",
		"it's not 'abc', and not `x y`":                                "it's not #, and not `x y`",
		"--- 12 --- trailing. ":                                        "--- # --- trailing. ",
		"über 7 Jahre":                                                 "über # Jahre",
		strings.Repeat("long ", 100):                                   strings.Repeat("long ", 40),
		strings.Repeat("ü", 300):                                       strings.Repeat("ü", 100),
		"\xff\xfe broken":                                              "\ufffd broken",
		`Post "https://bank.example/v1/charge?id=7": context deadline`: `Post #: context deadline`,
	} {
		s := memory.Open()
		require.NoError(t, s.Put(t.Context(), "dead", store.Message{Meta: message.Meta{ID: "1", LastError: text}, Cause: store.Permanent}))
		groups, err := jobs.Groups(t.Context(), s, "dead", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, want, groups[0].Error, text)
	}
}
