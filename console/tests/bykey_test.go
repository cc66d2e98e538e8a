package tests

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// ofKey returns n messages of a key.
func ofKey(key string, n int) (ms []store.Message) {
	for i := range n {
		ms = append(ms, store.Message{Meta: message.Meta{ID: fmt.Sprint(key, "#", i), Key: key}})
	}
	return ms
}

// hostileKey is a key that would be markup, control a terminal, and hide text.
const hostileKey = "<script>alert(1)</script>\x00\x1b[31m\u202egnp.exe \xff"

// hostileText is a hostile key that is UTF-8.
const hostileText = "<script>alert(1)</script>\x00\x1b[31m\u202egnp.exe"

func TestHandlerByKey(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", ofKey("large", 7)...))
	require.NoError(t, e.Put(t.Context(), "orders-retry-1", ofKey(hostileKey, 3)...))
	require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey(hostileKey, 2)...))
	require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey(strings.Repeat("long", 250), 1)...))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "")})

	assert.Contains(t, page(t, h, "/layers"), `href="/bykey?queue=orders"`)
	assert.Contains(t, page(t, h, "/queue?queue=orders-retry-1"), `href="/bykey?queue=orders"`)
	text := page(t, h, "/bykey?queue=orders")
	assert.Regexp(t, `>large</a></td><td data-l="State" class="none">–</td><td class="n" data-l="Waiting">7</td><td data-l="Next is due">now</td><td data-l="Oldest">0 s</td><td class="n none" data-l="Dead letters">0</td>`, text)
	assert.Regexp(t, `gnp.exe.*<td class="n" data-l="Waiting">3</td>.*<td class="n" data-l="Dead letters"><a href="[^"]*orders-dead[^"]*">2</a></td>`, text)
	assert.Less(t, strings.Index(text, ">large<"), strings.Index(text, "gnp.exe"), "the key with most waiting messages is first")
	assert.NotContains(t, text, "<script>alert")
	assert.NotRegexp(t, "[\x00-\x08\x0b-\x1f\x7f\u202e]", text, "control characters")
	assert.Contains(t, text, strings.Repeat("long", 25)+"…", "a long key is cut")
	assert.Equal(t, text[:strings.Index(text, "<footer>")], page(t, h, "/bykey?queue=orders-dead")[:strings.Index(text, "<footer>")], "dead letters belong to their queue")

	link := "/queue?" + url.Values{"queue": {"orders-retry-1"}, "key": {hostileKey}}.Encode()
	assert.Contains(t, page(t, h, link), ">&lt;script&gt;alert(1)&lt;/script&gt;", "the link of a key leads to its messages")

	text = page(t, h, "/bykey?queue=orders&contains=arg")
	assert.Contains(t, text, ">large</a>")
	assert.NotContains(t, text, "gnp.exe")
	text = page(t, h, "/bykey?queue=orders&contains="+url.QueryEscape("\u202e"))
	assert.Contains(t, text, "gnp.exe")
	assert.NotContains(t, text, "\u202e", "the field of the filter has a hidden character")
	assert.Contains(t, page(t, h, "/bykey?queue=orders&contains=nothing"), "No message has such a key.")
	assert.Equal(t, http.StatusNotFound, ask(h, "/bykey", nil).Code)
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/bykey?queue=orders&contains="+strings.Repeat("x", 2000), nil).Code)
}

func TestHandlerByKey_MoreKeysThanFit(t *testing.T) {
	e := memory.Open()
	for i := range 150 {
		require.NoError(t, e.Put(t.Context(), "orders", ofKey(fmt.Sprint("customer ", i), 1)...))
	}
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "")})
	text := page(t, h, "/bykey?queue=orders")
	assert.Equal(t, 100, strings.Count(text, `data-l="Waiting"`))
	assert.Contains(t, text, "These 100 keys are held or down, or have most waiting messages")
}

func TestHandlerByKey_EngineWithoutCounts(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", ofKey("a", 1)...))
	h := handler(t, console.Config{Engine: struct{ store.Inspector }{e}, Authorize: role(console.Reader, "")})
	w := ask(h, "/bykey?queue=orders", nil)
	assert.Equal(t, http.StatusUnprocessableEntity, w.Code)
	assert.Contains(t, w.Body.String(), "does not count by key: SQLite, PostgreSQL and memory do")
	assert.NotContains(t, page(t, h, "/layers"), "/bykey")
}

