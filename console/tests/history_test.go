package tests

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// records writes the history of a queue, a text such as [5,2,0,8,3,1] for each minute of
// an hour.
func records(tb testing.TB, e store.Keeper, queue string, hour time.Time, points ...string) {
	tb.Helper()
	r := store.Record{Kind: "history", Name: hour.UTC().Format("2006-01-02T15") + " " + queue, Value: `{"points":[` + strings.Join(points, ",") + `]}`}
	require.NoError(tb, e.Update(context.Background(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, r) }))
}

// day writes a history of 24 hours with a gap of two hours. In the last hour there are 43
// dead letters.
func day(tb testing.TB, e store.Keeper, queue string) {
	tb.Helper()
	now := time.Now()
	for hours := range 24 {
		if hours == 5 || hours == 6 {
			continue
		}
		var points []string
		for minute := range 60 {
			n := (24-hours)*60 + minute
			wave := int(200 * math.Sin(float64(n)/150))
			points = append(points, fmt.Sprintf("[%d,%d,%d,%d,%d,%d]", minute, 400+wave+n%37, min(max(0, n-1300), 80)*43/80, 900+wave+n%70, 860+wave+n%50, 100+n%60))
		}
		records(tb, e, queue, now.Add(-time.Duration(hours)*time.Hour), points...)
	}
}

// A queue's page has charts of its last 24 hours, whose lines are interrupted where no
// worker has reported. So does the page of its dead letters.
func TestQueuePage_History(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		mock := clock.NewMock()
		now := time.Date(2026, 3, 1, 15, 4, 5, 0, time.UTC)
		mock.Set(now)
		require.NoError(t, e.Put(t.Context(), "orders-dead", letter("a")))
		records(t, e, "orders", now.Add(-24*time.Hour), "[3,9000,9,9,9,9]", "[5,2000,3,60,50,7]") // the first is older
		records(t, e, "orders", now, "[0,-1,-1,5,5,0]", "[1,10,4,5,5,0]", "[2,1000,4,5,5,0]")
		h := handler(t, console.Config{Engine: e, Clock: mock})
		text := page(t, h, "/queue?queue=orders")
		assert.Contains(t, text, "Last 24 hours")
		assert.Contains(t, text, "At 15:02Z: 1,000 waiting (highest 2,000 at 15:05Z). No worker reported in 23 h of 24 h")
		assert.Contains(t, text, `<polyline class="" points="0,6.0 1,6.0"/><polyline class="" points="1436,97.5 1437,97.5 1438,52.0"/>`, "two parts; a minute that was not counted is no gap")
		assert.Contains(t, text, `<polyline class="failed"`)
		assert.Contains(t, text, ">Mar 1</text>")
		text = page(t, h, "/queue?queue=orders-dead")
		assert.Contains(t, text, "At 15:02Z: 4 dead letters (highest 4 at 15:01Z)")
		for _, path := range []string{"/queue?queue=other", "/queue?queue=orders&key=k"} {
			assert.NotContains(t, page(t, h, path), "Last 24 hours", path)
		}
	})
}

// A queue without changes has no gap: its workers write its last minutes together.
func TestQueuePage_HistoryOfAnIdleQueue(t *testing.T) {
	e := memory.Open()
	mock := clock.NewMock()
	now := time.Date(2026, 3, 1, 15, 6, 19, 0, time.UTC)
	mock.Set(now)
	for hours := range 25 {
		var points []string
		for minute := range 60 {
			if hours > 0 || minute < 1 { // 15:01 to 15:05 are not written yet
				points = append(points, fmt.Sprintf("[%d,1,1,0,0,0]", minute))
			}
		}
		records(t, e, "orders", now.Add(-time.Duration(hours)*time.Hour), points...)
	}
	h := handler(t, console.Config{Engine: e, Clock: mock})
	caption := func(path string) string {
		_, after, _ := strings.Cut(page(t, h, path), "<figcaption>")
		text, _, _ := strings.Cut(after, "</figcaption>")
		return text
	}
	assert.Contains(t, caption("/queue?queue=orders"), "At 15:00Z: 1 waiting (highest 1 at 15:07Z)<")
	assert.Contains(t, caption("/queue?queue=orders-dead"), "At 15:00Z: 1 dead letter (highest 1 at 15:07Z)<")
	mock.Add(10 * time.Minute)
	h = handler(t, console.Config{Engine: e, Clock: mock})
	assert.Contains(t, caption("/queue?queue=orders"), "No worker reported in 16 min of 24 h")
}

