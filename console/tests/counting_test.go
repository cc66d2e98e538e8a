package tests

import (
	"context"
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// counting is an engine in which reading all of a queue takes long, or fails.
type counting struct {
	*memory.Engine
	takes time.Duration // for each page of a queue that is read from end to end; 0 means an error
	bad   string        // the queue that cannot be counted
	slow  string        // the queue whose count hangs; guarded by mu once it is in use

	mu   sync.Mutex
	took time.Duration // by all such pages; guarded by mu
}

// read returns how long queues were read from end to end.
func (e *counting) read() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.took
}

// hang makes the count of a queue hang from now on.
func (e *counting) hang(queue string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slow = queue
}

var errIndex = errors.New("the index is damaged")

func (e *counting) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if p.Until != 0 {
		if e.takes == 0 {
			return nil, errIndex
		}
		select {
		case <-time.After(e.takes):
			e.mu.Lock()
			e.took += e.takes
			e.mu.Unlock()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return e.Engine.List(ctx, queue, f, p)
}

func (e *counting) Count(ctx context.Context, queue string, f store.Filter) (store.Counts, error) {
	e.mu.Lock()
	slow := e.slow
	e.mu.Unlock()
	switch queue {
	case e.bad:
		return store.Counts{}, errIndex
	case slow:
		<-ctx.Done()
		return store.Counts{}, ctx.Err()
	}
	return e.Engine.Count(ctx, queue, f)
}

// during runs f with a console of an engine, in virtual time.
func during(t *testing.T, e *counting, f func(t *testing.T, get func(path string) string)) {
	synctest.Test(t, func(t *testing.T) {
		e.Engine = memory.Open()
		put(t, e, 3)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet})
		require.NoError(t, err)
		f(t, func(path string) string { return page(t, h, path) })
	})
}

// Dead letters whose groups cannot be counted are shown without groups.
func TestGroupsThatCannotBeCounted(t *testing.T) {
	during(t, &counting{}, func(t *testing.T, get func(string) string) {
		for range 3 {
			html := get("/queue?queue=orders-dead")
			require.Contains(t, html, "The groups cannot be counted: the index is damaged")
			require.Contains(t, html, "no airport")
			require.NotContains(t, html, "being counted")
			time.Sleep(time.Hour)
		}
	})
}

// The groups of the newest messages of a long queue are shown first, and then the
// progress of the others. Meanwhile its messages are shown, and so are the groups of
// another filter.
func TestGroups_LongQueue(t *testing.T) {
	e := &counting{takes: 5 * time.Second}
	during(t, e, func(t *testing.T, get func(string) string) {
		ms := make([]store.Message, 20_000)
		for i := range ms {
			ms[i] = store.Message{Meta: message.Meta{ID: fmt.Sprint("x", i), Key: "customer 7", LastError: fmt.Sprint("account ", i/10_000, " is gone")}, Cause: store.Exhausted}
		}
		require.NoError(t, e.Put(t.Context(), "orders-dead", ms...))
		html := get("/queue?queue=orders-dead")
		require.Contains(t, html, "The groups are being counted", "a page of 1,000 takes longer than people wait")
		require.Contains(t, html, "no airport")
		time.Sleep(4 * time.Second)
		html = get("/queue?queue=orders-dead")
		require.Contains(t, html, "The newest 1,000 failures in 1 group")
		require.Contains(t, html, "All of the newest 1,000 failed alike")
		require.Contains(t, html, "account 1: 1,000 of 1,000")
		require.Contains(t, html, "The older ones are being counted: 4 % are done.")
		require.Contains(t, html, ">at least 6 s ago</td>", "older messages may be of the group")

		get("/queue?queue=orders-dead&provider=bank")
		time.Sleep(5 * time.Second)
		require.Contains(t, get("/queue?queue=orders-dead&provider=bank"), "None of the newest messages match.", "it does not wait for the rest of the other")

		time.Sleep(10 * time.Minute)
		require.Regexp(t, `The older ones are being counted: [1-9]\d % are done`, get("/queue?queue=orders-dead"))
		time.Sleep(time.Hour)
		html = get("/queue?queue=orders-dead")
		require.Contains(t, html, "20,006 failures in")
		require.Contains(t, html, "account 0: 10,000 of 20,000")
		require.Contains(t, html, "key customer 7: 20,000 of 20,000")
	})
}

