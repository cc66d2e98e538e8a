package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// state returns all that an engine keeps: messages, records and locks.
func state(tb testing.TB, e store.Keeper) string {
	tb.Helper()
	ctx := context.Background()
	var b strings.Builder
	queues, err := e.Queues(ctx)
	require.NoError(tb, err)
	for _, q := range queues {
		list, err := e.List(ctx, q, store.Filter{}, store.Page{Max: 1000})
		require.NoError(tb, err)
		for _, entry := range list {
			text, err := json.Marshal(entry.Message)
			require.NoError(tb, err)
			fmt.Fprintln(&b, q, entry.Position, entry.Held, entry.Fence, entry.LeasedUntil, string(text))
		}
	}
	for _, kind := range []string{"job", "job-ended", "log", "log-head", "worker", "backend", "paused"} {
		records, err := e.Records(ctx, kind, "", 1000)
		require.NoError(tb, err)
		fmt.Fprintln(&b, kind, records)
	}
	held, err := e.Locks().Held(ctx, "")
	require.NoError(tb, err)
	return b.String() + fmt.Sprint(len(held))
}

// leaving is a browser that leaves a page at the first event.
type leaving struct {
	*httptest.ResponseRecorder
	leave func()
}

func (l *leaving) Flush() { l.leave() }

// Law J2: a reader cannot change anything, by any request to any route.
func FuzzHandler_ReaderChangesNothing(f *testing.F) {
	e := onSQLite(f)
	put(f, e, 3)
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(f, err)
	_, err = j.Start(context.Background(), jobs.Spec{Do: store.Hold, Queue: "orders-dead", By: "ann", Why: "test"})
	require.NoError(f, err)
	db := e.(*sqlite.Engine).DB()
	require.NoError(f, keys.New(db.Writer(), keys.SQLite, keys.Config{}).Migrate(context.Background()))
	h := handler(f, console.Config{Engine: e, Keys: keys.New(db.Reader(), keys.SQLite, keys.Config{}), Authorize: role(console.Reader, "")})
	before := state(f, e)
	for _, path := range []string{"/", "/queue", "/message", "/bykey", "/layers", "/outboxes", "/keys", "/events", "/start", "/backends", "/jobs", "/job", "/log", "/edit", "/payload", "/style.css", "//start", "/start/../edit", "/x"} {
		for _, query := range []string{
			"", "queue=orders-dead&position=1&view=hex", "do=merge&queue=orders-dead&to=orders&why=x&new=yes&unsafe=yes&max=0", "id=1&do=cancel&why=x", "do=purge&queue=orders-dead&why=x",
			"do=hold&backend=bank&why=x&new=yes", "do=pause&queue=orders&why=x", "do=due&queue=orders-dead&why=x", "user=ann&key=%25&operation=\xff&finished=yes", "queue=orders-dead&position=1&to=orders&new=yes&payload=x&why=x", "queue=orders-dead&after=-1&since=1h&before=\xff", "%zz",
		} {
			f.Add("GET", path, query)
			f.Add("POST", path, query)
		}
	}
	for _, method := range []string{"PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"} {
		f.Add(method, "/start", "do=purge&queue=orders-dead&why=x")
	}
	f.Fuzz(func(t *testing.T, method, path, query string) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		r, err := http.NewRequestWithContext(ctx, method, "http://localhost/", strings.NewReader(query))
		if err != nil {
			t.Skip("no method")
		}
		r.URL = &url.URL{Path: path, RawQuery: query}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		w := &leaving{httptest.NewRecorder(), leave}
		h.ServeHTTP(w, r)
		if w.Code >= http.StatusInternalServerError {
			t.Errorf("%s %q %q: %d %s", method, path, query, w.Code, w.Body)
		}
		if after := state(t, e); after != before {
			t.Fatalf("%s %q %q has changed\n%s\nto\n%s", method, path, query, before, after)
		}
	})
}

// The pages of a queue of many dead letters: 5,000, in CI 100,000, and with WEIR_LONG=1 a
// million, also on PostgreSQL. They are made while the groups are counted.
func TestHandler_ManyDeadLetters(t *testing.T) {
	n := 5000
	if suite.Full() {
		n = 100_000
	}
	if suite.Long() {
		n = 1_000_000
	}
	t.Run("sqlite", func(t *testing.T) { manyDeadLetters(t, onSQLite(t), n) })
	open := asked["postgres"]
	if suite.Long() && open != nil {
		t.Run("postgres", func(t *testing.T) { manyDeadLetters(t, open(t), n) })
	}
}

