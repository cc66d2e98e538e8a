package jobs_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
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
