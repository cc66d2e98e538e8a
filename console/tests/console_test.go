package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	weirjs "github.com/weirflow/weir/ext/jetstream"
	"github.com/weirflow/weir/ext/jetstream/embedded"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

var quiet = slog.New(slog.DiscardHandler)

// engines runs a test on each engine that can be had without a server.
func engines(t *testing.T, f func(t *testing.T, e store.Keeper)) {
	t.Run("memory", func(t *testing.T) { f(t, memory.Open()) })
	t.Run("sqlite", func(t *testing.T) { f(t, onSQLite(t)) })
	t.Run("jetstream", func(t *testing.T) { f(t, onJetStream(t)) })
}

// onJetStream returns an engine on a server within this process.
func onJetStream(t *testing.T) store.Keeper {
	t.Helper()
	s, err := embedded.Start(t.TempDir(), embedded.Config{Logger: quiet, Options: func(o *server.Options) { o.SyncAlways, o.MaxPayload = false, 16<<20 }})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	nc, err := s.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	e, err := weirjs.New(t.Context(), js, weirjs.WithLogger(quiet))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	return e
}

func onSQLite(tb testing.TB) store.Keeper {
	tb.Helper()
	e, err := sqlite.Open(context.Background(), filepath.Join(tb.TempDir(), "queues.db"), sqlite.WithLogger(quiet))
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = e.Close() })
	return e
}

// role returns an Authorize that lets everybody in.
func role(role console.Role, who string) func(*http.Request) (console.Role, string, error) {
	return func(*http.Request) (console.Role, string, error) { return role, who, nil }
}

func handler(tb testing.TB, c console.Config) http.Handler {
	tb.Helper()
	c.Logger = quiet
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	h, err := console.Handler(ctx, c)
	require.NoError(tb, err)
	return h
}

// ask sends a request of this machine. With a form it is a POST of the console's own
// page.
func ask(h http.Handler, path string, form url.Values) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil)
	if form != nil {
		r = httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	r.RemoteAddr = "127.0.0.1:1234"
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// page returns the text of a page that must be there.
func page(t *testing.T, h http.Handler, path string) string {
	t.Helper()
	w := ask(h, path, nil)
	// A busy machine may need more than the 10 s of the console for a large message.
	for tries := 0; w.Code == http.StatusServiceUnavailable && tries < 10; tries++ {
		w = ask(h, path, nil)
	}
	require.Equal(t, http.StatusOK, w.Code, "%s: %s", path, w.Body)
	return w.Body.String()
}

// put puts dead letters: n whose service did not answer, one with a wrong payload, one in
// doubt, and one that may be repeated.
func put(tb testing.TB, e store.Engine, n int) {
	tb.Helper()
	now := time.Now()
	var ms []store.Message
	for i := range n {
		ms = append(ms, store.Message{
			Meta: message.Meta{
				ID: fmt.Sprintf("orders/0/%d", i), Key: "customer-7", Origin: message.Origin{Source: "orders", Partition: "0", Position: fmt.Sprint(i)}, Visit: 4, Attempts: 12,
				FirstFailure: now.Add(-time.Hour), LastFailure: now.Add(-time.Minute),
				LastError: fmt.Sprintf("no answer of 10.0.0.%d:443 after %d ms", i%9, i), Reasons: []string{"UNAVAILABLE"}, Provider: "bank",
			},
			Payload: fmt.Appendf(nil, `{"order":%d,"amount":1250}`, i), Cause: store.Exhausted,
		})
	}
	ms = append(ms,
		store.Message{Meta: message.Meta{ID: "wrong", Visit: 1, Attempts: 1, LastError: `no airport "XQQ"`, LastFailure: now, Timeline: []message.Step{{Visit: 1, Attempt: 1, Begun: now, Took: 3 * time.Millisecond, Reason: "NO_ROW", Backend: "up", Error: "no row"}}}, Payload: []byte(`{"to":"XQQ"}`), Cause: store.Permanent},
		store.Message{Meta: message.Meta{ID: "doubt", Visit: 1, Attempts: 1, LastError: "the answer was lost", LastFailure: now.Add(-3 * time.Hour), UnsafeToRepeat: true, Request: "r1", Remembered: now.Add(-2 * time.Hour)}, Payload: []byte(`{}`), Cause: store.UnsafeToRepeat},
		store.Message{Meta: message.Meta{ID: "known", Visit: 1, Attempts: 1, LastError: "the answer was lost", LastFailure: now, UnsafeToRepeat: true, Request: "r2", Remembered: now.Add(2 * time.Hour)}, Payload: []byte(`{}`), Cause: store.UnsafeToRepeat})
	require.NoError(tb, e.Put(context.Background(), "orders-dead", ms...))
}

func address(t *testing.T, e store.Inspector, id string) string {
	t.Helper()
	return addressIn(t, e, "orders-dead", id)
}

func addressIn(t *testing.T, e store.Inspector, queue, id string) string {
	t.Helper()
	list, err := e.List(t.Context(), queue, store.Filter{IDs: []string{id}}, store.Page{Max: 1})
	require.NoError(t, err)
	require.Len(t, list, 1)
	return fmt.Sprintf("/message?queue=%s&position=%d", queue, list[0].Position)
}

func TestOverview(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		h := handler(t, console.Config{Engine: e, Prefix: "/weir/"})
		assert.Contains(t, page(t, h, "/weir/"), "no problems")
		put(t, e, 20)
		h = handler(t, console.Config{Engine: e, Prefix: "/weir/"})
		text := page(t, h, "/weir/")
		assert.Contains(t, text, "orders-dead has 23 dead letters: 20 exhausted, 2 unsafe to repeat, 1 permanent.")
		assert.Contains(t, text, `href="/weir/queue?queue=orders-dead"`)
		assert.NotContains(t, text, `href="/queue`)
	})
}

