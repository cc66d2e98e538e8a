package tests

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"testing"
	"testing/synctest"
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

// The page of a job that has sent a few messages back shows how each of them ends, and
// leads to the others.
func TestJobPage_TriedMessages(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		put(t, e, 20)
		h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
		form := url.Values{"do": {"merge"}, "queue": {"orders-dead"}, "cause": {"exhausted"}, "to": {"orders"}, "new": {"yes"}, "why": {"three"}, "max": {"3"}}
		require.Equal(t, http.StatusSeeOther, ask(h, "/start", form).Code)
		require.Equal(t, []string{"orders/0/0", "orders/0/1", "orders/0/2"}, awaitEnd(t, e, 1).Sent)
		text := page(t, h, "/job?id=1")
		assert.Len(t, regexp.MustCompile(`data-l="State">waiting<`).FindAllString(text, -1), 3)
		assert.NotContains(t, text, "no answer of", "an error from before the try")
		assert.Contains(t, text, ">Send the other 17</button>")
		assert.Contains(t, text, "<dt>cause</dt><dd>exhausted</dd>", "the filter")
		assert.Contains(t, text, "<dt>safe to repeat</dt><dd>17</dd>")
		assert.Contains(t, text, "At 10 a second, 17 messages take until ")
		assert.Contains(t, text, `name="why" required maxlength="1000" autocomplete="off" value="three"`)

		tried, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 3})
		require.NoError(t, err)
		_, err = e.Purge(t.Context(), "orders", store.Filter{IDs: []string{"orders/0/0", "orders/0/1"}})
		require.NoError(t, err)
		again := tried[1].Message
		again.Cause, again.Meta.LastError, again.Meta.LastFailure = store.Permanent, "<b>account</b> closed", time.Now().Add(time.Hour)
		require.NoError(t, e.Put(t.Context(), "orders-dead", again))
		text = page(t, h, "/job?id=1")
		assert.Contains(t, text, `data-l="Id">orders/0/0</td><td data-l="State">done, or removed<`)
		assert.Contains(t, text, `>orders/0/1</a></td><td data-l="State"><b class="bad">failed again</b></td><td data-l="Error">&lt;b&gt;account&lt;/b&gt; closed<`)
		assert.Contains(t, text, `>orders/0/2</a></td><td data-l="State">waiting<`)

		reader := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "bob")})
		text = page(t, reader, "/job?id=1")
		assert.Contains(t, text, "failed again")
		assert.NotContains(t, text, "<form method=\"post\"")

		// The page sends the others back, without another confirmation. The message that has
		// failed again is not among them.
		w := submitted(t, h, page(t, h, "/job?id=1"), "/start", url.Values{"why": {"the others"}, "rate": {""}})
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		job := awaitEnd(t, e, 3)
		require.Equal(t, []int{17, 17, 0}, []int{job.Total, job.Done, job.Max})
		require.Equal(t, "the others", job.Why)
		require.False(t, job.UnsafeToRepeat)
		require.True(t, job.LeaveLapsed)
	})
}

// The page of a job with tried messages counts the others by whether they are safe to
// repeat. Those that are in doubt, or to be looked at first, stay unless a person chooses
// otherwise.
func TestJobPage_OthersAreJudged(t *testing.T) {
	e := memory.Open()
	put(t, e, 20)
	lapsed := store.Message{Meta: message.Meta{ID: "lapsed"}, Cause: store.Lapsed}
	often := store.Message{Meta: message.Meta{ID: "often", Merges: jobs.DefaultMaxMerges}, Cause: store.Exhausted}
	require.NoError(t, e.Put(t.Context(), "orders-dead", lapsed, often))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	text := page(t, h, "/start?do=merge&queue=orders-dead")
	assert.Contains(t, text, ">Send back three, then wait for me</button>")
	w := submitted(t, h, text, "/start", url.Values{"to": {"orders"}, "new": {"yes"}, "why": {"three"}, "max": {"3"}})
	require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
	awaitEnd(t, e, 1)
	put := store.Message{Meta: message.Meta{ID: "later"}, Cause: store.Exhausted}
	require.NoError(t, e.Put(t.Context(), "orders-dead", put))
	text = page(t, h, "/job?id=1")
	for _, want := range []string{
		"The others: 22 messages", "<dt>safe to repeat</dt><dd>17</dd>", ", or longer</dt><dd>1</dd>", "<dt>fail again unless something has changed</dt><dd>1</dd>", "<dt>in doubt</dt><dd>1</dd>",
		"<dt>look first</dt><dd>1</dd>", "<dt>stay: sent back too often, or without bytes</dt><dd>1</dd>", `name="unsafe" value="yes"> also`, `name="lapsed" value="yes"> also`, ">Send the other 22</button>",
	} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, " checked")
	form := url.Values{"why": {"the others"}, "rate": {""}}
	require.Equal(t, http.StatusSeeOther, submitted(t, h, text, "/start", form).Code)
	job := awaitEnd(t, e, 3)
	require.Equal(t, jobs.Progress{Done: 19, Unsafe: 1, Lapsed: 1, Looping: 1}, job.Progress)

	reader := handler(t, console.Config{Engine: e, Authorize: role(console.Reader, "bob")})
	require.NotContains(t, page(t, reader, "/job?id=1"), "The others")
	require.Equal(t, http.StatusForbidden, submitted(t, reader, text, "/start", form).Code)
}

