package tests

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// The log shows the lines of a person, a queue or a message.
func TestLog_Filter(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		put(t, e, 5)
		j, err := jobs.New(e, jobs.Config{Logger: quiet})
		require.NoError(t, err)
		merge := func(by string, ids ...string) {
			job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "orders-dead", To: "orders", Filter: store.Filter{IDs: ids}, By: by, Why: "why of " + by})
			require.NoError(t, err)
			_, err = j.Run(t.Context(), job.ID, nil)
			require.NoError(t, err)
		}
		merge("Ann", "wrong")
		merge("bob", "orders/0/1", "orders/0/2")
		merge("<b>eve", "orders/0/3")
		_, err = j.PauseQueue(t.Context(), "orders", "ann", "they migrate")
		require.NoError(t, err)
		_, err = j.PauseQueue(t.Context(), "mails", "bob", "the same")
		require.NoError(t, err)
		_, err = j.HoldBackend(t.Context(), "bank", "bob", "it is slow")
		require.NoError(t, err)
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "")})
		lines := func(query string) int { return strings.Count(page(t, h, "/log?"+query), `data-l="Line"`) }
		assert.Equal(t, 9, lines(""))
		assert.Equal(t, 3, lines("who=ann"), "in any case")
		assert.Equal(t, 4, lines("who=bob"))
		assert.Equal(t, 7, lines("queue=orders"), "its dead letters as well")
		assert.Equal(t, 6, lines("queue=orders-dead"))
		assert.Equal(t, 1, lines("queue=mails"))
		assert.Equal(t, 2, lines("message=wrong"))
		assert.Equal(t, 2, lines("message=orders/0/2"))
		assert.Equal(t, 4, lines("message=orders/0/2&job=1"))
		assert.Equal(t, 2, lines("who=bob&queue=orders"))
		text := page(t, h, "/log?who="+url.QueryEscape("<b>EVE"))
		assert.Contains(t, text, "2 of 9 lines match, by &lt;b&gt;EVE")
		assert.Contains(t, text, "none changed or missing")
		assert.NotContains(t, text, "<b>")
		assert.Contains(t, page(t, h, "/log?who=nobody"), "No line matches.")
		assert.NotRegexp(t, "[\x00-\x08\x0b-\x1f\x7f\u202e]", page(t, h, "/log?"+url.Values{"who": {hostileKey}, "queue": {hostileKey}, "message": {hostileKey}}.Encode()))
		assert.Equal(t, http.StatusUnprocessableEntity, ask(h, "/log?job=x", nil).Code)
	})
}

// A message that was sent back shows who did it, when and why, also when it has failed
// again.
func TestMessagePage_WhoSentItBack(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		put(t, e, 2)
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		form := url.Values{"do": {"merge"}, "queue": {"orders-dead"}, "to": {"orders"}, "new": {"yes"}, "why": {"the <i>bank</i> is back"}, "id": {"wrong"}}
		require.Equal(t, http.StatusSeeOther, ask(h, "/start", form).Code)
		awaitEnd(t, e, 1)
		list, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 1})
		require.NoError(t, err)
		require.Equal(t, 1, list[0].Meta.MergeJob)
		again := list[0].Message
		again.Cause = store.Permanent
		require.NoError(t, e.Put(t.Context(), "orders-dead", again))
		for _, path := range []string{addressIn(t, e, "orders", "wrong"), addressIn(t, e, "orders-dead", "wrong")} {
			text := page(t, h, path)
			assert.Contains(t, text, "sent back from the dead letters 1 time")
			assert.Contains(t, text, `sent back by ann: the &lt;i&gt;bank&lt;/i&gt; is back (<a href="/job?id=1">job 1</a>)`)
			assert.Contains(t, text, `<a href="/log?job=1&amp;message=wrong">Actions on this message</a>`)
		}
		assert.Contains(t, page(t, h, "/log?job=1&message=wrong"), "the &lt;i&gt;bank&lt;/i&gt; is back")
	})
}

// The page does not show what the log does not prove: a header that a program has set, or
// a job of another database.
func TestMessagePage_WhoSentItBack_NotProved(t *testing.T) {
	e := memory.Open()
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "1", Merges: 1, MergeJob: 1, Headers: map[string]string{"Edited-From": "0"}}}))
	require.NoError(t, e.Put(t.Context(), "orders", store.Message{Meta: message.Meta{ID: "2", Merges: 1, MergeJob: 7}}))
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	_, err = j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "mails-dead", To: "mails", By: "bob", Why: "of mails"})
	require.NoError(t, err)
	h := handler(t, console.Config{Engine: e})
	for _, id := range []string{"1", "2"} {
		text := page(t, h, addressIn(t, e, "orders", id))
		assert.Contains(t, text, "sent back from the dead letters 1 time")
		assert.NotContains(t, text, "by bob")
		assert.NotContains(t, text, "made by a person")
	}
}

// logless is an engine whose log cannot be read.
type logless struct{ store.Keeper }

func (e logless) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	if kind == "log" {
		return nil, errors.New("connection <b>refused</b>")
	}
	return e.Keeper.Records(ctx, kind, after, limit)
}

// An engine that fails is not shown as a log that was changed.
func TestLog_Unreadable(t *testing.T) {
	e := memory.Open()
	h := handler(t, console.Config{Engine: e})
	assert.Contains(t, page(t, h, "/log"), "The log is empty.")
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	_, err = j.PauseQueue(t.Context(), "orders", "ann", "they migrate")
	require.NoError(t, err)
	text := page(t, handler(t, console.Config{Engine: logless{e}}), "/log")
	assert.Contains(t, text, "The log cannot be read: connection &lt;b&gt;refused&lt;/b&gt;")
	assert.NotContains(t, text, "Changed")
	assert.NotContains(t, text, "Intact")
	assert.NotContains(t, text, "The log is empty.")
	lines, err := e.Records(t.Context(), "log", "", 1)
	require.NoError(t, err)
	lines[0].Value = strings.ReplaceAll(lines[0].Value, "ann", "eve")
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error { return tx.Write(ctx, lines[0]) }))
	assert.Contains(t, page(t, handler(t, console.Config{Engine: e}), "/log"), "<strong>Changed</strong>")
}

// An empty log does not claim to be complete: a removed log looks the same.
func TestLog_Empty(t *testing.T) {
	text := page(t, handler(t, console.Config{Engine: memory.Open()}), "/log")
	assert.Contains(t, text, "The log is empty. Each job, pause and hold adds a line.")
	assert.NotContains(t, text, "Intact")
}
