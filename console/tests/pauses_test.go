package tests

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

func TestPauseQueue(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "1"}}))
		require.NoError(t, e.Put(t.Context(), "orders-retry-1", store.Message{Meta: message.Meta{ID: "2"}}))
		require.NoError(t, e.Put(t.Context(), "orders-dead", store.Message{Meta: message.Meta{ID: "3"}, Cause: store.Permanent}))
		says(t, e, jobs.Worker{ID: "w1", Host: "h", Since: time.Now(), Seen: time.Now(), Queues: []string{"orders"}, Reads: "orders"})
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		reader := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "bob")})
		assert.Contains(t, page(t, h, "/queue?queue=orders"), "<summary>Pause orders</summary>")
		assert.Contains(t, page(t, h, "/queue?queue=orders-retry-1"), "<summary>Pause orders</summary>", "a layer belongs to its queue")
		assert.NotContains(t, page(t, h, "/queue?queue=orders-dead"), "<summary>Pause")
		assert.NotContains(t, page(t, reader, "/queue?queue=orders"), "<summary>Pause")

		pause := url.Values{"do": {"pause"}}
		require.Equal(t, http.StatusUnprocessableEntity, ask(h, "/queue?queue=orders", pause).Code, "without a reason")
		pause.Set("why", "it loses <b>money</b>")
		require.Equal(t, http.StatusForbidden, ask(reader, "/queue?queue=orders", pause).Code)
		require.Equal(t, http.StatusUnprocessableEntity, ask(h, "/queue?queue=orders-retry-1", pause).Code)
		w := ask(h, "/queue?queue=orders", pause)
		require.Equal(t, http.StatusSeeOther, w.Code)
		require.Equal(t, "/queue?queue=orders", w.Header().Get("Location"))
		for _, h := range []http.Handler{h, reader} {
			text := page(t, h, "/queue?queue=orders")
			assert.Contains(t, text, "By ann, 0 s ago: it loses &lt;b&gt;money&lt;/b&gt;. Its worker has not reported yet that it is paused.")
			assert.NotContains(t, text, "not obey", "it has not reported itself since")
		}
		says(t, e, jobs.Worker{ID: "w1", Host: "h", Seen: time.Now().Add(20 * time.Second), Queues: []string{"orders"}, Reads: "orders"})
		says(t, e, jobs.Worker{ID: "w2", Host: "h", Seen: time.Now(), Queues: []string{"orders"}, Reads: "orders", Paused: true})
		text := page(t, h, "/queue?queue=orders")
		assert.Contains(t, text, "1 of 2 workers reports that it is paused.")
		assert.Contains(t, text, "1 of 2 workers does not obey")
		assert.Contains(t, text, "<summary>Resume orders</summary>")
		becomes(t, h, "/", "Queue orders is paused, by ann", "Queue orders is paused, and 1 of 2 workers does not obey", "<span>queue <b>paused</b></span>", "<span>layer <b>paused</b></span>", "<span>dead letters</span>")
		log := page(t, handler(t, console.Config{Engine: e}), "/log")
		assert.Contains(t, log, ">queue orders</a>")
		assert.Contains(t, log, "it loses &lt;b&gt;money&lt;/b&gt;")

		require.Equal(t, http.StatusSeeOther, ask(h, "/queue?queue=orders", url.Values{"do": {"resume"}, "why": {"fixed"}}).Code)
		assert.NotContains(t, page(t, h, "/queue?queue=orders"), "<strong>Paused</strong>")
		require.Equal(t, http.StatusNotFound, ask(h, "/queue?queue=orders", url.Values{"do": {"resume"}, "why": {"fixed"}}).Code)
	})
}

// The name of a queue without messages and workers may be mistyped, so a person must
// confirm it.
func TestPauseQueue_NewQueue(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		require.NoError(t, e.Put(t.Context(), "bills-dead", store.Message{Meta: message.Meta{ID: "1"}, Cause: store.Permanent}))
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		assert.Contains(t, page(t, h, "/queue?queue=order"), "that queue is right, even if it is empty or new")
		pause := url.Values{"do": {"pause"}, "why": {"it loses money"}}
		w := ask(h, "/queue?queue=order", pause)
		assert.Equal(t, http.StatusUnprocessableEntity, w.Code)
		assert.Contains(t, w.Body.String(), "The queue order has neither messages nor workers.")
		assert.NotContains(t, page(t, h, "/queue?queue=bills"), "that queue is right", "its dead letters show that it exists")
		require.Equal(t, http.StatusSeeOther, ask(h, "/queue?queue=bills", pause).Code)
		require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "1"}}))
		require.Equal(t, http.StatusSeeOther, ask(h, "/queue?queue=orders", pause).Code, "new since the last look")
		pause.Set("new", "yes")
		require.Equal(t, http.StatusSeeOther, ask(h, "/queue?queue=order", pause).Code)
		assert.Contains(t, page(t, h, "/queue?queue=order"), "<summary>Resume order</summary>")
	})
}