// slowKeys is an engine whose counts by key take long, or fail.
type slowKeys struct {
	*memory.Engine
	takes time.Duration
	err   error

	mu     sync.Mutex
	begins []time.Time // of the counts; guarded by mu
}

// begun returns when the counts began.
func (e *slowKeys) begun() []time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.begins)
}

func (e *slowKeys) CountKeys(ctx context.Context, q store.KeyQuery) ([]store.KeyCounts, error) {
	e.mu.Lock()
	e.begins = append(e.begins, time.Now())
	e.mu.Unlock()
	time.Sleep(e.takes)
	if e.err != nil {
		return nil, e.err
	}
	return e.Engine.CountKeys(ctx, q)
}

// People who try filters do not keep the engine busy: counts take a tenth of the time.
func TestHandlerByKey_RestsBetweenCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &slowKeys{Engine: memory.Open(), takes: 5 * time.Second}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("a", 1)...))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet})
		require.NoError(t, err)
		for i := range 10 {
			assert.Contains(t, page(t, h, fmt.Sprint("/bykey?queue=orders&contains=", i)), "The keys are being counted")
		}
		time.Sleep(2 * time.Minute)
		assert.Contains(t, page(t, h, "/bykey?queue=orders&contains=0"), "No message has such a key.")
		time.Sleep(10 * time.Minute)
		begins := e.begun()
		require.Greater(t, len(begins), 1)
		for i, at := range begins[1:] {
			assert.GreaterOrEqual(t, at.Sub(begins[i]), 10*e.takes)
		}
		cancel()
	})
}

// The first count by key does not wait for the rests of the groups: those of the newest
// messages, and those of the others, which a long queue needs for minutes.
func TestHandlerByKey_WhileGroupsAreCounted(t *testing.T) {
	e := &counting{takes: time.Second}
	during(t, e, func(t *testing.T, get func(string) string) {
		putLong(t, e)
		get("/queue?queue=orders-dead")
		require.Contains(t, get("/bykey?queue=orders"), ">rare</a>")
		time.Sleep(time.Minute)
		require.Contains(t, get("/queue?queue=orders-dead"), "The older ones are being counted")
		require.Contains(t, get("/bykey?queue=orders&contains=r"), ">rare</a>")
	})
}

// The second filter is counted after the rest, however long that is, and the groups of
// dead letters are counted meanwhile.
func TestHandlerByKey_SecondFilterAfterALongCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &slowKeys{Engine: memory.Open(), takes: 20 * time.Second}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("a", 1)...))
		require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey("a", 1)...))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet})
		require.NoError(t, err)
		page(t, h, "/bykey?queue=orders")
		time.Sleep(e.takes) // counted
		assert.Contains(t, page(t, h, "/bykey?queue=orders&contains=a"), "The keys are being counted")
		time.Sleep(time.Second)
		page(t, h, "/queue?queue=orders-dead")
		time.Sleep(time.Second)
		assert.NotContains(t, page(t, h, "/queue?queue=orders-dead"), "The groups are being counted")
		time.Sleep(2 * time.Minute)
		assert.NotContains(t, page(t, h, "/bykey?queue=orders&contains=a"), "cannot be counted by key", "while it rests")
		time.Sleep(2 * time.Minute)
		text := page(t, h, "/bykey?queue=orders&contains=a")
		assert.NotContains(t, text, "cannot be counted by key")
		assert.NotContains(t, text, "The keys are being counted")
		assert.Contains(t, text, ">a</a>")
		cancel()
	})
}

// Filters that were dropped do not wait for their counts.
func TestHandlerByKey_DroppedFilters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &slowKeys{Engine: memory.Open(), takes: 5 * time.Second}
		require.NoError(t, e.Put(t.Context(), "orders", ofKey("a", 1)...))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet})
		require.NoError(t, err)
		for i := range 100 {
			page(t, h, fmt.Sprint("/bykey?queue=orders&contains=", i))
		}
		time.Sleep(time.Hour)
		assert.LessOrEqual(t, len(e.begun()), 30, "16 filters are kept")
		cancel()
	})
}