// Reports of workers, and orders for backends.
func TestWorkersAndBackends(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		j, err := jobs.New(e, jobs.Config{Logger: quiet})
		require.NoError(t, err)
		_, err = j.HoldBackend(t.Context(), "bank", "ann", "it loses money")
		require.NoError(t, err)
		w := jobs.Worker{
			ID: "w1", Host: "h", Seen: time.Now().Add(-5 * time.Minute), Queues: []string{"orders"}, Counts: json.RawMessage(`{"Acknowledged":41}`),
			Operators: []json.RawMessage{json.RawMessage(`{"InFlight":17,"LastError":"refused"}`)},
			Backends:  []jobs.Backend{{Name: "air", State: "down", Why: "503 of half the calls", Limit: -1}},
			Partitions: []jobs.Partition{
				{Pipeline: "flights", Name: "a", Epoch: 3, State: "running", Lag: 1234},
				{Pipeline: "flights", Name: "b<script>", State: jobs.Unowned, Lag: -1},
				{Pipeline: "flights", Name: "c", State: jobs.Unowned, Lag: -1},
				{Pipeline: "flights", Name: "d", Epoch: 3, State: "failing", Lag: -1, Why: "no right"},
			},
			ClockOffset: -3 * time.Minute,
		}
		says(t, e, w)
		says(t, e, jobs.Worker{ID: "w2", Host: "h", Seen: time.Now(), Backends: w.Backends})
		for _, id := range []string{"w3", "w4"} { // a silent worker's view of a backend is not evidence
			says(t, e, jobs.Worker{
				ID: id, Host: "gone", Seen: time.Now().Add(-6 * time.Minute),
				Backends: []jobs.Backend{{Name: "air", State: "down", Why: "gone", Limit: -1}, {Name: "sea", State: "down", Why: "gone", Limit: -1}},
			})
		}
		h := handler(t, console.Config{Engine: e})
		seen := page(t, h, "/")
		for _, want := range []string{
			"Backend bank is held: it loses money (ann)", "Backend air does not answer in 1 of 1 worker: 503 of half the calls",
			"No worker has partition b&lt;script&gt; (and 1 more) of flights.", "Partition d of flights fails: no right", `data-l="Not read">1,234<`,
			"The clock of the engine is 3 min from that of worker w1 on h.",
			"Worker w1 on h has been silent for 5 min", "2 workers on gone have been silent for 6 min or longer", `data-l="Done">41<`, `data-l="In flight">17<`,
		} {
			assert.Contains(t, seen, want)
		}
		assert.NotContains(t, seen, "Backend sea")
		assert.NotContains(t, seen, "Worker w3 on gone")
		assert.Less(t, strings.Index(seen, "Backend air"), strings.Index(seen, "Backend bank"), "the worst first")
		assert.Contains(t, page(t, h, "/backends"), "it loses money (ann)")
	})
}