// The page of a group has its number from the count of all groups. It does not claim that
// the messages failed alike, since the filter has chosen them so.
func TestGroups_PageOfAGroup(t *testing.T) {
	e := &counting{takes: time.Second}
	during(t, e, func(t *testing.T, get func(string) string) {
		ms := make([]store.Message, 3000)
		for i := range ms {
			ms[i] = store.Message{Meta: message.Meta{ID: fmt.Sprint("x", i), LastError: fmt.Sprintf(`POST /v1/pay: 503 of "bank": request %d`, i)}, Cause: store.Exhausted}
		}
		require.NoError(t, e.Put(t.Context(), "orders-dead", ms...))
		for !strings.Contains(get("/queue?queue=orders-dead"), ">3,006 failures in groups") {
			time.Sleep(10 * time.Second)
		}
		text := get("/queue?queue=orders-dead")
		require.Contains(t, text, "POST /v1/pay: 503 of &#34;bank&#34;: request #</a>", "words that are the same in all errors")
		path := text[:strings.Index(text, "\">POST /v1/pay")]
		path = html.UnescapeString(path[strings.LastIndex(path, "\"")+1:])
		text = get(path)
		require.Contains(t, text, ">3,000 failures in 1 group", "a new count would begin with 1,000")
		require.NotContains(t, text, "failed alike")
		e.hang("orders-dead")
		path = strings.Replace(path, "/queue?", "/start?do=merge&", 1)
		require.Contains(t, get(path), "all messages that match (at least 3,000) back")
		require.Contains(t, get(path+"&before=2000-06-01"), "all messages that match (at least 3,000) back", "as behind a job that tried three")
		require.NotContains(t, get(path+"&before=2000-01-01"), "3,000", "it leaves out messages that arrived later")
	})
}

// The page of an id has its message, and does not search for groups.
func TestGroups_PageOfAnID(t *testing.T) {
	during(t, &counting{takes: time.Millisecond}, func(t *testing.T, get func(string) string) {
		require.Contains(t, get("/queue?queue=orders-dead&key=customer-7"), "3 failures in 1 group")
		html := get("/queue?queue=orders-dead&id=wrong")
		require.Contains(t, html, "no airport")
		require.NotContains(t, html, "failure in")
		require.NotContains(t, html, "being counted")
	})
}

// Pages of the same time before now share their groups, although it has moved on.
func TestGroups_TimeBeforeNow(t *testing.T) {
	e := &counting{takes: 100 * time.Millisecond}
	during(t, e, func(t *testing.T, get func(string) string) {
		time.Sleep(2 * time.Minute)
		get("/queue?queue=orders-dead&since=90m")
		before := e.read()
		time.Sleep(time.Second)
		require.Contains(t, get("/queue?queue=orders-dead&since=90m"), "6 failures in")
		require.Equal(t, before+e.takes, e.read(), "for the list of messages")
	})
}

// The reads of whole queues take at most a tenth of the time, whatever people look at.
func TestGroups_ShareOfTheTime(t *testing.T) {
	e := &counting{takes: time.Second}
	during(t, e, func(t *testing.T, get func(string) string) {
		ms := make([]store.Message, 20_000)
		for i := range ms {
			ms[i] = store.Message{Meta: message.Meta{ID: fmt.Sprint("x", i), LastError: "gone"}, Cause: store.Exhausted}
		}
		require.NoError(t, e.Put(t.Context(), "orders-dead", ms...))
		begun := time.Now()
		looks := 60
		if suite.Full() {
			looks = 100
		}
		for i := range looks {
			get("/queue?queue=orders-dead")
			if i < 20 {
				get(fmt.Sprint("/queue?queue=orders-dead&provider=", i))
			}
			time.Sleep(20 * time.Second)
		}
		elapsed := time.Since(begun)
		require.LessOrEqual(t, e.read(), elapsed/10+time.Minute)
		require.Greater(t, e.read(), elapsed/20)
	})
}