func TestHandlerByKey_CountsThatFail(t *testing.T) {
	e := &slowKeys{Engine: memory.Open(), err: errors.New("the index is damaged <b>")}
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "")})
	becomes(t, h, "/bykey?queue=orders", "The messages cannot be counted by key: the index is damaged &lt;b&gt;")
}

// A person sees how many messages of a key there are in each queue, and cancels them.
func TestHandlerByKey_Cancel(t *testing.T) {
	e := memory.Open()
	key := "<b>\u202e7"
	require.NoError(t, e.Put(t.Context(), "orders", ofKey(key, 3)...))
	require.NoError(t, e.Put(t.Context(), "orders-retry-2", ofKey(key, 2)...))
	require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey(key, 1)...))
	require.NoError(t, e.Put(t.Context(), "orders-dead", ofKey("other", 4)...))
	require.NoError(t, e.Put(t.Context(), "orders", ofKey("not text \xff", 1)...))
	reader := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "")})
	assert.NotContains(t, page(t, reader, "/bykey?queue=orders"), "Cancel")
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	text := page(t, h, "/bykey?queue=orders")
	assert.Contains(t, text, "Cancel…")
	assert.Contains(t, text, "the key is no text")

	address := "/start?" + url.Values{"do": {"cancel"}, "queue": {"orders"}, "key": {key}}.Encode()
	text = page(t, h, address)
	assert.Contains(t, text, "Cancel 6 messages?")
	for _, want := range []string{"<dt>messages of orders</dt><dd>3</dd>", "<dt>messages of orders-retry-2</dt><dd>2</dd>", "<dt>messages of orders-dead</dt><dd>1</dd>", "Cancel all 6"} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "to try")
	assert.NotContains(t, text, "\u202e")
	assert.Equal(t, http.StatusForbidden, ask(reader, address, url.Values{"why": {"x"}}).Code)
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, address, url.Values{}).Code, "without a reason")
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/start?do=cancel&queue=orders", url.Values{"why": {"x"}}).Code, "without a key")
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/start?do=cancel&queue=orders-dead&key=other", url.Values{"why": {"x"}}).Code, "of another queue")
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/start?do=cancel&queue=orders", nil).Code)

	w := ask(h, address, url.Values{"why": {"the customer has left"}, "max": {"0"}})
	require.Equal(t, http.StatusSeeOther, w.Code)
	becomes(t, h, w.Header().Get("Location"), "cancel", "its layers and its dead letters", ">done: 6 of 6 done")
	becomes(t, h, "/log", "cancel orders", "the customer has left")
	for queue, want := range map[string]int{"orders": 1, "orders-retry-2": 0, "orders-dead": 4} {
		n, err := e.Count(t.Context(), queue, store.Filter{})
		require.NoError(t, err)
		assert.Equal(t, want, n.Messages, queue)
	}
}