// A backend has one row, with its processes below it.
func TestBackends_OneRowForAFleet(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		for i, id := range []string{"w1", "w2"} {
			says(t, e, jobs.Worker{ID: id, Host: "h", Seen: time.Now().Add(-time.Duration(10*i) * time.Second), Backends: []jobs.Backend{
				{Name: "air", State: []string{"down", "up"}[i], Why: []string{"503 of half the calls", ""}[i], Limit: 20, Fleet: 50, InUse: 3},
				{Name: "sea", State: []string{"down", "up"}[i], Why: []string{"refused", ""}[i], Limit: 20, InUse: 3},
			}})
		}
		h := handler(t, console.Config{Engine: e})
		seen := page(t, h, "/")
		assert.Contains(t, seen, "Backend air does not answer: 503 of half the calls")
		assert.Contains(t, seen, "Backend sea does not answer in 1 of 2 workers: refused")
		seen = page(t, h, "/backends")
		cells := regexp.MustCompile(`<td[^>]*data-l="(Worker|State|In use|Limit)">(<strong>)?([^<]*)`)
		var rows []string
		for _, cell := range cells.FindAllStringSubmatch(seen, -1) {
			rows = append(rows, cell[3])
		}
		assert.Equal(t, []string{
			"2 processes", "down", "6", "50", "w1", "down", "3", "20", "w2", "up", "3", "20",
			"2 processes", "down in 1", "6", "40", "w1", "down", "3", "20", "w2", "up", "3", "20",
		}, rows)
	})
}

func TestDeadLetters(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		put(t, e, 120)
		h := handler(t, console.Config{Engine: e})
		text := page(t, h, "/queue?queue=orders-dead")
		assert.Eventually(t, func() bool {
			text = page(t, h, "/queue?queue=orders-dead")
			return strings.Contains(text, "One failure stands out: 120 of 123 failed alike.")
		}, time.Minute, 20*time.Millisecond)
		assert.Contains(t, text, "no answer of # after # ms")
		assert.Contains(t, text, "orders/0/49")
		assert.NotContains(t, text, "orders/0/50<")
		list, err := e.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 50})
		require.NoError(t, err)
		next := fmt.Sprintf("/queue?after=%d&queue=orders-dead", list[49].Position)
		assert.Contains(t, text, strings.ReplaceAll(next, "&", "&amp;"))
		_, err = e.Purge(t.Context(), "orders-dead", store.Filter{IDs: []string{"orders/0/3"}})
		require.NoError(t, err)
		assert.Contains(t, page(t, h, next), "orders/0/50<", "what others remove moves nothing from one page to another")
		one := page(t, h, "/queue?queue=orders-dead&error=airport&cause=permanent&since=90m")
		assert.Contains(t, one, ">wrong<")
		assert.NotContains(t, one, "orders/0/1<")
		assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/queue?queue=orders-dead&since=yesterday", nil).Code)
		assert.Equal(t, http.StatusNotFound, ask(h, "/queue", nil).Code)
	})
}

func TestMessage_WhatHappensIfItIsRepeated(t *testing.T) {
	e := memory.Open()
	put(t, e, 1)
	h := handler(t, console.Config{Engine: e})
	for id, want := range map[string][]string{
		"orders/0/0": {"Safe to repeat.", "failed at each of its 4 visits", "became a dead letter: exhausted", "no answer of 10.0.0.0:443"},
		"wrong":      {"fails again unless something has changed", "visit 1, call 1 took 3ms, NO_ROW, the backend was up", "no row"},
		"doubt":      {"Not safe to repeat: it may happen twice", "It failed 3 h ago", "2 h ago. A repeat is a new request"},
		"known":      {"Safe to repeat for 1 h 59 min", "under the same request id", "r2"},
	} {
		text := page(t, h, address(t, e, id))
		for _, w := range want {
			assert.Contains(t, text, w, id)
		}
		assert.NotContains(t, text, "<form", "a reader gets no form")
	}
	assert.Equal(t, http.StatusNotFound, ask(h, "/message?queue=orders-dead&position=999999", nil).Code)
}

// awaitEnd waits until a job has ended, and runs it if the console does not.
func awaitEnd(t *testing.T, e store.Keeper, id int) jobs.Job {
	t.Helper()
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	job, err := j.Run(t.Context(), id, nil)
	require.NoError(t, err)
	return job
}

