package message_test

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/message"
)

var full = message.Meta{
	ID: "orders/0/17", Key: "\x00\xff key %", Origin: message.Origin{Source: "orders", Partition: "0", Position: "17"},
	Visit: 2, Attempts: 4,
	FirstFailure: time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC),
	LastFailure:  time.Date(2026, 11, 23, 9, 0, 1, 1, time.UTC),
	Due:          time.Date(2026, 11, 23, 9, 1, 0, 0, time.UTC),
	Deadline:     time.Date(2026, 11, 23, 10, 0, 0, 0, time.UTC),
	LastError:    "503 größer\nthan that ", Reasons: []string{"unavailable", "a,b", "timeout"},
	Timeline: []message.Step{
		{Visit: 1, Attempt: 1, Begun: time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC), Took: time.Second, Wait: time.Minute, Retried: true, Reason: "unavailable"},
		{Visit: 2, Attempt: 3, Begun: time.Date(2026, 11, 23, 9, 5, 0, 0, time.UTC), Backend: "down", Error: "503 größer\n<than> 100%25 "},
	},
	UnsafeToRepeat: true, Request: `"0af7651916cd43dd8448eb211c80319c";seq=1;attempt=4`,
	Remembered: time.Date(2026, 11, 24, 9, 0, 0, 5, time.UTC), Provider: "acquirer-2", Outage: "2;9m59s;pay ", Merges: 1, MergeJob: 17,
	Headers: map[string]string{"Traceparent": "00-01", "binary": "\xff\x00"},
}

// Law W4: a version reads the names of states that its predecessor has stored.
func TestStep_FormerNamesOfStates(t *testing.T) {
	for stored, want := range map[string]string{"open": "up", "closed": "down", "held": "held", "down": "down"} {
		meta, err := message.MetaFromHeaders(map[string]string{"Weir-Id": "a", "Weir-Way": `[{"attempt":1,"backend":"` + stored + `"}]`})
		require.NoError(t, err)
		require.Equal(t, want, meta.Timeline[0].Backend)
	}
}

func TestToHeaders_AndBack(t *testing.T) {
	h, err := full.ToHeaders()
	require.NoError(t, err)
	want := map[string]string{
		"Weir-Id":               "orders/0/17",
		"Weir-Key":              "%00%FF key %25",
		"Weir-Origin-Source":    "orders",
		"Weir-Origin-Partition": "0",
		"Weir-Origin-Position":  "17",
		"Weir-Visit":            "2",
		"Weir-Attempts":         "4",
		"Weir-First-Failure":    "2026-11-23T09:00:00Z",
		"Weir-Last-Failure":     "2026-11-23T09:00:01.000000001Z",
		"Weir-Due":              "2026-11-23T09:01:00Z",
		"Weir-Deadline":         "2026-11-23T10:00:00Z",
		"Weir-Last-Error":       "503 größer%0Athan that%20",
		"Weir-Reasons":          "unavailable,a%2Cb,timeout",
		"Weir-Way": `[{"visit":1,"attempt":1,"begun":"2026-11-23T09:00:00Z","took":1000000000,"wait":60000000000,"retried":true,"reason":"unavailable"},` +
			`{"visit":2,"attempt":3,"begun":"2026-11-23T09:05:00Z","backend":"down","error":"503 größer\n\u003cthan\u003e 100%2525 "}]`,
		"Weir-Outcome-Unknown": "true",
		"Weir-Request":         `"0af7651916cd43dd8448eb211c80319c";seq=1;attempt=4`,
		"Weir-Remembered":      "2026-11-24T09:00:00.000000005Z",
		"Weir-Provider":        "acquirer-2",
		"Weir-Outage":          "2;9m59s;pay%20",
		"Weir-Merges":          "1",
		"Weir-Merge-Job":       "17",
		"Traceparent":          "00-01",
		"binary":               "\xff\x00",
	}
	require.Equal(t, want, h)
	got, err := message.MetaFromHeaders(h)
	require.NoError(t, err)
	require.Equal(t, full, got)

	lower := make(map[string]string) // as HTTP/2 and others have them
	for name, value := range h {
		if strings.HasPrefix(name, "Weir-") {
			name = strings.ToLower(name)
		}
		lower[name] = value
	}
	got, err = message.MetaFromHeaders(lower)
	require.NoError(t, err)
	require.Equal(t, full, got)

	none, err := message.Meta{}.ToHeaders()
	require.NoError(t, err)
	require.Empty(t, none)
	got, err = message.MetaFromHeaders(nil)
	require.NoError(t, err)
	require.Zero(t, got)
}

