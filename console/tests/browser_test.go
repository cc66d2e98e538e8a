package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdpage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// chromium starts the browser of all tests.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		return nil, exec.ErrNotFound
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	closeChromium = cancel
	ctx, _ = chromedp.NewContext(ctx)
	return ctx, chromedp.Do(ctx, chromedp.Navigate("about:blank"))
})

// closeChromium ends the browser, if one was started. TestMain calls it.
var closeChromium = func() {}

// browser returns a context for chromedp, with a new window of its own and without the
// data of other tests. If Chromium is not installed, the test is skipped, but not in CI.
func browser(t *testing.T) context.Context {
	t.Helper()
	ctx, err := chromium()
	if errors.Is(err, exec.ErrNotFound) {
		if os.Getenv("CI") == "true" {
			t.Fatal("there is no Chromium: .ci/run installs it")
		}
		t.Skip("there is no Chromium: apt-get install chromium")
	}
	require.NoError(t, err)
	ctx, cancel := chromedp.NewContext(ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	return ctx
}

type person struct {
	t    *testing.T
	ctx  context.Context
	site string
}

func at(t *testing.T, c console.Config) *person {
	t.Helper()
	ctx := browser(t)
	mux := http.NewServeMux()
	c.Prefix, c.Authorize = "/weir", role(console.Actor, "ann")
	mux.Handle("/weir/", handler(t, c))
	s := httptest.NewServer(mux)
	t.Cleanup(s.CloseClientConnections)
	p := &person{t, ctx, s.URL + "/weir"}
	p.open("/")
	return p
}

func js[T any](p *person, expression string) T {
	p.t.Helper()
	v, err := chromedp.Run(p.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(p.t, err)
	return v
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // a string
	return string(b)
}

func (p *person) open(path string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.Navigate(p.site+path)))
}

// scheme makes the browser prefer light or dark.
func (p *person) scheme(value string) {
	p.t.Helper()
	_, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
	require.NoError(p.t, err)
}

func (p *person) size(width, height int64) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.EmulateViewport(width, height)))
}

// click clicks a link or button with a text, and waits for the page behind it.
func (p *person) click(text string) {
	p.t.Helper()
	p.clickIn("body", text)
}

// clickIn does the same within the first element that a selector finds.
func (p *person) clickIn(selector, text string) {
	p.t.Helper()
	is := "[...document.querySelector(" + quoted(selector) + ").querySelectorAll('a, button')].find(e => e.textContent.trim().startsWith(" + quoted(text) + "))"
	require.True(p.t, js[bool](p, "!!"+is), "there is no %q on %s", text, p.text())
	ctx, cancel := context.WithTimeout(p.ctx, 30*time.Second)
	defer cancel()
	_, err := chromedp.RunResponse(ctx, chromedp.Evaluate[chromedp.Void](is+".click()"))
	require.NoError(p.t, err, text)
}

func (p *person) fill(name, text string) {
	p.t.Helper()
	js[bool](p, "document.querySelector('[name="+name+"]').value = "+quoted(text)+", true")
}

func (p *person) text() string {
	p.t.Helper()
	return js[string](p, `document.querySelector("main").innerText`)
}

// sees waits until a page contains texts: live parts change by themselves.
func (p *person) sees(what ...string) {
	p.t.Helper()
	for _, w := range what {
		require.Eventually(p.t, func() bool { return strings.Contains(p.text(), w) }, time.Minute, 50*time.Millisecond, "%q", w)
	}
}

// asked are the engines on which the questions are asked.
var asked = map[string]func(t *testing.T) store.Keeper{
	"sqlite":    func(t *testing.T) store.Keeper { t.Helper(); return onSQLite(t) },
	"jetstream": onJetStream,
}

// The questions of somebody at three in the morning, each on a real page. Without
// WEIR_LONG they are asked on SQLite only.
func TestPages_SevenQuestions(t *testing.T) {
	for name, open := range asked {
		if name != "sqlite" && !suite.Full() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for updates of pages
			sevenQuestions(t, open(t))
		})
	}
}