// The overview has the last hour of each queue in the engine's history, with gaps, even
// if this process has just begun.
func TestOverview_LastHour(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		now := time.Date(2026, 3, 1, 15, 4, 5, 0, time.UTC)
		mock := clock.NewMock()
		mock.Set(now)
		require.NoError(t, e.Put(t.Context(), "orders-dead", letter("a"), letter("b"), letter("c")))
		waits := store.Message{Meta: message.Meta{ID: "waits"}}
		require.NoError(t, e.Put(t.Context(), "orders-retry-1", waits))
		require.NoError(t, e.Put(t.Context(), "orders", waits))
		require.NoError(t, e.Put(t.Context(), "mails", waits))
		records(t, e, "orders", now.Add(-time.Hour), "[3,9000,9,9,9,9]", "[5,2000,1,60,50,7]", "[6,1000,1,60,50,7]") // the first is older
		records(t, e, "orders", now, "[0,-1,-1,5,5,0]", "[1,10,4,5,5,0]", "[2,1500,4,1240,5,0]", "[3,1500,4,2,1,0]") // one of several workers has written the last minute
		h := handler(t, console.Config{Engine: e, Clock: mock})
		text := page(t, h, "/")
		assert.Contains(t, text, "<th>Last hour</th><th>In, out a minute</th>")
		assert.Regexp(t, `>orders</a>.*\n.*<svg viewBox="0 0 60 100" [^>]*><polyline points="0,6.0 1,6.0 2,52.0"/><polyline points="56,97.5 57,97.5 58,29.0 59,29.0"/></svg> -500 in 58 min</td>`, text)
		assert.Contains(t, text, `1,240 in, 5 out</td>`)
		assert.Regexp(t, `>orders-retry-1</a>.*\n.*data-l="Last hour">–</td><td data-l="In, out a minute" class="none">–</td>`, text)
		assert.Regexp(t, `>mails</a>.*\n.*data-l="Last hour">–</td>`, text)
		assert.Regexp(t, `>orders-dead</a>.*\n.*\+2 in 59 min</td>`, text)
		assert.Contains(t, text, "orders-dead has 3 dead letters, 2 more than 59 min ago")
	})
}

// The last hour is read again after a while. Rates are not shown when they are old, and
// the last minutes of an idle queue are no gap.
func TestOverview_LastHourLater(t *testing.T) {
	now := time.Date(2026, 3, 1, 15, 4, 5, 0, time.UTC)
	mock := clock.NewMock()
	mock.Set(now)
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "waits"}}))
	h := handler(t, console.Config{Engine: e, Clock: mock})
	assert.NotContains(t, page(t, h, "/"), "1 in, 2 out")
	records(t, e, "orders", now, "[2,7,0,1,2,0]")
	mock.Add(20 * time.Second)
	becomes(t, h, "/", "1 in, 2 out</td>", `points="57,6.0 58,6.0"/></svg></td>`)
	mock.Add(3 * time.Minute)
	becomes(t, h, "/", `points="54,6.0 55,6.0"/></svg></td>`)
	assert.NotContains(t, page(t, h, "/"), "1 in, 2 out")
	says(t, e, jobs.Worker{ID: "w1", Host: "h", Seen: mock.Now(), Queues: []string{"orders"}, Reads: "orders"})
	mock.Add(20 * time.Second)
	becomes(t, h, "/", "0 in, 0 out</td>", "0 in 5 min</td>", `points="53,6.0 54,6.0 55,6.0 56,6.0 57,6.0 58,6.0 59,6.0"/>`)
}

// A page without messages says what they would be, or leads to them.
func TestQueuePage_Empty(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders-dead", letter("a")))
	h := handler(t, console.Config{Engine: e})
	assert.Contains(t, page(t, h, "/queue?queue=orders"), "No message waits. A message appears here when a program puts it")
	assert.Contains(t, page(t, h, "/queue?queue=others-dead"), "A message becomes a dead letter when it has failed for good.")
	assert.Contains(t, page(t, h, "/queue?queue=orders-dead&key=k"), `No message matches this filter. <a href="/queue?queue=orders-dead">Show all messages</a>`)
	assert.Contains(t, page(t, h, "/queue?queue=orders-dead&after=9"), `The messages end here. <a href="/queue?queue=orders-dead">To the first page</a>`)
}

// An engine without records of its own has no history. The page does not show any, even
// if another engine with the same queue does.
func TestQueuePage_HistoryOfAnEngineThatKeepsNothing(t *testing.T) {
	e := memory.Open()
	now := time.Now()
	records(t, e, "orders", now, fmt.Sprintf("[%d,1,1,1,1,1]", now.UTC().Minute()))
	h := handler(t, console.Config{Engine: struct{ store.Inspector }{e}})
	assert.NotContains(t, page(t, h, "/queue?queue=orders"), "Last 24 hours")
	assert.Contains(t, page(t, handler(t, console.Config{Engine: e}), "/queue?queue=orders"), "Last 24 hours")
	assert.Equal(t, 24*time.Hour, jobs.HistoryAge)
}
