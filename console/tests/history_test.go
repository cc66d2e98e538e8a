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
)

// records writes the history of a queue, a text such as [5,2,0,8,3,1] for each minute of
// an hour.
func records(tb testing.TB, e store.Keeper, queue string, hour time.Time, points ...string) {
	tb.Helper()
	r := store.Record{Kind: "history", Name: hour.UTC().Format("2006-01-02T15") + " " + queue, Value: `{"points":[` + strings.Join(points, ",") + `]}`}
	require.NoError(tb, e.Update(context.Background(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, r) }))
}

// day writes a history of 24 hours with a gap of two hours.
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
			points = append(points, fmt.Sprintf("[%d,%d,%d,%d,%d,%d]", minute, 400+wave+n%37, max(0, n-1300)*3, 900+wave+n%70, 860+wave+n%50, 100+n%60))
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
