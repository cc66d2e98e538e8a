package tests

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/weirflow/weir/message"
)

// counting is an engine in which reading all of a queue takes long, or fails.
type counting struct {
	*memory.Engine
	takes time.Duration // for each page of a queue that is read from end to end; 0 means an error
	bad   string        // the queue that cannot be counted
	slow  string        // the queue whose count hangs

	mu   sync.Mutex
	took time.Duration // by all such pages; guarded by mu
}

// read returns how long queues were read from end to end.
func (e *counting) read() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.took
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
	switch queue {
	case e.bad:
		return store.Counts{}, errIndex
	case e.slow:
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
		for i := range 100 {
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
			require.Equal(t, 2, strings.Count(html, "counting</td>"))
		}
		require.Contains(t, get("/"), "mails-dead cannot be counted: context deadline exceeded")
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
		require.Equal(t, 5*time.Second, time.Since(begun))
		require.Contains(t, html, "Cancel all messages of the key, at least 3 (more than can be counted in 5s)?")
		require.Contains(t, html, ">Cancel all</button>")
		require.NotContains(t, html, "bank 1")
		cancel()
	})
}