func sevenQuestions(t *testing.T, e store.Keeper) {
	t.Helper()
	put(t, e, 40)
	for i := range 320 {
		require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: fmt.Sprint("waits ", i)}}))
	}
	day(t, e, "orders")
	beat(t, e, "down")
	p := at(t, console.Config{Engine: e})

	t.Run("one backend or one payload", func(t *testing.T) {
		p.t = t
		p.sees("Backend bank does not answer in 1 of 1 worker", "orders-dead has 43 dead letters: 40 exhausted")
		p.click("See what failed")
		p.sees("One failure stands out: 40 of 43 failed alike.", "no answer of # after # ms")
		p.shoot("groups")
		p.shootAt("groups", 360, 1280, 1920)
		p.open("/queue?queue=orders")
		p.sees("Last 24 hours")
		p.shootAt("queue", 360, 1280, 1920)
	})
	t.Run("does it grow", func(t *testing.T) {
		p.t = t
		p.open("/")
		require.NoError(t, e.Put(t.Context(), "orders-dead", letter("one more")))
		p.sees("44 dead letters, 1 more than") // by itself
		p.shoot("overview")
	})
	t.Run("stop it", func(t *testing.T) {
		p.t = t
		p.open("/backends")
		p.fill("backend", "bank")
		p.fill("why", "it does not answer")
		p.click("Hold")
		p.sees("it does not answer (ann)")
		p.shootAt("backends", 360, 1280, 1920)
		j, err := jobs.New(e, jobs.Config{})
		require.NoError(t, err)
		orders, err := j.BackendOrders(t.Context())
		require.NoError(t, err)
		require.Equal(t, "it does not answer (ann)", orders[0].Held)
	})
	t.Run("look at one", func(t *testing.T) {
		p.t = t
		p.open("/queue?queue=orders-dead&error=airport")
		p.click("wrong")
		p.sees("became a dead letter: permanent", `no airport "XQQ"`, `"to": "XQQ"`)
	})
	t.Run("is it safe to repeat", func(t *testing.T) {
		p.t = t
		p.sees("fails again unless something has changed")
		p.open(address(t, e, "doubt"))
		p.sees("Not safe to repeat: it may happen twice", "Look there for the request first.")
		p.shoot("doubt")
		p.open(address(t, e, "known"))
		p.sees("Safe to repeat for 1 h")
	})
	t.Run("three, then all, slowly", func(t *testing.T) {
		p.t = t
		// Four clicks from the overview, and a reason.
		p.open("/")
		p.click("See what failed")
		p.sees("no answer of # after # ms")
		p.clickIn("#live-groups tbody tr", "Send back")
		p.sees("Send 41 messages back")
		p.fill("why", "the bank is back")
		p.click("Send back three")
		p.sees("done: 3 of 3 done", "waiting")
		p.shootAt("tried", 360, 1280, 1920)
		p.fill("why", "three went through")
		p.fill("rate", "20") // slow enough to see the job run
		p.click("Send the other 38")
		p.sees("done: 38 of 38 done", "To the queue")
		require.NotContains(t, p.text(), "Pause", "the job is done")
	})
	t.Run("who did what", func(t *testing.T) {
		p.t = t
		p.open("/log")
		p.sees("none changed or missing", "ann", "three went through", "it does not answer")
	})
}

func letter(id string) store.Message {
	m := store.Message{Cause: store.Exhausted, Payload: []byte("{}")}
	m.Meta.ID, m.Meta.LastError, m.Meta.Reasons = id, "no answer of 10.0.0.1:443 after 9 ms", []string{"UNAVAILABLE"}
	return m
}