// Headers are replaced at each hop, never appended to (law D6): the output is not larger
// than the input.
func TestHops(t *testing.T) {
	m := full
	first, err := m.ToHeaders()
	require.NoError(t, err)
	for range 5 {
		h, err := m.ToHeaders()
		require.NoError(t, err)
		require.Equal(t, first, h)
		m, err = message.MetaFromHeaders(h)
		require.NoError(t, err)
	}
	m.Visit = 3
	h, err := m.ToHeaders()
	require.NoError(t, err)
	require.Equal(t, "3", h["Weir-Visit"])
	require.Len(t, h, len(first))
}

func TestJSON(t *testing.T) {
	old := full
	old.Timeline = nil
	b, err := json.Marshal(old)
	require.NoError(t, err)
	require.JSONEq(t, `{"id":"orders/0/17","key":"%00%FF key %25","origin":{"source":"orders","partition":"0","position":"17"},
		"visit":2,"attempts":4,"firstFailure":"2026-11-23T09:00:00Z","lastFailure":"2026-11-23T09:00:01.000000001Z",
		"due":"2026-11-23T09:01:00Z","lastError":"503 größer\nthan that ","reasons":["unavailable","a,b","timeout"],
		"outcomeUnknown":true,"request":"\"0af7651916cd43dd8448eb211c80319c\";seq=1;attempt=4","remembered":"2026-11-24T09:00:00.000000005Z",
		"provider":"acquirer-2","merges":1,"headers":{"Traceparent":"00-01","Weir-Deadline":"2026-11-23T10:00:00Z","Weir-Merge-Job":"17","Weir-Outage":"2;9m59s;pay%2520","binary":"%FF%00"}}`, string(b))
	var got message.Meta
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, old, got)
	b, err = json.Marshal(full)
	require.NoError(t, err)
	require.Contains(t, string(b), `"headers":{"Traceparent":"00-01","Weir-Deadline":"2026-11-23T10:00:00Z","Weir-Merge-Job":"17","Weir-Outage":"2;9m59s;pay%2520","Weir-Way":"[{`)
	require.NoError(t, json.Unmarshal(b, &got))
	require.Equal(t, full, got)
	b, err = json.Marshal(message.Meta{LastError: "a\xff\x00b"})
	require.NoError(t, err)
	require.Equal(t, `{"lastError":"a��b"}`, string(b))
	b, err = json.Marshal(message.Meta{})
	require.NoError(t, err)
	require.Equal(t, "{}", string(b))
}

// later is written by a later version: a header, in both forms, and a member.
var later = map[string]string{"Weir-Tenant": "north%20", "Weir-Meta-deliveries": `{"a":[1.50,"<"]}`}