// Law J1: an action on many messages is a job of the engine. Law J2: it leaves a line in
// the log.
func TestActions(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		put(t, e, 20)
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		confirm := page(t, h, "/start?do=merge&queue=orders-dead")
		for _, want := range []string{"Send 23 messages back", `name="to" value="orders"`, "Send back three, then wait for me", "Send back all 23", "1 may have taken effect"} {
			assert.Contains(t, confirm, want)
		}
		form := url.Values{"do": {"merge"}, "queue": {"orders-dead"}, "to": {"orders"}, "max": {"3"}, "rate": {"0"}}
		w := ask(h, "/start", form)
		assert.Equal(t, http.StatusUnprocessableEntity, w.Code)
		assert.Contains(t, w.Body.String(), "Say why")
		form.Set("why", "the bank is back")
		w = ask(h, "/start", form)
		assert.Equal(t, http.StatusUnprocessableEntity, w.Code, "nobody reads orders")
		form.Set("new", "yes")
		w = ask(h, "/start", form)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		assert.Equal(t, "/job?id=1", w.Header().Get("Location"))
		second := ask(h, "/start", form).Header().Get("Location")
		assert.Equal(t, "/job?id=1&same=yes", second, "a second click")
		assert.Contains(t, page(t, h, second), "no second one was started")
		job := awaitEnd(t, e, 1)
		assert.Equal(t, []any{3, "ann", "the bank is back"}, []any{job.Done, job.By, job.Why})
		assert.Contains(t, page(t, h, "/job?id=1"), "done: 3 of 3 done")

		form.Set("max", "0")
		require.Equal(t, http.StatusSeeOther, ask(h, "/start", form).Code)
		job = awaitEnd(t, e, 3) // the line of the end of the first is the second
		assert.Equal(t, []int{19, 1}, []int{job.Done, job.Unsafe}, "the one that the server remembers goes, too")

		steer := url.Values{"do": {"hold"}, "backend": {"bank"}, "why": {"it loses money"}}
		unknown := ask(h, "/backends", steer)
		require.Equal(t, http.StatusUnprocessableEntity, unknown.Code)
		require.Contains(t, unknown.Body.String(), "No worker reports a backend bank.")
		steer.Set("new", "yes")
		require.Equal(t, http.StatusSeeOther, ask(h, "/backends", steer).Code)
		inRow := url.Values{"do": {"limit"}, "limit": {"7"}, "why": {"slowly"}}
		require.Eventually(t, func() bool { return ask(h, "/backends?backend=bank", inRow).Code == http.StatusSeeOther },
			time.Minute, 20*time.Millisecond, "it is known by its order, once the console has read it")
		log := page(t, handler(t, console.Config{Engine: e}), "/log")
		assert.Contains(t, log, "6 lines, none changed or missing")
		assert.Contains(t, log, "it loses money")
		assert.Contains(t, page(t, h, "/jobs"), "the bank is back")
	})
}

// The message page, the confirmation and the job give the same answer about each dead
// letter.
func TestConfirm_RepetitionOfEachMessage(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		later := time.Now().Add(13*time.Hour + time.Minute)
		require.NoError(t, e.Put(t.Context(), "orders-dead",
			store.Message{Meta: message.Meta{ID: "known", UnsafeToRepeat: true, Request: "r", Remembered: later}, Cause: store.UnsafeToRepeat}))
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		require.Contains(t, page(t, h, address(t, e, "known")), "Safe to repeat for 13")
		confirm := page(t, h, "/start?do=merge&queue=orders-dead")
		require.NotContains(t, confirm, "may have taken effect")
		require.NotContains(t, confirm, "may happen a second time")

		for i := range 5 {
			require.NoError(t, e.Put(t.Context(), "orders-dead", store.Message{Meta: message.Meta{ID: fmt.Sprint("lapsed", i)}, Cause: store.Lapsed}))
		}
		require.NoError(t, e.Put(t.Context(), "orders-dead",
			store.Message{Meta: message.Meta{ID: "doubt", UnsafeToRepeat: true}, Cause: store.UnsafeToRepeat}))
		require.Contains(t, page(t, h, address(t, e, "lapsed1")), "Look first: it is not known how far its workers got")
		require.Contains(t, page(t, h, address(t, e, "doubt")), "Not safe to repeat")
		confirm = page(t, h, "/start?do=merge&queue=orders-dead")
		require.Contains(t, confirm, "5 lapsed: their workers died or hung while they had them, and it is not known how far they got.")
		require.Contains(t, confirm, "1 may have taken effect already")
		require.Contains(t, confirm, `name="lapsed" value="yes"`)

		form := url.Values{"do": {"merge"}, "queue": {"orders-dead"}, "to": {"orders"}, "new": {"yes"}, "why": {"the bank is back"}}
		require.Equal(t, http.StatusSeeOther, ask(h, "/start", form).Code)
		job := awaitEnd(t, e, 1)
		require.Equal(t, []int{1, 1, 5}, []int{job.Done, job.Unsafe, job.Lapsed})
		require.Contains(t, page(t, h, "/job?id=1"), "stayed, to be looked at first")

		form.Set("lapsed", "yes")
		w := ask(h, "/start", form)
		require.Equal(t, http.StatusSeeOther, w.Code)
		job = awaitEnd(t, e, 3)
		require.Equal(t, []int{5, 1, 0}, []int{job.Done, job.Unsafe, job.Lapsed})
	})
}