// Another console shows the groups that one has counted, at once.
func TestGroups_KeptInTheEngine(t *testing.T) {
	e := &counting{takes: time.Second}
	during(t, e, func(t *testing.T, get func(string) string) {
		ms := make([]store.Message, 20_000)
		for i := range ms {
			ms[i] = store.Message{Meta: message.Meta{ID: fmt.Sprint("x", i), LastError: "gone"}, Cause: store.Exhausted}
		}
		require.NoError(t, e.Put(t.Context(), "orders-dead", ms...))
		for !strings.Contains(get("/queue?queue=orders-dead"), "20,006 failures in") {
			time.Sleep(10 * time.Second)
		}
		before := e.read()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet})
		require.NoError(t, err)
		html := page(t, h, "/queue?queue=orders-dead")
		require.Contains(t, html, "20,006 failures in")
		require.Contains(t, html, "20,000 of 20,006 failed alike")
		require.Contains(t, html, "There are 20,006 messages now; the newest arrived ")
		require.Regexp(t, `Counted at <time [^>]+>[^<]+</time>, \d+ [a-z]+ ago\.`, html)
		time.Sleep(20 * time.Second)
		page(t, h, "/queue?queue=orders-dead")
		time.Sleep(time.Second)
		require.Equal(t, before, e.read(), "it was not counted again")
	})
}

// The groups that the engine keeps are not shown when the queue has become empty, has only
// newer messages, or has changed by more than a tenth. Then the engine does not keep them
// any longer either. They are shown with their age if the queue has changed less.
func TestGroups_KeptOfAQueueThatHasChanged(t *testing.T) {
	for _, tt := range []struct {
		name                string
		before, sent, after int // messages at the count, those sent back since, and new ones
		shows               string
	}{
		{"empty", 100, 100, 0, ""},
		{"newer messages alone", 100, 100, 3, "3 failures in"},
		{"many were sent back", 100, 50, 0, "50 failures in"},
		{"many have arrived", 100, 0, 20, "120 failures in"},
		{"little has changed", 100, 5, 2, "There are 97 messages now; the newest arrived 0 s ago."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := memory.Open()
				put := func(n int, text string) {
					for i := range n {
						m := store.Message{Meta: message.Meta{ID: fmt.Sprint(text, i), LastError: text}, Cause: store.Permanent}
						require.NoError(t, e.Put(t.Context(), "orders-dead", m))
					}
				}
				put(tt.before, "the old failure")
				j, err := jobs.New(e, jobs.Config{Logger: quiet})
				require.NoError(t, err)
				group := jobs.Group{Cause: store.Permanent, Error: "the kept failure", Count: tt.before, First: time.Now(), Last: time.Now()}
				require.NoError(t, j.KeepGroups(t.Context(), "orders-dead", jobs.GroupReport{Took: 10 * time.Hour, Messages: tt.before, Groups: []jobs.Group{group}}))
				time.Sleep(9 * time.Hour)
				taken, err := e.Take(t.Context(), "orders-dead", max(1, tt.sent), time.Hour)
				require.NoError(t, err)
				for _, l := range taken[:tt.sent] {
					require.NoError(t, e.Done(t.Context(), l.Lease))
				}
				put(tt.after, "the new failure")

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet})
				require.NoError(t, err)
				html := page(t, h, "/queue?queue=orders-dead")
				require.Contains(t, html, tt.shows)
				isShown := tt.name == "little has changed"
				require.Equal(t, isShown, strings.Contains(html, "the kept failure"))
				_, isKept, err := j.KeptGroups(t.Context(), "orders-dead")
				require.NoError(t, err)
				require.Equal(t, isShown, isKept)
			})
		})
	}
}

// A queue that cannot be counted in a second shows the groups that the engine keeps, with
// their age.
func TestGroups_KeptOfAQueueThatTakesLongToCount(t *testing.T) {
	e := &counting{slow: "orders-dead"}
	during(t, e, func(t *testing.T, get func(string) string) {
		j, err := jobs.New(e, jobs.Config{Logger: quiet})
		require.NoError(t, err)
		require.NoError(t, j.KeepGroups(t.Context(), "orders-dead", jobs.GroupReport{
			Took: 10 * time.Hour, Messages: 9_000_000, Groups: []jobs.Group{{Error: "the kept failure", Count: 9_000_000}},
		}))
		time.Sleep(time.Hour)
		html := get("/queue?queue=orders-dead")
		require.Contains(t, html, "the kept failure")
		require.Regexp(t, `Counted at <time [^>]+>[^<]+</time>, 1 h ago\.`, html)
		require.NotContains(t, html, "messages now")
	})
}