// beat writes a heartbeat of a worker whose backend is in a state.
func beat(t *testing.T, e store.Keeper, state string) {
	t.Helper()
	w := jobs.Worker{
		ID: "w1", Host: "worker-1", PID: 7, Since: time.Now(), Seen: time.Now().Add(time.Hour), Queues: []string{"orders"}, Reads: "orders", Counts: json.RawMessage(`{"Received":4117,"Acknowledged":4100}`),
		Operators: []json.RawMessage{json.RawMessage(`{"InFlight":17,"LastError":"503 Service Unavailable"}`)},
		Backends: []jobs.Backend{{Name: "bank", State: state, Why: "53 of the last 60 calls failed", Since: time.Now(), Limit: 40, InUse: 1, States: []jobs.BackendState{
			{State: "up", Since: time.Now().Add(-50 * time.Minute)},
			{State: "down", Since: time.Now().Add(-20 * time.Minute)},
			{State: "ramping", Since: time.Now().Add(-15 * time.Minute)},
			{State: "held", Since: time.Now().Add(-13 * time.Minute)},
			{State: "up", Since: time.Now().Add(-9 * time.Minute)},
			{State: "down", Since: time.Now().Add(-2 * time.Minute)},
		}}},
	}
	text, err := json.Marshal(w)
	require.NoError(t, err)
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "worker", Name: "w1", Value: string(text)})
	}))
}

// pages returns the pages of a console that has something of everything.
func pages(t *testing.T, e store.Keeper) []string {
	t.Helper()
	put(t, e, 12)
	day(t, e, "orders")
	require.NoError(t, e.Put(t.Context(), "orders-retry-1", store.Message{Meta: message.Meta{ID: "waits"}, Delay: time.Hour, Payload: []byte(strings.Repeat("x", 3000))}))
	beat(t, e, "down")
	require.NoError(t, e.Put(t.Context(), "mails", store.Message{Meta: message.Meta{ID: "1"}}))
	says(t, e, jobs.Worker{ID: "r", Host: "worker-2", Since: time.Now().Add(-time.Hour), Seen: time.Now(), Outbox: "mails", Counts: json.RawMessage(`{"Received":7200}`), Operators: []json.RawMessage{json.RawMessage(`{"LastError":"` + strings.Repeat("https://broker:5672 is away ", 20) + `","LastFailure":"2026-01-02T03:04:05Z","Failures":3}`)}})
	parts, err := json.Marshal(jobs.Worker{ID: "w2", Host: "worker-2", Seen: time.Now().Add(time.Hour), Partitions: []jobs.Partition{
		{Pipeline: "flights", Name: strings.Repeat("long", 100), Epoch: 7, State: "failing", Lag: -1, Why: strings.Repeat("no right ", 40)},
		{Pipeline: "flights", Name: "orders/4", State: jobs.Unowned, Lag: -1},
		{Pipeline: "flights", Name: "orders/5", State: "running", Lag: 123456},
	}})
	require.NoError(t, err)
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "worker", Name: "w2", Value: string(parts)})
	}))
	j, err := jobs.New(e, jobs.Config{})
	require.NoError(t, err)
	_, err = j.Start(t.Context(), jobs.Spec{Do: store.Hold, Queue: "orders-retry-1", By: "ann", Why: strings.Repeat("long", 100)})
	require.NoError(t, err)
	_, err = j.HoldBackend(t.Context(), "bank", "ann", "it loses money")
	require.NoError(t, err)
	return []string{
		"/", "/layers", "/queue?queue=orders", "/queue?queue=orders-dead", "/queue?queue=orders-dead&cause=permanent", address(t, e, "orders/0/0"), address(t, e, "doubt"), address(t, e, "doubt") + "&view=hex",
		"/start?do=merge&queue=orders-dead", "/start?do=purge&queue=orders-dead", "/backends", "/jobs", "/job?id=1", "/log", "/queue?queue=x&since=wrong",
		"/outboxes", "/bykey?queue=orders", "/start?do=cancel&queue=orders&key=customer-7", "/keys", "/keys?finished=yes&user=ann", "/start?do=due&queue=orders-retry-1",
	}
}