func TestJobsArePausedAndCancelled(t *testing.T) {
	e := memory.Open()
	put(t, e, 20)
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	form := url.Values{"do": {"purge"}, "queue": {"orders-dead"}, "why": {"test"}, "rate": {"1"}}
	require.Equal(t, http.StatusSeeOther, ask(h, "/start", form).Code)
	for _, step := range [][2]string{{"pause", "Resume"}, {"resume", "Pause"}, {"cancel", "cancelled"}} {
		w := ask(h, "/job", url.Values{"id": {"1"}, "do": {step[0]}, "why": {"test"}})
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		assert.Contains(t, page(t, h, "/job?id=1"), step[1])
	}
	assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/job", url.Values{"id": {"1"}, "do": {"pause"}, "why": {"test"}}).Code, "it is over")
	assert.Equal(t, http.StatusNotFound, ask(h, "/job?id=77", nil).Code)
}

// Layers show when messages are due; the messages can be run now, or held.
func TestLayers(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		require.NoError(t, e.Put(t.Context(), "orders-retry-1", store.Message{Meta: message.Meta{ID: "a", Visit: 1}, Delay: 2 * time.Hour}, store.Message{Meta: message.Meta{ID: "b", Visit: 1}, Delay: 3 * time.Hour}))
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		text := page(t, h, "/layers")
		assert.Contains(t, text, "in 1 h 59 min")
		assert.Contains(t, text, "Run now")
		assert.Contains(t, page(t, h, "/start?do=due&queue=orders-retry-1"), "Let 2 messages run now?")
		form := url.Values{"do": {"hold"}, "queue": {"orders-retry-1"}, "id": {"b"}, "why": {"test"}}
		require.Equal(t, http.StatusSeeOther, ask(h, "/start", form).Code)
		require.Equal(t, 1, awaitEnd(t, e, 1).Done)
		form = url.Values{"do": {"merge"}, "queue": {"orders-retry-1"}, "to": {"orders"}, "new": {"yes"}, "id": {"a"}, "why": {"test"}}
		assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/start", form).Code, "it would begin anew")
		form = url.Values{"do": {"due"}, "queue": {"orders-retry-1"}, "id": {"a"}, "why": {"test"}}
		w := ask(h, "/start", form)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		require.Equal(t, 1, awaitEnd(t, e, 3).Done)
		taken, err := e.Take(t.Context(), "orders-retry-1", 9, time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		assert.Equal(t, "a 1", fmt.Sprint(taken[0].Meta.ID, " ", taken[0].Meta.Visit))
		assert.Contains(t, page(t, handler(t, console.Config{Engine: e}), "/"), "1 message of orders-retry-1 held")
	})
}

func TestActions_EditedPayload(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		put(t, e, 0)
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		u, err := url.Parse(address(t, e, "wrong"))
		require.NoError(t, err)
		form := u.Query()
		for k, v := range map[string]string{"to": "orders", "payload": "{\r\n\"to\":\"TXL\"}", "why": "a typing error", "new": "yes"} {
			form.Set(k, v)
		}
		w := ask(h, "/edit", form)
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		sent, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 9})
		require.NoError(t, err)
		require.Len(t, sent, 1)
		assert.Equal(t, "{\n\"to\":\"TXL\"}", string(sent[0].Payload))
		assert.Equal(t, "wrong", sent[0].Meta.Headers["Edited-From"])
		assert.Equal(t, http.StatusNotFound, ask(h, "/edit", form).Code, "a second click changes nothing")
		assert.Contains(t, page(t, h, fmt.Sprintf("/message?queue=orders&position=%d", sent[0].Position)), "from the message wrong with another payload")
	})
}