func manyDeadLetters(t *testing.T, e store.Keeper, n int) {
	t.Helper()
	putDeadLetters(t, e, n)
	day(t, e, "orders")
	h := handler(t, console.Config{Engine: e})
	slower := time.Duration(1)
	if !suite.Long() {
		slower = 5 // machines of tests are busy
	}
	begun := time.Now()
	page(t, h, "/queue?queue=orders-dead")
	becomes(t, h, "/queue?queue=orders-dead", " failures in ")
	took := time.Since(begun)
	t.Logf("%d dead letters: the first groups after %v", n, took)
	require.LessOrEqual(t, took, 2*time.Second*slower)

	list, err := e.List(t.Context(), "orders-dead", store.Filter{}, store.Page{After: int64(n / 2), Max: 1})
	require.NoError(t, err)
	middle := list[0].Position
	begun = time.Now()
	_, err = e.List(t.Context(), "orders-dead", store.Filter{}, store.Page{After: middle, Max: 50})
	require.NoError(t, err)
	t.Logf("the engine lists a page in the middle in %v", time.Since(begun))
	const limit = 300 * time.Millisecond
	rounds := 5
	if suite.Full() {
		rounds = 20
	}
	for _, path := range []string{
		"/", "/layers", "/queue?queue=orders", "/queue?queue=orders-dead", "/queue?queue=orders-dead&cause=exhausted", "/queue?queue=orders-dead&provider=bank",
		"/queue?queue=orders-dead&since=1h", "/queue?queue=orders-dead&since=1s", "/start?do=merge&queue=orders-dead&since=1h",
		fmt.Sprintf("/queue?queue=orders-dead&after=%d", middle), fmt.Sprintf("/message?queue=orders-dead&position=%d", middle),
		"/start?do=merge&queue=orders-dead", "/start?do=purge&queue=orders-dead&provider=bank", "/start?do=hold&queue=orders-dead",
		"/start?do=cancel&queue=orders&key=customer-7", "/backends", "/outboxes", "/jobs", "/log",
	} {
		var all []time.Duration
		for range rounds {
			begun := time.Now()
			page(t, h, path)
			all = append(all, time.Since(begun))
		}
		slices.Sort(all)
		p95 := all[len(all)*95/100-1]
		t.Logf("%-50s %8v, p95 %8v, at most %8v", path, all[len(all)/2].Round(time.Millisecond), p95.Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
		require.LessOrEqual(t, p95, limit*slower, path)
	}
	text := page(t, h, "/start?do=merge&queue=orders-dead")
	require.Regexp(t, `Send ([1-9][\d,]* messages|all messages that match \(at least [1-9][\d,]*\)) back`, text)
	t.Log(regexp.MustCompile(`<p class="(headline|note)">.*</p>`).FindAllString(text, -1))
	begun = time.Now()
	page(t, h, "/bykey?queue=orders") // it waits for the first count
	t.Logf("the first counts by key after %v", time.Since(begun))
}

// putDeadLetters puts n dead letters in the queue orders-dead.
func putDeadLetters(t *testing.T, e store.Keeper, n int) {
	t.Helper()
	at := time.Now()
	for i := 0; i < n; i += 5000 {
		ms := make([]store.Message, 5000)
		for k := range ms {
			ms[k] = store.Message{
				Meta: message.Meta{
					ID: fmt.Sprintf("orders/0/%d", i+k), Key: fmt.Sprintf("customer-%d", k%100), Origin: message.Origin{Source: "orders"}, Visit: 3, Attempts: 9, FirstFailure: at, LastFailure: at,
					LastError: fmt.Sprintf("no answer of 10.0.0.%d:443", k%9), Reasons: []string{"UNAVAILABLE"}, Provider: "bank",
				},
				Payload: []byte(`{"amount":1250}`), Cause: store.Exhausted,
			}
		}
		require.NoError(t, e.Put(t.Context(), "orders-dead", ms...))
	}
}