// The first and the last steps of a long timeline are stored, and their texts are cut, so
// the header stays small.
func TestMetaTimeline_Long(t *testing.T) {
	m := message.Meta{ID: "a"}
	for i := range 100 {
		m.Timeline = append(m.Timeline, message.Step{Visit: 1 + i/10, Attempt: i + 1, Begun: time.Unix(int64(i), 7), Error: strings.Repeat("ü%", 1000)})
	}
	for range 2 {
		h := must(m.ToHeaders())
		require.Less(t, len(h["Weir-Way"]), 12<<10)
		m = must(message.MetaFromHeaders(h))
		var attempts []int
		for _, s := range m.Timeline {
			attempts = append(attempts, s.Attempt)
			require.LessOrEqual(t, len(s.Error), 120)
		}
		require.Len(t, attempts, 32)
		require.Equal(t, []int{1, 8, 77, 100}, []int{attempts[0], attempts[7], attempts[8], attempts[31]})
	}
	_, err := message.MetaFromHeaders(map[string]string{"Weir-Way": "[{"})
	require.ErrorContains(t, err, "Weir-Way")
}

// Law W4: unknown parts are passed on, and a version that knows them reads them.
func TestHeadersAndMembersOfALaterVersion(t *testing.T) {
	m := must(message.MetaFromHeaders(map[string]string{"Weir-Id": "a", "Weir-Tenant": "north%20", "Traceparent": "00-01"}))
	require.Equal(t, map[string]string{"Weir-Tenant": "north%20", "Traceparent": "00-01"}, m.Headers)
	require.Equal(t, "north%20", must(m.ToHeaders())["Weir-Tenant"])

	var got message.Meta
	require.NoError(t, json.Unmarshal([]byte(`{"id":"a","deliveries":{"a":[1.50,"<"]},"headers":{"Weir-Tenant":"north%2520"}}`), &got))
	require.Equal(t, message.Meta{ID: "a", Headers: later}, got)
	got = must(message.MetaFromHeaders(must(got.ToHeaders()))) // through an engine with headers
	b := must(json.Marshal(got))
	require.JSONEq(t, `{"id":"a","deliveries":{"a":[1.50,"<"]},"headers":{"Weir-Tenant":"north%2520"}}`, string(b))
	require.Contains(t, string(b), "1.50")

	// This is the later version, which gets headers that an earlier one has passed on.
	// Members that the earlier one has written itself win.
	require.NoError(t, json.Unmarshal([]byte(`{"id":"a","headers":{"weir-visit":"3","Weir-Id":"b","Weir-Provider":"bank","a":"b"}}`), &got))
	require.Equal(t, message.Meta{ID: "a", Visit: 3, Provider: "bank", Headers: map[string]string{"a": "b"}}, got)
}

// A header that only looks like a passed on member stays a header: members are not
// duplicated, and databases accept them.
func TestForeignHeadersThatLookLikeMembers(t *testing.T) {
	for name, value := range map[string]string{
		"Weir-Meta-id": `"b"`, "Weir-Meta-ID": `"b"`, "Weir-Meta-a": `{`, "Weir-Meta-b": `1 `, "Weir-Meta-c": `"\u0000"`,
		"Weir-Meta-d": `"\uD800"`, "Weir-Meta-e": "\"\xff\"", "Weir-Meta-%zz": `1`, "Weir-Meta-a%20b": `1`,
	} {
		m := message.Meta{ID: "a", Headers: map[string]string{name: value}}
		b := must(json.Marshal(m))
		var members map[string]any
		require.NoError(t, json.Unmarshal(b, &members))
		require.Len(t, members, 2, "id and headers: %s", b)
		var got message.Meta
		require.NoError(t, json.Unmarshal(b, &got))
		require.Equal(t, m, got)
	}
}