// The others of a job whose filter has no end are the messages that were there when it
// was started. Once they are sent, the page does not offer them any more.
func TestJobPage_OthersOfAFilterWithoutAnEnd(t *testing.T) {
	e := memory.Open()
	put(t, e, 20)
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	exhausted := store.Filter{Cause: store.Exhausted}
	job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "orders-dead", To: "orders", Filter: exhausted, Max: 3, By: "ann", Why: "three"})
	require.NoError(t, err)
	job, err = j.Run(t.Context(), job.ID, nil)
	require.NoError(t, err)
	left := job.Total - job.Done
	require.NoError(t, e.Put(t.Context(), "orders-dead", store.Message{Meta: message.Meta{ID: "later"}, Cause: store.Exhausted}))
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	text := page(t, h, "/job?id=1")
	require.Contains(t, text, fmt.Sprintf(">Send the other %d</button>", left))
	require.Equal(t, http.StatusSeeOther, submitted(t, h, text, "/start", url.Values{"why": {"the others"}, "rate": {""}}).Code)
	require.Equal(t, left, awaitEnd(t, e, 3).Done)
	require.NotContains(t, page(t, h, "/job?id=1"), "The others")
	rest, err := e.List(t.Context(), "orders-dead", exhausted, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, rest, 1, "the later one")
}

// Messages that stay do not count towards the most messages of a job.
func TestJobPage_ProgressOfMax(t *testing.T) {
	e := memory.Open()
	for _, id := range []string{"1", "2", "3", "4"} {
		often := store.Message{Meta: message.Meta{ID: id, Merges: jobs.DefaultMaxMerges}, Cause: store.Exhausted}
		require.NoError(t, e.Put(t.Context(), "orders-dead", often))
	}
	put(t, e, 20)
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	job, err := j.Start(t.Context(), jobs.Spec{
		Do: store.Merge, Queue: "orders-dead", To: "orders", Filter: store.Filter{Cause: store.Exhausted}, Max: 3, By: "ann", Why: "three",
	})
	require.NoError(t, err)
	job, err = j.Run(t.Context(), job.ID, nil)
	require.NoError(t, err)
	require.Positive(t, job.Looping)
	h := handler(t, console.Config{Engine: e, Authorize: role(console.Actor, "ann")})
	assert.Contains(t, page(t, h, "/job?id=1"), `<progress max="3" value="3"`)
}

// If the others are too many to count, the page has their number from the count of the job.
func TestJobPage_ManyOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &counting{Engine: memory.Open(), takes: 10 * time.Millisecond}
		putLong(t, e)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		h, err := console.Handler(ctx, console.Config{Engine: e, Logger: quiet, Authorize: role(console.Actor, "ann")})
		require.NoError(t, err)
		html := page(t, h, "/start?do=merge&queue=orders-dead")
		w := submitted(t, h, html, "/start", url.Values{"to": {"orders"}, "new": {"yes"}, "why": {"three"}, "max": {"3"}})
		require.Equal(t, http.StatusSeeOther, w.Code, w.Body)
		require.Equal(t, 20_000, awaitEnd(t, e, 1).Total)
		e.hang("orders-dead")
		text := page(t, h, "/job?id=1")
		for _, want := range []string{"The others: up to 19,997 messages", ">Send all others</button>", "<dt>looked at</dt><dd>the newest "} {
			assert.Contains(t, text, want)
		}
		cancel()
	})
}

// The page finds tried messages wherever they wait, and is not misled by other messages
// with their ids.
func TestJobPage_TriedMessagesElsewhere(t *testing.T) {
	e := memory.Open()
	put(t, e, 20)
	j, err := jobs.New(e, jobs.Config{Logger: quiet})
	require.NoError(t, err)
	run := func(spec jobs.Spec) {
		spec.By, spec.Why = "ann", "try"
		job, err := j.Start(t.Context(), spec)
		require.NoError(t, err)
		_, err = j.Run(t.Context(), job.ID, nil)
		require.NoError(t, err)
	}
	run(jobs.Spec{Do: store.Merge, Queue: "orders-dead", To: "orders", Filter: store.Filter{Cause: store.Exhausted}, Max: 4})
	sent, err := e.List(t.Context(), "orders", store.Filter{}, store.Page{Max: 10})
	require.NoError(t, err)
	require.Len(t, sent, 4)
	run(jobs.Spec{Do: store.Hold, Queue: "orders", Filter: store.Filter{IDs: []string{"orders/0/1"}}})
	_, err = e.Purge(t.Context(), "orders", store.Filter{IDs: []string{"orders/0/0", "orders/0/2", "orders/0/3"}})
	require.NoError(t, err)
	require.NoError(t, e.Put(t.Context(), "orders-retry-1", sent[0].Message))
	older, later := sent[2].Message, sent[3].Message
	older.Meta.MergeJob = 0
	later.Meta.MergeJob, later.Cause = 7, store.Permanent
	require.NoError(t, e.Put(t.Context(), "orders-dead", older, later))
	text := page(t, handler(t, console.Config{Engine: e}), "/job?id=1")
	assert.Regexp(t, `<a href="/message\?position=\d+&amp;queue=orders-retry-1">orders/0/0</a></td><td data-l="State">waiting<`, text)
	assert.Contains(t, text, `>orders/0/1</a></td><td data-l="State">held<`)
	assert.Contains(t, text, `data-l="Id">orders/0/2</td><td data-l="State">done, or removed<`)
	assert.Contains(t, text, `>orders/0/3</a></td><td data-l="State">sent back again by job 7<`)
}

