package deadfile

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// The payload comes back byte by byte, and a line is one line.
func TestLines(t *testing.T) {
	for _, payload := range []string{
		"", `"a"`, `{"a":1, "a":2}`, "null", ` {"a":1}`, "{\"a\":\n1}", "{\"a\"\r:1}", "\xff", "\"\xff\"", "\x00", "\"\u2028\"", "5", "{}x", `"<&>"`,
	} {
		m := store.Message{Cause: "odd\n", Meta: message.Meta{ID: "\xff\n}", LastError: "a\nb"}, Payload: []byte(payload)}
		body, err := bodyOf(m)
		require.NoError(t, err)
		raw := appendLine([]byte("before"), 7, body)
		raw = raw[len("before"):]
		require.Equal(t, len(raw)-1, bytes.IndexByte(raw, '\n'))
		got, err := parseLine(raw[:len(raw)-1])
		require.NoError(t, err, payload)
		require.Equal(t, payload, string(got.Payload))
		require.Equal(t, m.Meta, got.Meta)
		require.Equal(t, m.Cause, got.Cause)
		require.EqualValues(t, 7, got.batch)
	}
}

func oneBody(t testing.TB) []byte {
	t.Helper()
	body, err := bodyOf(store.Message{Cause: store.Exhausted, Meta: message.Meta{ID: "a"}, Payload: []byte(`{"n":1}`)})
	require.NoError(t, err)
	return body
}

// Every flipped bit and every prefix is found.
func TestDamagedLines(t *testing.T) {
	raw := bytes.TrimSuffix(appendLine(nil, 0, oneBody(t)), []byte("\n"))
	for i := range raw {
		_, err := parseLine(raw[:i])
		require.Error(t, err)
		for bit := range 8 {
			damaged := bytes.Clone(raw)
			damaged[i] ^= 1 << bit
			_, err := parseLine(damaged)
			require.Error(t, err, "%s", damaged)
		}
	}
	for _, body := range []string{`"cause":1`, `"meta":{"id":"%"}`, `"a"`, `"meta":{"id":"a"}},{"b":1`} {
		_, err := parseLine(bytes.TrimSpace(appendLine(nil, 0, []byte(body))))
		require.Error(t, err, body)
	}
	_, err := parseLine(bytes.TrimSpace(appendLine(nil, -1, oneBody(t))))
	require.Error(t, err)
}

// importFile puts the messages of a file into a store, as weir dead import does.
func importFile(t *testing.T, s store.Store, raw []byte) (n int) {
	t.Helper()
	for line := range bytes.Lines(raw) {
		var m store.Message
		require.NoError(t, json.Unmarshal(line, &m))
		require.NoError(t, s.Put(t.Context(), "dead", m))
		n++
	}
	return n
}

func TestImport(t *testing.T) {
	dir := t.TempDir()
	f := open(t, dir)
	require.NoError(t, f.Append(t.Context(), entry("a"), entry("b"), Entry[string]{Value: "c"}, Entry[string]{Value: "c"}))
	require.NoError(t, f.Close())
	raw, err := os.ReadFile(filepath.Join(dir, "dead.jsonl"))
	require.NoError(t, err)
	s := memory.Open()
	require.Equal(t, 4, importFile(t, s, raw))
	counts, err := s.Count(t.Context(), "dead", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 4, counts.Messages, "those without an id, too")
	require.Equal(t, 2, counts.Causes[store.Exhausted])
}

func FuzzScan(f *testing.F) {
	body := oneBody(f)
	one := appendLine(nil, 0, body)
	two := appendLine(bytes.Clone(one), int64(len(one)), body)
	f.Add(two)
	f.Add(two[:len(two)-10])
	f.Add(append(bytes.Repeat([]byte{0}, len(one)), two[len(one):]...))
	f.Add([]byte(`{"batch":0,"crc":"00000000"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		found, err := scan(bytes.NewReader(b))
		require.NoError(t, err)
		require.EqualValues(t, len(b), found.size)
		lines := 0
		for raw := range strings.Lines(string(b)) {
			if l, err := parseLine([]byte(strings.TrimSuffix(raw, "\n"))); err == nil {
				lines++
				body, err := bodyOf(l.Message)
				require.NoError(t, err)
				again, err := parseLine(bytes.TrimSuffix(appendLine(nil, l.batch, body), []byte("\n")))
				require.NoError(t, err)
				require.Equal(t, l, again)
			}
		}
		require.Equal(t, lines, found.lines)
		require.LessOrEqual(t, total(found.damaged)+total(found.torn), found.size)
	})
}

func TestMarks(t *testing.T) {
	m := markOf([]byte("a line"))
	for _, due := range []time.Time{{}, time.Unix(0, 1), time.Unix(0, -1)} {
		got, at, ok := parseMark(bytes.TrimSpace(appendMark(nil, m, due)))
		require.True(t, ok)
		require.Equal(t, m, got)
		require.True(t, due.Equal(at))
	}
	for _, bad := range []string{"", "x", "00", strings.Repeat("0", 24) + " ", strings.Repeat("0", 24) + " 1x", strings.Repeat("0", 26)} {
		_, _, ok := parseMark([]byte(bad))
		require.False(t, ok, bad)
	}
}

// Law W4: a file of a later version is replayed, and what dies again is as that version has written it.
func TestALineOfALaterVersion(t *testing.T) {
	dir := t.TempDir()
	body := `"meta":{"id":"a","later":1,"lastFailure":"2026-11-23T09:00:00Z","headers":{"Weir-Tenant":"north"}},"payload":"v","signed":true`
	raws := codec.Func(
		func(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil },
		func(src []byte) (string, error) { return string(src), nil },
	)
	require.NoError(t, os.WriteFile(filepath.Join(dir, deadName), appendLine(nil, 0, []byte(body)), 0o600))
	f, err := openWith(dir, raws, quiet())
	require.NoError(t, err)
	r, err := f.replay()
	require.NoError(t, err)
	ms, err := r.Receive(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"Weir-Tenant": "north", "Weir-Meta-later": "1", "Weir-Message-signed": "true"}, ms[0].Meta().Headers)
	ms[0].Reject(errGone)
	require.NoError(t, r.Close(t.Context()))
	require.NoError(t, f.Close())
	raw, err := os.ReadFile(filepath.Join(dir, deadName))
	require.NoError(t, err)
	for _, part := range []string{`"later":1`, `"headers":{"Weir-Tenant":"north"}`, `"payload":"v"`, `"signed":true`} {
		require.Contains(t, string(raw), part)
	}

	// The same by export and import.
	s := memory.Open(memory.WithClock(clock.NewMock()))
	importFile(t, s, raw)
	entries, err := s.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	exported, err := json.Marshal(entries[0].Message)
	require.NoError(t, err)
	for _, part := range []string{`"later":1`, `"headers":{"Weir-Tenant":"north"}`, `"payload":"v"`, `"signed":true`} {
		require.Contains(t, string(exported), part)
	}
	require.NotContains(t, string(exported), "crc")
}