// A person holds a key, and resumes it. The page shows who holds it and why.
func TestHandlerByKey_Hold(t *testing.T) {
	e := memory.Open()
	key := "<b>\u202e7"
	require.NoError(t, e.Put(t.Context(), "orders", ofKey(key, 3)...))
	require.NoError(t, e.Put(t.Context(), "orders", ofKey("not text \xff", 1)...))
	reader := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "bob")})
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	address := "/bykey?" + url.Values{"queue": {"orders"}, "key": {key}}.Encode()
	for _, path := range []string{"/bykey?queue=orders", address} {
		assert.NotContains(t, page(t, reader, path), "Hold")
	}
	assert.Equal(t, 1, strings.Count(page(t, h, "/bykey?queue=orders"), "Hold…"), "the other key is not text")
	assert.Contains(t, page(t, h, address), "Hold &lt;b&gt;")

	hold := url.Values{"do": {"hold"}, "why": {"it loses <b>money</b>"}}
	assert.Equal(t, http.StatusForbidden, ask(reader, address, hold).Code)
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, address, url.Values{"do": {"hold"}}).Code, "without a reason")
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/bykey?queue=orders", hold).Code, "without a key")
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/bykey?queue=order&key=a", hold).Code, "of an unknown queue")
	assert.Equal(t, http.StatusNotFound, ask(h, address, url.Values{"do": {"cut"}, "why": {"x"}}).Code)
	w := ask(h, address, hold)
	require.Equal(t, http.StatusSeeOther, w.Code)
	require.Equal(t, "/bykey?queue=orders", w.Header().Get("Location"))
	again := ask(h, address, hold)
	assert.Equal(t, http.StatusUnprocessableEntity, again.Code)
	assert.Contains(t, again.Body.String(), "is held already, by ann since")

	for _, h := range []http.Handler{h, reader} {
		text := page(t, h, "/bykey?queue=orders")
		assert.Contains(t, text, `<td data-l="Person">ann</td><td data-l="Reason">it loses &lt;b&gt;money&lt;/b&gt;</td>`)
		assert.NotContains(t, text, "\u202e")
	}
	text := page(t, h, "/bykey?queue=orders")
	assert.Contains(t, text, "<b>held</b>")
	assert.Contains(t, text, "Resume…")
	assert.NotContains(t, page(t, h, "/bykey?queue=mails"), "Held key")
	log := page(t, h, "/log?queue=orders")
	assert.Contains(t, log, "key &lt;b&gt;")
	assert.Contains(t, log, "it loses &lt;b&gt;money&lt;/b&gt;")

	assert.Contains(t, page(t, h, address), "Resume &lt;b&gt;")
	resume := url.Values{"do": {"resume"}, "why": {"fixed"}}
	require.Equal(t, http.StatusSeeOther, ask(h, address, resume).Code)
	assert.NotContains(t, page(t, h, "/bykey?queue=orders"), "Held key")
	assert.Equal(t, http.StatusNotFound, ask(h, address, resume).Code)
}

// Keys that are down come before the others, with since when and why.
func TestHandlerByKey_Down(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", ofKey("busy", 7)...))
	require.NoError(t, e.Put(t.Context(), "orders", ofKey(hostileText, 1)...))
	down := []jobs.KeyDown{{Key: hostileText, State: "down", Why: "503 <b>\x1b", Since: time.Now().Add(-5 * time.Minute)}}
	for i := range 4 {
		down = append(down, jobs.KeyDown{Key: fmt.Sprint("idle ", i), State: "probing", Why: "504", Since: time.Now().Add(-time.Minute)})
	}
	says(t, e, jobs.Worker{ID: "w1", Host: "h", Seen: time.Now(), Reads: "orders", KeysDown: down})
	says(t, e, jobs.Worker{ID: "w2", Host: "h", Seen: time.Now(), Reads: "orders"})
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	text := page(t, h, "/bykey?queue=orders")
	assert.Regexp(t, `gnp.exe</a></td><td data-l="State">down</td><td data-l="Since">5 min</td><td class="n" data-l="Workers">1 of 2</td><td data-l="Reason">503 &lt;b&gt;`, text)
	assert.Regexp(t, `(?s)gnp.exe</a></td><td data-l="State"><b class="bad">down</b></td><td class="n" data-l="Waiting">1</td>.*>busy</a></td><td data-l="State" class="none">–</td><td class="n" data-l="Waiting">7</td>`, text)
	assert.NotRegexp(t, "[\x00-\x08\x0b-\x1f\x7f\u202e]", text, "control characters")
	assert.NotContains(t, page(t, h, "/bykey?queue=mails"), "Key that is down")
	for _, want := range []string{"gnp.exe of orders is down in 1 of 2 workers, for 5 min: 503", "Key idle 0 of orders is down", "Of orders, 2 more keys are down."} {
		assert.Contains(t, page(t, h, "/"), want)
	}
	assert.NotContains(t, page(t, h, "/"), "Key idle 2")
}

// The overview names keys that people hold.
func TestOverview_HeldKeys(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", ofKey("a", 1)...))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	assert.NotContains(t, page(t, h, "/"), "is held")
	for i := range 4 {
		w := ask(h, "/bykey?"+url.Values{"queue": {"orders"}, "key": {fmt.Sprint("key ", i)}}.Encode(), url.Values{"do": {"hold"}, "why": {"it loses <b>money</b>"}})
		require.Equal(t, http.StatusSeeOther, w.Code)
	}
	becomes(t, h, "/", `href="/bykey?queue=orders">See the keys`, "Key key 0 of orders is held, by ann 0 s ago: it loses &lt;b&gt;money&lt;/b&gt;", "Of orders, 1 more key is held.")
}