// idless is an engine that reads a whole queue to find an id, and is slow.
type idless struct{ store.Keeper }

func (e idless) List(ctx context.Context, queue string, f store.Filter, p store.Page) ([]store.Entry, error) {
	if len(f.IDs) > 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return e.Keeper.List(ctx, queue, f, p)
}

// A job can be paused and cancelled although its messages are not found in time.
// Regression: the page was an error after 10 s.
func TestJobPage_TriedMessagesOfLongQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := memory.Open()
		put(t, e, 20)
		j, err := jobs.New(e, jobs.Config{Logger: quiet})
		require.NoError(t, err)
		_, err = j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "orders-dead", To: "orders", Filter: store.Filter{Cause: store.Exhausted}, Max: 3, Rate: 1, By: "ann", Why: "three"})
		require.NoError(t, err)
		ctx, end := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer end()
		_, err = j.Run(ctx, 1, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = j.Pause(t.Context(), 1, "ann", "so that it does not run in the test")
		require.NoError(t, err)
		life, stop := context.WithCancel(t.Context())
		defer stop()
		h, err := console.Handler(life, console.Config{Engine: idless{e}, Logger: quiet, Authorize: role(console.Actor, "ann")})
		require.NoError(t, err)
		begun := time.Now()
		text := page(t, h, "/job?id=1")
		require.Less(t, time.Since(begun), 5*time.Second)
		assert.Contains(t, text, "paused: 1 of 3 done")
		assert.Contains(t, text, "Cancel: what is done stays")
		assert.Contains(t, text, "The messages that were sent back could not be found in time.")
	})
}

// The page of a job that runs shows when it ends, and changes its rate.
func TestJobPage_Rate(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Date(2026, 1, 2, 4, 30, 0, 0, time.UTC))
	e := memory.Open(memory.WithClock(mock))
	put(t, e, 100)
	j, err := jobs.New(e, jobs.Config{Logger: quiet, Clock: mock})
	require.NoError(t, err)
	_, err = j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "orders-dead", To: "orders", Filter: store.Filter{Cause: store.Exhausted}, Rate: 0.5, By: "ann", Why: "slowly"})
	require.NoError(t, err)
	h := handler(t, console.Config{Engine: e, Clock: mock, Authorize: role(console.Reader, "bob")})
	text := page(t, h, "/job?id=1")
	assert.Contains(t, text, "running: 0 of 100 done, at 0.5 a second until <time datetime=\"2026-01-02T04:33:20Z\">2026-01-02 04:33:20Z</time>")
	assert.NotContains(t, text, "Change the rate")
	change := url.Values{"id": {"1"}, "do": {"rate"}, "rate": {"1"}, "why": {"quicker"}}
	require.Equal(t, http.StatusForbidden, ask(h, "/job", change).Code)

	_, err = j.Pause(t.Context(), 1, "ann", "so that it does not run in the test")
	require.NoError(t, err)
	h = handler(t, console.Config{Engine: e, Clock: mock, Authorize: role(console.Actor, "ann")})
	text = page(t, h, "/job?id=1")
	assert.Contains(t, text, "Change the rate")
	assert.NotContains(t, text, "until <time", "a paused job does not end")
	change.Set("rate", "-1")
	require.Equal(t, http.StatusUnprocessableEntity, ask(h, "/job", change).Code)
	for _, do := range []string{"pause", "rate"} { // with the rate that the form shows
		form := url.Values{"id": {"1"}, "do": {do}, "rate": {"0.5"}, "why": {"as it is"}}
		require.Equal(t, http.StatusSeeOther, ask(h, "/job", form).Code, do)
	}
	for _, rate := range []string{"NaN", "+Inf", "fast"} {
		change.Set("rate", rate)
		require.Equal(t, http.StatusUnprocessableEntity, ask(h, "/job", change).Code, rate)
	}
	change.Set("rate", "2500000")
	require.Equal(t, http.StatusSeeOther, ask(h, "/job", change).Code)
	text = page(t, h, "/job?id=1")
	assert.Contains(t, text, `name="rate" value="2500000"`)
	assert.Contains(t, text, ", 2500000 a second<")
	change.Set("rate", "7")
	require.Equal(t, http.StatusSeeOther, ask(h, "/job", change).Code)
	job, err := j.Get(t.Context(), 1)
	require.NoError(t, err)
	require.InDelta(t, 7, job.Rate, 0)
	assert.Contains(t, page(t, h, "/log"), "quicker")
}