// Another program may have put a dead letter that is in doubt by its cause alone. Its
// calls would happen twice, so the form asks.
func TestEdit_InDoubtByItsCause(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders-dead", store.Message{Meta: message.Meta{ID: "7"}, Payload: []byte("text"), Cause: store.UnsafeToRepeat}))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	letter := page(t, h, "/message?queue=orders-dead&position=1")
	require.Contains(t, letter, "the call for it may happen a second time")
	form := url.Values{"why": {"a typing error"}, "to": {"orders"}, "new": {"yes"}, "payload": {"other"}}
	w := submitted(t, h, letter, "/edit", form)
	require.Equal(t, http.StatusUnprocessableEntity, w.Code)
	form.Set("unsafe", "yes")
	w = submitted(t, h, letter, "/edit", form)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
}

// The page announces for a merge what the job will do: a message in doubt that was sent
// back five times stays in any case. Before a purge it counts, since its call may have
// taken effect.
func TestConfirm_InDoubtAndSentBackTooOften(t *testing.T) {
	e := memory.Open()
	for merges, id := range []string{"a", "b", "c", "d", "e", "f"} {
		require.NoError(t, e.Put(t.Context(), "orders-dead", store.Message{
			Meta: message.Meta{ID: id, UnsafeToRepeat: true, Merges: merges}, Cause: store.UnsafeToRepeat,
		}))
	}
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	require.Contains(t, page(t, h, "/start?do=merge&queue=orders-dead"), "Of these, 5 may have taken effect already.")
	require.Contains(t, page(t, h, "/start?do=purge&queue=orders-dead"), "Of these, 6 may have taken effect already.")
}

// A queue's default codec is JSON: a payload that is not JSON is refused, and the edited
// message keeps the schema, so that the queue can decode it.
func TestEdit_DefaultCodec(t *testing.T) {
	type order struct{ To string }
	e := memory.Open()
	q := delivery.NewQueue[order](e, "orders")
	m, err := q.Encode(order{"TLX"}, delivery.ID("7"))
	require.NoError(t, err)
	m.Cause = store.Permanent
	require.NoError(t, e.Put(t.Context(), q.DeadLetters(), m))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	letter := page(t, h, "/message?queue=orders-dead&position=1")
	more := url.Values{"why": {"a typing error"}, "to": {"orders"}, "new": {"yes"}, "payload": {`{"To":"TXL"`}}
	w := submitted(t, h, letter, "/edit", more)
	require.Equal(t, http.StatusUnprocessableEntity, w.Code)
	require.Contains(t, w.Body.String(), "The payload is not JSON")
	more.Set("payload", `{"To":"TXL"}`)
	w = submitted(t, h, letter, "/edit", more)
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	list, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 9})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, `{"To":"TXL"}`, string(list[0].Payload))
	require.Equal(t, m.Schema, list[0].Schema)
}

