package tests

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// slowFilter is an engine that looks through a queue slowly if there is a filter.
type slowFilter struct{ *memory.Engine }

func (e slowFilter) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if f.Error != "" {
		if p.Until == 0 {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		select {
		case <-time.After(3 * time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return e.Engine.List(ctx, queue, f, p)
}

// A filter that few messages of a long queue match is searched in parts, instead of an
// error after ten seconds.
func TestQueuePage_FilterWithFewMatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := slowFilter{memory.Open()}
		ms := make([]store.Message, 25_000)
		for i := range ms {
			ms[i] = store.Message{Meta: message.Meta{ID: fmt.Sprint(i), LastError: "common"}}
		}
		ms[17_000].Meta.LastError = "rare"
		require.NoError(t, e.Put(t.Context(), "orders", ms...))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet})
		require.NoError(t, err)
		next := regexp.MustCompile(`href="([^"]+)" rel="next">Search on<`)
		path, pages, isFound := "/queue?queue=orders&error=rare", 0, false
		for path != "" {
			begun := time.Now()
			text := page(t, h, path)
			pages++
			assert.LessOrEqual(t, time.Since(begun), 9*time.Second)
			isFound = isFound || regexp.MustCompile(`>17000</a>`).MatchString(text)
			path = ""
			link := next.FindStringSubmatch(text)
			if link != nil {
				assert.Contains(t, text, "only a part of it was searched")
				path = html.UnescapeString(link[1])
			}
		}
		assert.True(t, isFound)
		assert.Greater(t, pages, 1)
		assert.Less(t, pages, 10)
		cancel()
	})
}

// searched counts the positions where messages of a time were looked for.
type searched struct {
	*memory.Engine
	positions atomic.Int64
}

func (e *searched) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if !f.Since.IsZero() {
		e.positions.Add(p.Until - p.After)
	}
	return e.Engine.List(ctx, queue, f, p)
}

// The messages of a time are found without reading the others of a long queue, both by the
// list and by the count of their groups. Regression: a page read all of a million dead
// letters.
func TestQueuePage_TimesOfALongQueue(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC))
	e := &searched{Engine: memory.Open(memory.WithClock(mock))}
	put := func(queue string, n int) {
		ms := make([]store.Message, n)
		for i := range ms {
			ms[i] = store.Message{Meta: message.Meta{ID: fmt.Sprint(mock.Now(), i), LastError: "refused"}, Cause: store.Permanent}
		}
		require.NoError(t, e.Put(t.Context(), queue, ms...))
	}
	put("orders-dead", 11_000)
	mock.Add(time.Hour)
	put("orders-dead", 30)
	mock.Add(time.Hour)
	put("orders-dead", 3000)
	h := handler(t, console.Config{Engine: e, Clock: mock})
	text := page(t, h, "/queue?queue=orders-dead&since=2026-01-02T04:30:00Z&before=2026-01-02T05:30:00Z")
	assert.Equal(t, 30, strings.Count(text, `data-l="Id"`))
	assert.Contains(t, text, "30 failures in 1 group")
	assert.LessOrEqual(t, e.positions.Load(), int64(12_000))
	text = page(t, h, "/start?do=merge&queue=orders-dead&since=2026-01-02T04:30:00Z&before=2026-01-02T05:30:00Z")
	assert.Contains(t, text, "Send 30 messages back")
}

// A field of a filter does not show hidden characters, or marks that change the direction
// of text.
func TestFilterFields_HiddenCharacters(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "1"}}))
	h := handler(t, console.Config{Engine: e})
	q := url.Values{"queue": {"orders"}}
	for _, name := range []string{"error", "reason", "key", "source", "provider", "id"} {
		q.Set(name, "\u202egnp.exe")
	}
	w := ask(h, "/queue?"+q.Encode(), nil)
	require.Equal(t, http.StatusOK, w.Code)
	assert.NotContains(t, w.Body.String(), "\u202e")
	q.Set("error", "plain")
	assert.Contains(t, page(t, h, "/queue?"+q.Encode()), `name="error" value="plain"`)
}