// A page of another site cannot pause a queue, nor can a link.
func TestPauseQueue_RequestOfAnotherSite(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "1"}}))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	for _, site := range []string{"cross-site", "same-site"} {
		form := strings.NewReader(url.Values{"do": {"pause"}, "why": {"x"}}.Encode())
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost/queue?queue=orders", form)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", site)
		r.RemoteAddr = "127.0.0.1:1234"
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Equal(t, http.StatusForbidden, w.Code, site)
	}
	assert.Equal(t, http.StatusOK, ask(h, "/queue?queue=orders&do=pause&why=x", nil).Code)
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	list, err := j.PausedQueues(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list)
}

// Pages escape the name of a queue and the texts of its order.
func TestPauseQueue_HostileTexts(t *testing.T) {
	e := memory.Open()
	bad := `<script>alert(1)</script>"onmouseover="x' ` + "\x1b[31m\u202e"
	queue := `a<img src=x onerror=1>"&queue=b`
	require.NoError(t, e.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: "1"}}))
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	_, err = j.PauseQueue(t.Context(), queue, bad, bad)
	require.NoError(t, err)
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "paused", Name: "damaged<b>", Value: "{"})
	}))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, bad)})
	address := "/queue?" + url.Values{"queue": {queue}}.Encode()
	for _, path := range []string{"/", address, "/log", "/log?who=" + url.QueryEscape(bad), "/layers"} {
		text := ask(h, path, nil).Body.String()
		for _, part := range []string{"<script>alert", "<img src=x", "\x1b", "\u202e", `"onmouseover="`, "damaged<b>"} {
			assert.NotContains(t, text, part, path)
		}
	}
	resume := url.Values{"do": {"resume"}, "why": {bad}}
	assert.Equal(t, http.StatusSeeOther, ask(h, address, resume).Code)
	assert.Equal(t, http.StatusSeeOther, ask(h, "/queue?"+url.Values{"queue": {"damaged<b>"}}.Encode(), resume).Code)
	list, err := j.PausedQueues(t.Context())
	require.NoError(t, err)
	assert.Empty(t, list)
}

// An engine that keeps no orders has no such button.
func TestPauseQueue_EngineWithoutOrders(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "1"}}))
	h := handler(t, console.Config{Engine: struct{ store.Inspector }{e}, Authorize: role(console.Actor, "ann")})
	assert.NotContains(t, page(t, h, "/queue?queue=orders"), "<summary>Pause")
	w := ask(h, "/queue?queue=orders", url.Values{"do": {"pause"}, "why": {"x"}})
	assert.Equal(t, http.StatusUnprocessableEntity, w.Code)
	assert.Contains(t, w.Body.String(), "does not keep orders for workers")
}

// A person pauses a queue in the browser: its worker takes no message until the queue is
// resumed, and the page shows that it obeys.
func TestPauseQueue_InABrowser(t *testing.T) {
	t.Parallel()
	e := onSQLite(t)
	orders := delivery.NewQueue[int](e, "orders", delivery.WithLogger(quiet))
	var calls atomic.Int64
	op := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, n int) (int, error) {
		calls.Add(1)
		return n, nil
	}), 0, 4, asyncop.WithFailureSink(orders.TakeFailure), asyncop.WithLogger(quiet))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { // ends with ctx
		_, err := delivery.Run(ctx, orders, op, delivery.NewQueue[int](e, "results", delivery.WithLogger(quiet)), delivery.WithLogger(quiet))
		ended <- err
	}()
	require.NoError(t, orders.Put(t.Context(), 1))
	require.Eventually(t, func() bool { return calls.Load() == 1 }, time.Minute, 10*time.Millisecond)

	p := at(t, console.Config{Engine: e})
	p.open("/queue?queue=orders")
	p.fill("why", "the bank loses money")
	p.click("Pause")
	p.sees("By ann", "the bank loses money", "Its worker reports that it is paused")
	require.NoError(t, orders.Put(t.Context(), 2))
	p.open("/")
	p.sees("Queue orders is paused, by ann", "queue paused")
	require.EqualValues(t, 1, calls.Load())
	for _, width := range []int64{360, 1280, 1920} {
		p.size(width, 900)
		require.LessOrEqual(t, js[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`), 0, width)
	}
	p.open("/queue?queue=orders")
	p.shootAt("pause", 360, 1280, 1920)
	require.Empty(t, p.ownRules())
	p.fill("why", "it is fixed")
	p.click("Resume")
	require.Eventually(t, func() bool { return calls.Load() == 2 }, time.Minute, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}