// submitted sends the form of a page to path as a browser does, with more fields: in the
// fields of the form, browsers turn each line end into CR LF.
func submitted(t *testing.T, h http.Handler, text, path string, more url.Values) *httptest.ResponseRecorder {
	t.Helper()
	form := regexp.MustCompile(`(?s)<form method="(get|post)" action="(` + path + `[^"]*)"[^>]*>(.*?)</form>`).FindStringSubmatch(text)
	require.NotNil(t, form, text)
	values := url.Values{}
	for _, hidden := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`).FindAllStringSubmatch(form[3], -1) {
		values.Add(hidden[1], strings.ReplaceAll(html.UnescapeString(hidden[2]), "\n", "\r\n"))
	}
	maps.Copy(values, more)
	to := html.UnescapeString(form[2])
	if form[1] == "post" {
		return ask(h, to, values)
	}
	to, _, _ = strings.Cut(to, "?") // the fields replace the query of the form's address
	return ask(h, to+"?"+values.Encode(), nil)
}

func TestForms_QueueWithLineEnd(t *testing.T) {
	const queue = "two\nlines-dead"
	e := onSQLite(t)
	for _, id := range []string{"purged", "edited"} {
		require.NoError(t, e.Put(t.Context(), queue, store.Message{
			Meta: message.Meta{ID: id, Visit: 1, Attempts: 1, LastError: "no\nrow", LastFailure: time.Now()}, Payload: []byte(id), Cause: store.Permanent,
		}))
	}
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	address := "/queue?" + url.Values{"queue": {queue}}.Encode()

	filtered := submitted(t, h, page(t, h, address), "/queue", url.Values{"id": {"purged"}})
	require.Equal(t, http.StatusOK, filtered.Code, filtered.Body)
	assert.Contains(t, filtered.Body.String(), ">purged</a>")
	assert.NotContains(t, filtered.Body.String(), ">edited</a>")

	confirm := page(t, h, "/start?"+url.Values{"do": {"purge"}, "queue": {queue}, "id": {"purged"}, "error": {"no\nrow"}}.Encode())
	w := submitted(t, h, confirm, "/start", url.Values{"why": {"it is wrong"}})
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	require.Equal(t, 1, awaitEnd(t, e, 1).Done)

	list, err := e.List(t.Context(), queue, store.Filter{}, store.Page{Max: 9})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "edited", list[0].Meta.ID)
	letter := page(t, h, "/message?"+url.Values{"queue": {queue}, "position": {fmt.Sprint(list[0].Position)}}.Encode())
	w = submitted(t, h, letter, "/edit", url.Values{"why": {"a typing error"}, "to": {"orders"}, "new": {"yes"}, "payload": {"right"}})
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	list, err = e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 9})
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "right", string(list[0].Payload))
}

// Law J3: the content of a message is text.
func TestHostileMessages(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		nasty := "<script>alert(1)</script>\x1b[31m\u202e\u2066\r'\"`{{.}}"
		m := store.Message{
			Meta: message.Meta{
				ID: "id" + nasty, Key: nasty, LastError: nasty + strings.Repeat("x", 5000), Reasons: []string{nasty}, Provider: nasty, Origin: message.Origin{Source: nasty},
				Headers: map[string]string{
					"Authorization": "Bearer s3cr3t", "Cookie": "s3cr3t", "X-Api-Key": "s3cr3t", "x-auth-token": "s3cr3t", "Client-Secret-2": "s3cr3t",
					"db_PASSWORD": "s3cr3t", "Trace": nasty, "<b>": "x",
				},
			},
			Payload: append([]byte(nasty), strings.Repeat("payload ", 2<<20/8)...), Cause: store.Permanent,
		}
		binary := store.Message{Meta: message.Meta{ID: "binary"}, Payload: []byte("\xff\x00\xfe<script>alert(1)</script>"), Cause: store.Undecodable}
		require.NoError(t, e.Put(t.Context(), "orders-dead", m, binary))
		says(t, e, jobs.Worker{
			ID: nasty, Host: nasty, Outbox: nasty, Seen: time.Now(), Checkpoints: map[string]json.RawMessage{nasty: json.RawMessage(`{"FailedInRow":1,"LastError":"\u001b[31m<script>alert(1)"}`)},
			Operators: []json.RawMessage{json.RawMessage(`{"LastError":"\u202e<script>alert(1)","LastFailure":"2026-01-02T03:04:05Z"}`)},
		})
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, nasty)})
		var pages []string
		list, err := e.List(t.Context(), "orders-dead", store.Filter{}, store.Page{Max: 9})
		require.NoError(t, err)
		for _, entry := range list {
			for _, view := range []string{"", "text", "json", "hex"} {
				pages = append(pages, page(t, h, fmt.Sprintf("/message?queue=orders-dead&view=%s&position=%d", view, entry.Position)))
			}
		}
		q := url.Values{"queue": {"orders-dead"}, "error": {nasty}, "key": {nasty}, "do": {"merge"}, "to": {nasty}}.Encode()
		for _, path := range []string{"/", "/queue?queue=orders-dead", "/queue?" + q, "/start?" + q, "/layers", "/jobs", "/outboxes", "/queue?queue=" + url.QueryEscape(nasty)} {
			pages = append(pages, page(t, h, path))
		}
		pages = append(pages, ask(h, "/queue?queue=x&since="+url.QueryEscape(nasty), nil).Body.String())
		for i, text := range pages {
			assert.NotContains(t, text, "<script>alert", i)
			for _, bad := range []string{"\x1b", "\u202e", "\u2066", "\x00", "s3cr3t"} {
				assert.False(t, strings.Contains(stripped(text), bad), "page %d has %q", i, bad)
			}
			assert.Less(t, len(text), 1<<20, i)
		}
		assert.Contains(t, pages[0], `\x1b[31m\u202e`)
		assert.Contains(t, pages[0], "hidden (6 bytes)")
		assert.Contains(t, pages[4], "ff 00 fe 3c")
		w := ask(h, fmt.Sprintf("/payload?queue=orders-dead&position=%d", list[1].Position), nil)
		assert.Equal(t, "application/octet-stream", w.Header().Get("Content-Type"))
		assert.Contains(t, w.Header().Get("Content-Disposition"), "attachment")
		assert.Equal(t, binary.Payload, w.Body.Bytes())
	})
}