// Pages fit widths from 360 to 1,920 pixels, and axe-core finds no barriers for users, in
// light and dark. Without WEIR_LONG the widths are 360 and 1,280, and 1,280 in dark.
func TestPages_WidthsAndBarriers(t *testing.T) {
	e := onSQLite(t)
	paths := pages(t, e)
	db := e.(*sqlite.Engine).DB()
	withKeys(t, db)
	p := at(t, console.Config{Engine: e, Keys: keys.New(db.Reader(), keys.SQLite, keys.Config{}), Checkpoints: map[string]*checkpoint.Coordinator{strings.Repeat("flights", 9): checkpoints(t, 3)}})
	axe := axeScript(t)
	widths := map[string][]int64{"light": {360, 1280}, "dark": {1280}}
	if suite.Full() {
		all := []int64{360, 768, 1280, 1920}
		widths = map[string][]int64{"light": all, "dark": all}
	}
	for _, scheme := range []string{"light", "dark"} {
		for i, path := range paths {
			p.scheme(scheme)
			p.open(path)
			if scheme == "light" {
				p.shootAt(fmt.Sprintf("page-%02d", i), 360, 1280, 1920)
			}
			for _, width := range widths[scheme] {
				p.size(width, 900)
				assert.LessOrEqual(t, js[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`), 0, "%s is too wide for %d", path, width)
				if width != 360 && width != 1280 {
					continue
				}
				if axe != "" {
					assert.Empty(t, p.axe(axe), "%s, %s, %d", path, scheme, width)
				}
				assert.Empty(t, p.ownRules(), "%s, %s, %d", path, scheme, width)
			}
		}
	}
}

// On a phone, the row of a queue, a group, a message or a key has two lines: its name,
// and the numbers that say something. A person looks at the queue first, not at zeros.
func TestPages_RowsOnAPhone(t *testing.T) {
	e := memory.Open()
	put(t, e, 1144)
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "1"}}))
	require.NoError(t, e.Put(t.Context(), "orders-retry-1", store.Message{Meta: message.Meta{ID: "1"}, Delay: time.Hour}))
	long := letter("order-" + strings.Repeat("7", 100))
	long.Meta.LastError = strings.Repeat("the answer of the bank was lost on the way ", 20)
	long.Cause, long.Meta.Key = store.UnsafeToRepeat, strings.Repeat("customer", 20)
	require.NoError(t, e.Put(t.Context(), "orders-dead", long))
	p := at(t, console.Config{Engine: e})
	p.size(360, 900)
	rowsOf := func(section string) string {
		return `[...document.querySelectorAll('[aria-labelledby="` + section + `"] tbody tr')]`
	}
	highest := func(rows string) int { return js[int](p, `Math.max(...`+rows+`.map(r => Math.round(r.offsetHeight)))`) }
	rows := rowsOf("h-queues")
	assert.Equal(t, "orders|orders-dead|orders-retry-1", js[string](p, rows+`.map(r => r.querySelector("a").textContent).join("|")`))
	assert.LessOrEqual(t, highest(rows), 70)
	assert.Contains(t, js[string](p, rows+`[1].innerText`), "1,148")

	p.open("/queue?queue=orders-dead")
	assert.LessOrEqual(t, highest(rowsOf("h-groups")), 70)
	assert.Contains(t, js[string](p, rowsOf("h-groups")+`[0].innerText`), "no answer of # after # ms")
	p.open("/queue?queue=orders-dead&error=answer+of+the+bank")
	assert.LessOrEqual(t, highest(rowsOf("h-list")), 70)
	assert.Contains(t, js[string](p, rowsOf("h-list")+`[0].innerText`), "unsafe to repeat")
	assert.LessOrEqual(t, js[int](p, `document.documentElement.scrollWidth - document.documentElement.clientWidth`), 0)
	p.open("/bykey?queue=orders")
	p.sees("customer-7")
	assert.LessOrEqual(t, js[int](p, `document.querySelector("[data-key='customer-7']").offsetHeight`), 75)
}

// A time shows the local time of the person who points at it.
func TestPages_LocalTime(t *testing.T) {
	p := at(t, console.Config{Engine: memory.Open()})
	_, err := chromedp.Call(p.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
	require.NoError(t, err)
	p.open("/")
	title := js[string](p, `(() => {
		const time = document.querySelector("footer time");
		time.dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
		return time.title;
	})()`)
	assert.Contains(t, title, "5:30")
}

// ownRules returns the findings of our own rules, which need no other program.
func (p *person) ownRules() []string {
	p.t.Helper()
	return js[[]string](p, `(() => {
		const wrong = [];
		if (document.querySelectorAll("h1").length !== 1) wrong.push("no single h1");
		if (!document.querySelector("main") || !document.querySelector("nav[aria-label]") || !document.documentElement.lang) wrong.push("a landmark or the language is missing");
		for (const e of document.querySelectorAll("input:not([type=hidden]), select, textarea")) if (!e.labels.length) wrong.push("no label: " + e.outerHTML);
		for (const e of document.querySelectorAll("a, button, summary")) if (!e.textContent.trim()) wrong.push("no text: " + e.outerHTML);
		for (const e of document.querySelectorAll("[style], style, script:not([src])")) wrong.push("inline: " + e.outerHTML.slice(0, 80));
		let before = 1;
		for (const h of document.querySelectorAll("h1, h2, h3")) { const n = +h.tagName[1]; if (n > before + 1) wrong.push("a heading is left out before " + h.textContent); before = n; }
		const light = c => { const [r, g, b] = c.match(/[\d.]+/g).map(Number).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
		for (const e of document.querySelectorAll("main *, header *")) {
			if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility()) continue;
			let on = e; while (on && getComputedStyle(on).backgroundColor === "rgba(0, 0, 0, 0)") on = on.parentElement;
			const [a, b] = [light(getComputedStyle(e).color), light(on ? getComputedStyle(on).backgroundColor : "rgb(255, 255, 255)")].sort((x, y) => y - x);
			if ((a + 0.05) / (b + 0.05) < 4.5) wrong.push("contrast " + ((a + 0.05) / (b + 0.05)).toFixed(1) + ": " + e.textContent.trim().slice(0, 40));
		}
		return wrong;
	})()`)
}

// axe returns the findings of axe-core on a page.
func (p *person) axe(script string) []string {
	p.t.Helper()
	js[bool](p, script+"; true")
	return js[[]string](p, `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => v.id + ": " + v.nodes.map(n => n.html.slice(0, 120)).join(" | ")))`)
}

// axeScript returns axe-core, from the npm registry, in CI and with WEIR_LONG; ""
// elsewhere, and where that cannot be reached.
func axeScript(t *testing.T) string {
	t.Helper()
	if os.Getenv("CI") == "" && !suite.Long() {
		return ""
	}
	const version = "4.14.1"
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "npm", "pack", "--silent", "axe-core@"+version)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("axe-core is left out: npm: %v %s", err, out)
		return ""
	}
	tar := exec.CommandContext(t.Context(), "tar", "-xzf", "axe-core-"+version+".tgz", "package/axe.min.js")
	tar.Dir = dir
	require.NoError(t, tar.Run())
	b, err := os.ReadFile(filepath.Join(dir, "package", "axe.min.js"))
	require.NoError(t, err)
	return string(b)
}

// shootAt writes pictures of the page at some widths for a review, if WEIR_REVIEW names a
// directory.
func (p *person) shootAt(name string, widths ...int64) {
	p.t.Helper()
	dir := os.Getenv("WEIR_REVIEW")
	if dir == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		p.scheme(scheme)
		for _, width := range widths {
			p.size(width, 1600)
			shot, err := chromedp.Call(p.ctx, cdpage.CaptureScreenshot, cdpage.CaptureScreenshotParams{Format: "png"})
			require.NoError(p.t, err)
			require.NoError(p.t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), shot.Data, 0o600))
		}
	}
	p.scheme("light")
}

// shoot writes pictures for docs/console.md, if WEIR_SHOTS names a directory:
//
//	WEIR_SHOTS=$PWD/docs/pictures go test -run TestPages_SevenQuestions/sqlite ./console/tests
func (p *person) shoot(name string) {
	p.t.Helper()
	dir := os.Getenv("WEIR_SHOTS")
	if dir == "" {
		return
	}
	for _, scheme := range []string{"light", "dark"} {
		p.scheme(scheme)
		p.size(1280, 720)
		shot, err := chromedp.Call(p.ctx, cdpage.CaptureScreenshot, cdpage.CaptureScreenshotParams{Format: "webp", Quality: new(int64(60))})
		require.NoError(p.t, err)
		require.NoError(p.t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("console-%s-%s.webp", name, scheme)), shot.Data, 0o600))
	}
}
