package tests

import (
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func (p *person) status() string {
	p.t.Helper()
	return js[string](p, `document.getElementById("live-status").innerText`)
}

// A page with the focus in one of its rows is redrawn, and the focus stays on the same
// link when rows above it appear.
func TestLivePage_KeepsFocus(t *testing.T) {
	e := onSQLite(t)
	put(t, e, 3)
	p := at(t, console.Config{Engine: e})
	p.sees("orders-dead")
	const link = `[...document.querySelectorAll("td a")].find(a => a.textContent === "orders-dead")`
	js[bool](p, link+".focus(), true")
	m := letter("another")
	require.NoError(t, e.Put(t.Context(), "aaa", m))
	p.sees("aaa")
	assert.Equal(t, "orders-dead", js[string](p, "document.activeElement.textContent"))
	assert.True(t, js[bool](p, link+" === document.activeElement"), "the link is the same node")
	assert.Regexp(t, `^live, \d+ s ago$`, p.status())
}

// A page whose server has died shows since when it is old.
func TestLivePage_ServerDies(t *testing.T) {
	ctx := browser(t)
	e := onSQLite(t)
	s := httptest.NewServer(handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")}))
	t.Cleanup(s.Close)
	p := &person{t, ctx, s.URL}
	p.open("/")
	require.Eventually(t, func() bool { return strings.HasPrefix(p.status(), "live, ") }, time.Minute, 50*time.Millisecond)
	go s.Close() // waits for the stream of events, which the next line ends
	s.CloseClientConnections()
	require.Eventually(t, func() bool { return strings.HasPrefix(p.status(), "connection lost since ") }, time.Minute, 50*time.Millisecond)
}

// A payload of 18 KB is a page of a reasonable size, and costs a reasonable amount of
// memory.
func TestMessagePage_DeepPayload(t *testing.T) {
	for name, payload := range map[string]string{
		"nested arrays":     strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
		"nested objects":    strings.Repeat(`{"a":`, 9000) + "1" + strings.Repeat("}", 9000),
		"a wide deep array": strings.Repeat("[", 1000) + strings.Repeat("1,", 30000) + "1" + strings.Repeat("]", 1000),
		"brackets in text":  `"` + strings.Repeat("[", 60000) + `"`,
		"direction marks":   strings.Repeat("\u202e", 20000),
	} {
		t.Run(name, func(t *testing.T) {
			e := memory.Open()
			m := store.Message{Meta: message.Meta{ID: "1"}, Cause: store.Permanent, Payload: []byte(payload)}
			for i := range 500 {
				if m.Meta.Headers == nil {
					m.Meta.Headers = map[string]string{}
				}
				m.Meta.Headers[strings.Repeat("h", i+1)] = strings.Repeat("v", 1000)
			}
			require.NoError(t, e.Put(t.Context(), "orders-dead", m))
			h := handler(t, console.Config{Engine: e})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			text := page(t, h, "/message?queue=orders-dead&position=1")
			runtime.ReadMemStats(&after)
			assert.Less(t, len(text), 1<<20)
			assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
			assert.Contains(t, text, "And 400 more headers.")
		})
	}
}