// stripped leaves out the values of fields, which send back what was asked for, byte for
// byte.
func stripped(text string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, `value="`)
		b.WriteString(before)
		if !ok {
			return b.String()
		}
		_, text, _ = strings.Cut(rest, `"`)
	}
}

func TestHandler_WhoGetsIn(t *testing.T) {
	e := memory.Open()
	put(t, e, 1)
	from := func(h http.Handler, method, host, remote string, header ...string) int {
		r := httptest.NewRequest(method, "http://"+host+"/", nil)
		r.RemoteAddr = remote
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
		assert.NotContains(t, w.Header().Get("Content-Security-Policy"), "unsafe")
		return w.Code
	}
	open := handler(t, console.Config{Engine: e})
	assert.Equal(t, http.StatusOK, from(open, "GET", "localhost:80", "127.0.0.1:1"))
	assert.Equal(t, http.StatusOK, from(open, "GET", "[::1]:80", "[::1]:1"))
	assert.Equal(t, http.StatusForbidden, from(open, "GET", "localhost", "10.0.0.1:1"), "another machine")
	assert.Equal(t, http.StatusForbidden, from(open, "GET", "evil.example", "127.0.0.1:1"), "a name that leads here")
	elsewhere := httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
	elsewhere.RemoteAddr = "10.0.0.1:1"
	refused := httptest.NewRecorder()
	open.ServeHTTP(refused, elsewhere)
	assert.Contains(t, refused.Body.String(), "forward its port, or set Authorize")
	form := url.Values{"do": {"purge"}, "queue": {"orders-dead"}, "why": {"x"}}
	assert.Equal(t, http.StatusForbidden, ask(open, "/start", form).Code)
	for _, c := range []struct {
		role console.Role
		who  string
		err  error
	}{{console.Nobody, "x", nil}, {console.Actor, "", nil}, {console.Actor, "x", errors.New("no")}} {
		h := handler(t, console.Config{Engine: e, Authorize: func(*http.Request) (console.Role, string, error) { return c.role, c.who, c.err }})
		assert.Equal(t, http.StatusForbidden, from(h, "GET", "localhost", "127.0.0.1:1"))
	}
	acts := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	assert.Equal(t, http.StatusOK, from(acts, "GET", "weir.example", "10.0.0.1:1"))
	r := httptest.NewRequest(http.MethodPost, "http://localhost/start", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	acts.ServeHTTP(w, r)
	assert.Equal(t, http.StatusForbidden, w.Code, "a page of another site")
	r.Header.Del("Sec-Fetch-Site")
	r.Header.Set("Origin", "https://evil.example")
	w = httptest.NewRecorder()
	acts.ServeHTTP(w, r)
	assert.Equal(t, http.StatusForbidden, w.Code, "of an old browser")
}

// While an engine does not answer, the last numbers are shown, and marked as such.
func TestHandler_EngineThatFails(t *testing.T) {
	e := memory.Open()
	put(t, e, 1)
	mock := clock.NewMock()
	mock.Set(time.Now())
	h := handler(t, console.Config{Engine: e, Clock: mock})
	assert.NotContains(t, page(t, h, "/"), "did not answer")
	require.NoError(t, e.Close())
	mock.Add(time.Minute)
	require.Eventually(t, func() bool {
		return strings.Contains(page(t, h, "/"), "The engine did not answer just now; these numbers are 1 min old: store: closed")
	}, time.Minute, 10*time.Millisecond)
	assert.Equal(t, http.StatusInternalServerError, ask(h, "/queue?queue=orders-dead", nil).Code)
}

func TestHandlerRefuses(t *testing.T) {
	_, err := console.Handler(t.Context(), console.Config{})
	require.Error(t, err)
	_, err = console.Handler(t.Context(), console.Config{Engine: memory.Open(), Prefix: "weir"})
	require.ErrorContains(t, err, "slash")
}

// The events of a page that is live.
func TestEvents(t *testing.T) {
	e := memory.Open()
	s := httptest.NewServer(handler(t, console.Config{Engine: e}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/events", nil)
	require.NoError(t, err)
	answer, err := s.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	assert.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"))
	b := make([]byte, 5)
	_, err = io.ReadFull(answer.Body, b)
	require.NoError(t, err)
	assert.Equal(t, "data:", string(b))
	cancel()
}