// A long identifying text is refused, a long descriptive text is cut.
func TestLimits(t *testing.T) {
	long := strings.Repeat("é", 5000)
	m := message.Meta{LastError: long, Reasons: append([]string{"", long}, strings.Split(strings.Repeat("r ", 63), " ")...)}
	h, err := m.ToHeaders()
	require.NoError(t, err)
	got, err := message.MetaFromHeaders(h)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("é", 2048), got.LastError)
	require.Len(t, got.Reasons, 64)
	require.Equal(t, strings.Repeat("é", 128), got.Reasons[0])
	m.LastError = "x" + long
	h, err = m.ToHeaders()
	require.NoError(t, err)
	require.Len(t, must(message.MetaFromHeaders(h)).LastError, 4095, "between two characters")

	year := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		m    message.Meta
		want string
	}{
		{message.Meta{ID: "x" + long[:1024]}, "ID has 1025 bytes, at most 1024 are allowed"},
		{message.Meta{Key: long}, "Key has 10000 bytes"},
		{message.Meta{Origin: message.Origin{Source: long}}, "Origin.Source has"},
		{message.Meta{Origin: message.Origin{Partition: long}}, "Origin.Partition has"},
		{message.Meta{Origin: message.Origin{Position: long}}, "Origin.Position has"},
		{message.Meta{Provider: long}, "Provider has"},
		{message.Meta{Request: long}, "Request has"},
		{message.Meta{Visit: -1}, "Visit is -1"},
		{message.Meta{Attempts: -1}, "Attempts is -1"},
		{message.Meta{Merges: -1}, "Merges is -1"},
		{message.Meta{MergeJob: -1}, "MergeJob is -1"},
		{message.Meta{Due: year}, "Due: the year is 10000"},
		{message.Meta{Headers: map[string]string{"weir-id": "1"}}, `the name "weir-id"`},
		{message.Meta{Headers: map[string]string{"": "1"}}, `the name ""`},
		{message.Meta{Headers: map[string]string{"a": strings.Repeat("x", 1<<20)}}, "the Headers have 1048577 bytes"},
	} {
		_, err := c.m.ToHeaders()
		require.ErrorContains(t, err, c.want)
		_, err = json.Marshal(c.m)
		require.ErrorContains(t, err, c.want)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestDamagedHeaders(t *testing.T) {
	for name, h := range map[string]map[string]string{
		"header Weir-Id: \"a%0\"":                                       {"Weir-Id": "a%0"},
		"header Weir-Key: \"%zz\"":                                      {"Weir-Key": "%zz"},
		"header Weir-Visit: \"-1\"":                                     {"Weir-Visit": "-1"},
		"header Weir-Merges: \"99999999999999999":                       {"Weir-Merges": "99999999999999999999"},
		"header Weir-Attempts: \"2147483647\"":                          {"Weir-Attempts": "2147483647"},
		"header Weir-Due: \"soon\"":                                     {"Weir-Due": "soon"},
		"header Weir-Due: \"0001-01-01T00:00:00+01:00\": the year is 0": {"Weir-Due": "0001-01-01T00:00:00+01:00"},
		"header Weir-Outcome-Unknown: \"yes\": want true":               {"Weir-Outcome-Unknown": "yes"},
		"header weir-id is there twice":                                 {"Weir-Id": "1", "weir-id": "1"},
		"header Weir-Reasons":                                           {"Weir-Reasons": strings.Repeat("a,", 65)},
		"header Weir-Provider has 3073 bytes":                           {"Weir-Provider": strings.Repeat("a", 3073)},
		"1025 bytes, at most 1024 are allowed":                          {"Weir-Provider": strings.Repeat("a", 1025)},
		"the user's headers have 1048577 bytes":                         {"a": strings.Repeat("a", 1<<20)},
	} {
		_, err := message.MetaFromHeaders(h)
		assert.ErrorContains(t, err, name)
	}
	var m message.Meta
	for _, bad := range []string{`[]`, `{"id":"%"}`, `{"headers":{"%0":""}}`, `{"headers":{"a":"","%61":""}}`, `{"headers":{"a":"%"}}`, `{"visit":-1}`, `{"due":"soon"}`} {
		require.Error(t, json.Unmarshal([]byte(bad), &m), bad)
	}
	require.Zero(t, m)
}

// Different origins have different ids, also hostile ones.
func TestOriginIDAndIDIn(t *testing.T) {
	require.Empty(t, message.Origin{}.ID())
	ids := make(map[string]message.Origin)
	names := []string{"", "a", "/", "%2F", "a/", "#1", "ä", "\xff", " ", "sha256:", strings.Repeat("x", 300), strings.Repeat("x", 301)}
	for _, source := range names {
		for _, partition := range names {
			for _, position := range names {
				o := message.Origin{Source: source, Partition: partition, Position: position}
				id := o.ID()
				require.Equal(t, id, o.ID())
				require.NotContains(t, ids, id)
				require.LessOrEqual(t, len(id), 200)
				require.True(t, utf8.ValidString(id))
				require.NotContains(t, id, "#", "is for parts")
				ids[id] = o
			}
		}
	}
	require.Equal(t, "orders/0/17", full.Origin.ID())
	require.Equal(t, "orders/0/17", full.Origin.IDIn(""))
	require.Equal(t, "orders:Q3pX9aVn/0/17", full.Origin.IDIn("Q3pX9aVn"))
	require.Equal(t, "orders%3AQ3pX9aVn/0/17", message.Origin{Source: "orders:Q3pX9aVn", Partition: "0", Position: "17"}.ID(), "another source")
	require.Equal(t, "a:b%2Fc//1", message.Origin{Source: "a", Position: "1"}.IDIn("b/c"))
	require.Empty(t, message.Origin{}.IDIn("Q3pX9aVn"))
	require.Equal(t, "a%2Fb//%231", message.Origin{Source: "a/b", Position: "#1"}.ID())
}

func FuzzMetaFromHeaders(f *testing.F) {
	h := must(full.ToHeaders())
	for name, value := range h {
		f.Add(name, value, "Weir-Id", "1")
	}
	f.Fuzz(func(t *testing.T, name, value, name2, value2 string) {
		m, err := message.MetaFromHeaders(map[string]string{name: value, name2: value2})
		_ = err // valid parts can be written even after an error
		h, err := m.ToHeaders()
		require.NoError(t, err)
		again, err := message.MetaFromHeaders(maps.Clone(h))
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func FuzzMetaFromJSON(f *testing.F) {
	f.Add(must(json.Marshal(full)))
	f.Add([]byte(`{"id":"%41","reasons":["",""],"due":"2026-11-23T09:01:00+02:00"}`))
	f.Add([]byte(`{"later":{"a":[1.50,"<\u0000\ud800"]},"headers":{"Weir-Meta-b":"{ }","Weir-Visit":"2","Weir-Meta-ID":"1"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m message.Meta
		if json.Unmarshal(b, &m) != nil {
			require.Zero(t, m)
			return
		}
		var again message.Meta
		require.NoError(t, json.Unmarshal(must(json.Marshal(m)), &again))
		require.Equal(t, m, again)
	})
}

// A producer's headers that are over their limit, or lack a name, do not hide weir's own:
// a message whose id is read at one delivery and not at the next would be two messages.
func TestMetaFromHeaders_OwnHeadersBesideTooManyOthers(t *testing.T) {
	want := message.Meta{ID: "orders/0/17", Put: "orders//5", Visit: 2, Merges: 1}
	own, err := want.ToHeaders()
	require.NoError(t, err)
	for name, foreign := range map[string]map[string]string{
		"more than 1 MiB":        {"a": strings.Repeat("a", 1<<19), "b": strings.Repeat("b", 1<<19)},
		"a header lacks a name":  {"": "x", "a": "y"},
		"a name there twice too": {"a": strings.Repeat("a", 1<<20), "Weir-Key": "k", "weir-key": "k", "WEIR-PROVIDER": "p", "Weir-Provider": "p"},
	} {
		maps.Copy(foreign, own)
		for range 20 { // a map has another order each time
			got, err := message.MetaFromHeaders(foreign)
			require.Error(t, err, name)
			require.Equal(t, want, got, name)
		}
	}
}