// A queue that cannot be counted does not hide the others.
func TestCounting_QueueThatCannotBeCounted(t *testing.T) {
	e := &counting{bad: "bills-dead", slow: "mails-dead"}
	during(t, e, func(t *testing.T, get func(string) string) {
		for _, queue := range []string{"bills-dead", "mails-dead"} {
			require.NoError(t, e.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: "a"}, Cause: store.Exhausted}))
		}
		for range 2 { // a page shows the previous counts, and the first count gets only as far as the queue that hangs
			get("/")
			time.Sleep(20 * time.Second)
		}
		for range 20 {
			time.Sleep(20 * time.Second)
			html := get("/")
			require.Contains(t, html, "orders-dead has 6 dead letters")
			require.Contains(t, html, "bills-dead cannot be counted: the index is damaged")
			require.NotContains(t, html, "bills-dead has dead letters. They are being counted.")
			require.Equal(t, 2, strings.Count(html, "counting</td>"))
		}
		require.Contains(t, get("/"), "mails-dead cannot be counted: context deadline exceeded")
	})
}

// The overview names dead letters that have not been counted yet, and the queues and
// layers that have no worker.
func TestOverview_FirstCount(t *testing.T) {
	e := &counting{slow: "orders-dead"}
	during(t, e, func(t *testing.T, get func(string) string) {
		html := get("/")
		require.Contains(t, html, "orders-dead has dead letters. They are being counted.")
		require.Contains(t, html, "0 are dead letters, and 1 queue is still being counted.")

		for _, queue := range []string{"bills", "bills-retry-1"} {
			require.NoError(t, e.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: "a"}}))
		}
		time.Sleep(time.Hour)
		get("/")
		time.Sleep(time.Minute)
		html = get("/")
		require.Contains(t, html, "No worker reports that it reads bills, where 1 message waits.")
		require.Contains(t, html, "No worker reports that it reads bills, whose layer bills-retry-1 has 1 message.")
	})
}

// The page before a cancel does not wait for the count of a long queue, and counts the
// messages that a cancel removes: all of the key.
func TestConfirmCancel_QueueThatTakesLongToCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &counting{Engine: memory.Open(), slow: "orders-dead"}
		for i := range 3 {
			m := ofKey("customer 7", 1)[0]
			m.Meta.ID, m.Meta.Provider = fmt.Sprint("of 7, ", i), fmt.Sprint("bank ", i)
			require.NoError(t, e.Put(t.Context(), "orders", m))
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet, Authorize: role(console.Actor, "ann")})
		require.NoError(t, err)
		begun := time.Now()
		html := page(t, h, "/start?do=cancel&queue=orders&key=customer+7&provider=bank+1")
		require.Equal(t, 150*time.Millisecond, time.Since(begun))
		require.Contains(t, html, "Cancel all messages of the key (at least 3)?")
		require.Contains(t, html, ">Cancel all</button>")
		require.NotContains(t, html, "bank 1")
		cancel()
	})
}

// putLong puts 20,000 dead letters of which the oldest has a key of its own, and each of
// the first and the last eight is in doubt.
func putLong(t *testing.T, e *counting) {
	t.Helper()
	ms := make([]store.Message, 20_000)
	for i := range ms {
		ms[i] = store.Message{Meta: message.Meta{ID: fmt.Sprint("x", i), LastError: "gone", UnsafeToRepeat: i < 8 || i >= len(ms)-8}, Cause: store.Exhausted}
	}
	ms[0].Meta.Key = "rare"
	require.NoError(t, e.Put(t.Context(), "orders-dead", ms...))
}

// The page before an action on a long queue does not wait for its count: it has a lower
// bound. It names the newest messages that are in doubt. The job judges every message.
func TestConfirm_QueueThatTakesLongToCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &counting{Engine: memory.Open(), slow: "orders-dead", takes: 10 * time.Millisecond}
		putLong(t, e)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet, Authorize: role(console.Actor, "ann")})
		require.NoError(t, err)
		page(t, h, "/") // the first look waits for the count
		for path, want := range map[string][]string{
			"do=merge":   {"Send all messages that match (at least 10,000) back", "Of the 10,000 that were looked at, 8 may have taken effect already.", "Only the newest 10,000 were looked at. The job looks at each message", `name="unsafe"`, `name="lapsed"`, ">Send back all</button>"},
			"do=purge":   {"Remove all messages that match (at least 10,000) for good?", "Of the 10,000 that were looked at, 8 may have taken effect already.", "The older ones may have taken effect, too."},
			"do=hold":    {"Hold all messages that match (at least 10,000)?", ">Hold all</button>"},
			"do=due":     {"Let all messages that match (at least 10,000) run now?"},
			"do=release": {"Release the held messages of all messages that match (at least 10,000)?"},

			// few messages match, so that all of the queue is searched
			"do=merge&key=rare": {"Send 1 message back", "Of these, 1 may have taken effect already.", ">Send back all 1</button>"},
		} {
			begun := time.Now()
			html := page(t, h, "/start?queue=orders-dead&"+path)
			require.LessOrEqual(t, time.Since(begun), 200*time.Millisecond, path)
			for _, w := range want {
				require.Contains(t, html, w, path)
			}
		}

		html := page(t, h, "/start?do=merge&queue=orders-dead&to=orders")
		time.Sleep(time.Second)
		e.hang("")
		require.NoError(t, e.Put(t.Context(), "orders-dead", store.Message{Meta: message.Meta{ID: "later"}, Cause: store.Exhausted}))
		w := submitted(t, h, html, "/start", url.Values{"to": {"orders"}, "new": {"yes"}, "why": {"test"}, "max": {"0"}})
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		job := awaitEnd(t, e, 1)
		require.Equal(t, []int{19_984, 16}, []int{job.Done, job.Unsafe}, "the message that has arrived later stays, too")
		cancel()
	})
}

// The page before an action on a long queue has its last count, with its age.
func TestConfirm_LastCount(t *testing.T) {
	e := &counting{takes: 20 * time.Millisecond}
	during(t, e, func(t *testing.T, get func(string) string) {
		putLong(t, e)
		get("/")
		time.Sleep(time.Minute)
		e.hang("orders-dead")
		begun := time.Now()
		html := get("/start?do=merge&queue=orders-dead")
		require.LessOrEqual(t, time.Since(begun), 200*time.Millisecond)
		require.Contains(t, html, "Send 20,006 messages back")
		require.Regexp(t, `Counted at <time [^>]+>[^<]+</time>, 1 min ago\. The action is for the messages that are there now\.`, html)
		require.Contains(t, html, "Of the 6,000 that were looked at, 8 may have taken effect already.")
		require.Contains(t, get("/start?do=merge&queue=orders-dead&provider=bank"), "(at least 3)", "the count of the queue is not the number of messages that match")
	})
}

// The page before an action on a queue that takes long to count has the number of
// messages whose groups were counted, with its age.
func TestConfirm_CountOfGroups(t *testing.T) {
	e := &counting{takes: 20 * time.Millisecond}
	during(t, e, func(t *testing.T, get func(string) string) {
		putLong(t, e)
		e.hang("orders-dead")
		require.Contains(t, get("/start?do=merge&queue=orders-dead"), "(at least 5,000)")
		require.Contains(t, get("/queue?queue=orders-dead"), "The newest 10,000 failures")
		html := get("/start?do=merge&queue=orders-dead")
		require.Contains(t, html, "Send all messages that match (at least 10,000) back")
		require.Regexp(t, `Counted at <time [^>]+>[^<]+</time>, 0 s ago\.`, html)
		require.Contains(t, html, "Only the newest 8,000 were looked at.")
		require.Contains(t, get("/start?do=merge&queue=orders-dead&provider=bank"), "(at least 3)", "the groups of another filter")
		time.Sleep(time.Hour)
		require.Contains(t, get("/start?do=merge&queue=orders-dead"), "Send 20,006 messages back")
	})
}

// A page shows a new count and judges each message if the queue is short, or is counted in
// time.
func TestConfirm_QueueThatIsCountedInTime(t *testing.T) {
	during(t, &counting{takes: 20 * time.Millisecond}, func(t *testing.T, get func(string) string) {
		html := get("/start?do=merge&queue=orders-dead")
		require.Contains(t, html, "Send 6 messages back")
		require.Contains(t, html, "Of these, 1 may have taken effect already.")
		require.NotContains(t, html, "Counted at")
		require.NotContains(t, html, "looked at")
		require.Contains(t, get("/start?do=merge&queue=orders-dead&key=other"), "Nothing matches.")
		require.Contains(t, get("/start?do=hold&queue=orders-dead"), "Hold 6 messages?")
	})
}

// The engine does not answer in time: the page has the form, and says that the first
// message was not found.
func TestConfirm_EngineThatDoesNotAnswer(t *testing.T) {
	during(t, &counting{slow: "orders-dead", takes: time.Hour}, func(t *testing.T, get func(string) string) {
		require.Contains(t, get("/start?do=hold&queue=orders-dead"), "Hold all messages that match (at least 0: the first was not found in 5s)?")
	})
}
