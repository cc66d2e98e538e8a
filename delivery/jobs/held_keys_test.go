package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/golden"
	"github.com/weirflow/weir/message"
)

// holding are the jobs of an engine whose queues orders and mails have messages. The
// engine's time is golden.At.
func holding(t *testing.T) (*memory.Engine, *jobs.Jobs) {
	t.Helper()
	mock := clock.NewMock()
	mock.Set(golden.At)
	e := memory.Open(memory.WithClock(mock))
	for _, queue := range []string{"orders", "mails-retry-1"} {
		require.NoError(t, e.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: "1"}}))
	}
	j, err := jobs.New(e, jobs.Config{Clock: mock})
	require.NoError(t, err)
	return e, j
}

// Each order is in the log, and the log stays whole.
func TestJobs_HoldKey(t *testing.T) {
	_, j := holding(t)
	held, err := j.HoldKey(t.Context(), "orders", "ann's", "ann", "their server is moved")
	require.NoError(t, err)
	require.Equal(t, jobs.KeyOrder{Queue: "orders", Key: "ann's", Event: "hold", Held: true, By: "ann", Why: "their server is moved", At: golden.At}, held)
	_, err = j.HoldKey(t.Context(), "orders", "ann's", "bob", "it takes longer")
	require.ErrorIs(t, err, fs.ErrExist)
	require.EqualError(t, err, `jobs: key "ann's" of queue "orders" is held already, by ann since `+golden.At.Format(time.RFC3339)+": their server is moved")
	_, err = j.HoldKey(t.Context(), "mails", "ann's", "bob", "the same")
	require.NoError(t, err, "another queue")
	_, err = j.HoldKey(t.Context(), "orders", "7\x00", "bob", "the same")
	require.NoError(t, err)
	list, err := j.HeldKeys(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, []string{"mails", "orders", "orders"}, []string{list[0].Queue, list[1].Queue, list[2].Queue})
	require.Equal(t, "7\x00", list[1].Key)
	require.Equal(t, "ann", list[2].By)

	_, err = j.ResumeKey(t.Context(), "orders", "ann's", "ann", "done")
	require.NoError(t, err)
	_, err = j.ResumeKey(t.Context(), "orders", "ann's", "ann", "done")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.EqualError(t, err, `jobs: key "ann's" of queue "orders" is not held`)
	list, err = j.HeldKeys(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2)

	events := ""
	for line, err := range j.Log(t.Context()) {
		require.NoError(t, err)
		require.Nil(t, line.Queue)
		require.Zero(t, line.Job.ID)
		events += fmt.Sprintf("%s %s %q %s; ", line.Event, line.Key.Queue, line.Key.Key, line.By)
	}
	require.Equal(t, `hold orders "ann's" ann; hold mails "ann's" bob; hold orders "7\x00" bob; resume orders "ann's" ann; `, events)
}

// withoutKeys is an engine that cannot take by key, such as JetStream.
type withoutKeys struct{ store.Keeper }

func TestJobs_HoldKey_Refused(t *testing.T) {
	e, j := holding(t)
	for _, bad := range []struct{ queue, key, by, why, want string }{
		{"orders-retry-1", "k", "ann", "x", `queue "orders-retry-1" belongs to queue "orders"`},
		{"orders-dead", "k", "ann", "x", `queue "orders-dead" belongs to queue "orders"`},
		{"order", "k", "ann", "x", `queue "order" is unknown: neither messages nor workers belong to it`},
		{"", "k", "ann", "x", "no name"},
		{"orders", "", "ann", "x", `which key of queue "orders"?`},
		{"orders", "\xff", "ann", "x", "must be UTF-8"},
		{"orders", strings.Repeat("k", 1025), "ann", "x", "1025 bytes, at most 1024 are allowed"},
		{"orders", "k", "", "x", `who wants to hold key "k" of queue "orders", and why?`},
		{"orders", "k", "ann", "", "and why?"},
		{"orders", "k", "ann", "\xff", "both must be UTF-8"},
	} {
		_, err := j.HoldKey(t.Context(), bad.queue, bad.key, bad.by, bad.why)
		require.ErrorContains(t, err, bad.want)
	}
	for _, bad := range []struct{ key, by string }{{"", "ann"}, {"\xff", "ann"}, {"k", ""}} {
		_, err := j.ResumeKey(t.Context(), "orders", bad.key, bad.by, "x")
		require.Error(t, err)
		require.NotErrorIs(t, err, fs.ErrNotExist)
	}
	unable, err := jobs.New(withoutKeys{e}, jobs.Config{})
	require.NoError(t, err)
	_, err = unable.HoldKey(t.Context(), "orders", "k", "ann", "x")
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "hold the messages that are there with a job (store.Hold), pause the queue, or use SQLite or PostgreSQL")
	local, err := jobs.New(struct{ store.Inspector }{e}, jobs.Config{Local: true})
	require.NoError(t, err)
	_, err = local.HoldKey(t.Context(), "orders", "k", "ann", "x")
	require.ErrorContains(t, err, "it is not a store.Keeper")
	list, err := j.HeldKeys(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
}

// Every worker reads all orders, so their number is bounded.
func TestJobs_HoldKey_ManyKeys(t *testing.T) {
	e, j := holding(t)
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		for i := range 999 {
			err := tx.Write(ctx, store.Record{Kind: "held-key", Name: fmt.Sprintf(`"orders""%d"`, i), Value: `{"by":"ann"}`})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	_, err := j.HoldKey(t.Context(), "orders", "the last", "ann", "x")
	require.NoError(t, err)
	_, err = j.HoldKey(t.Context(), "orders", "one more", "ann", "x")
	require.EqualError(t, err, "jobs: 1000 keys are held on this engine already, and at most 1000 can be: resume some of them, or pause the queue")
	_, err = j.ResumeKey(t.Context(), "orders", "7", "ann", "x")
	require.NoError(t, err)
	_, err = j.HoldKey(t.Context(), "orders", "one more", "ann", "x")
	require.NoError(t, err)
}

// Regression: Go quotes a character that its version does not know, and later versions do
// not. A hold whose name another version of Go had quoted could not be ended.
func TestJobs_ResumeKey_QuotedByAnotherGo(t *testing.T) {
	e, j := holding(t)
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
		return tx.Write(ctx, store.Record{Kind: "held-key", Name: `"orders""caf\u00e9"`, Value: `{"by":"ann","why":"x"}`})
	}))
	_, err := j.HoldKey(t.Context(), "orders", "café", "bob", "x")
	require.ErrorIs(t, err, fs.ErrExist)
	_, err = j.ResumeKey(t.Context(), "orders", "café", "bob", "x")
	require.NoError(t, err)
	list, err := j.HeldKeys(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)
}

// Of two holds of a key at the same time, one is refused, and so is one of two resumes.
// Holds of other keys succeed beside them.
func TestJobs_HoldKey_AtOnce(t *testing.T) {
	_, j := holding(t)
	for _, order := range []func(ctx context.Context, queue, key, by, why string) (jobs.KeyOrder, error){j.HoldKey, j.ResumeKey} {
		const each = 4
		errs := make(chan error, 2*each)
		for i := range each {
			go func() { // ends with its order
				_, err := order(t.Context(), "orders", "same", "ann", "x")
				errs <- err
			}()
			go func() { // ends with its order
				_, err := order(t.Context(), "orders", fmt.Sprint(i), "ann", "x")
				errs <- err
			}()
		}
		done := 0
		for range 2 * each {
			err := <-errs
			if err == nil {
				done++
				continue
			}
			require.True(t, errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist), err)
		}
		require.Equal(t, each+1, done)
	}
	lines := 0
	for _, err := range j.Log(t.Context()) {
		require.NoError(t, err)
		lines++
	}
	require.Equal(t, 10, lines)
}

// A hold is refused if a live worker of the queue would not obey it.
func TestJobs_HoldKey_Workers(t *testing.T) {
	e, j := holding(t)
	report := func(id, text string) {
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "worker", Name: id, Value: text})
		}))
	}
	now := golden.At.Format(time.RFC3339)
	report("able", `{"id":"able","seen":"`+now+`","queues":["empty"],"reads":"empty","holdsKeys":true}`)
	report("killed", `{"id":"killed","seen":"2000-01-01T00:00:00Z","reads":"empty"}`)
	report("other", `{"id":"other","seen":"`+now+`","reads":"others"}`)
	report("unreadable", `{`)
	_, err := j.HoldKey(t.Context(), "empty", "a", "ann", "x")
	require.NoError(t, err, "the queue is known by its worker")
	report("unable", `{"id":"unable","seen":"`+now+`","reads":"empty"}`)
	_, err = j.HoldKey(t.Context(), "empty", "b", "ann", "x")
	require.ErrorContains(t, err, `workers of queue "empty" cannot leave out the messages of a key (1 of 2): their queue lacks delivery.WithFairByKey`)
	_, err = j.ResumeKey(t.Context(), "empty", "a", "ann", "x")
	require.NoError(t, err, "a hold can always be ended")
}

// Law W4: later versions read what this version has stored. A worker obeys an order that
// it cannot read, and people can remove it.
func TestKeyOrder_StoredNames(t *testing.T) {
	e, j := holding(t)
	write := func(name, value string) {
		require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) error {
			return tx.Write(ctx, store.Record{Kind: "held-key", Name: name, Value: value})
		}))
	}
	write(`"orders""a"`, `{"queue":"orders","key":"a","event":"hold","held":true,"by":"ann","why":"it is moved","at":"2026-01-02T03:04:05Z","later":7}`)
	write(`"orders""b"`, "a later format")
	write(`"orders""c"`, "null")
	write("a name of a later version", "x")
	list, err := j.HeldKeys(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 3)
	require.Equal(t, "ann", list[0].By)
	require.Equal(t, "it is moved", list[0].Why)
	require.Equal(t, "2026-01-02T03:04:05Z", list[0].At.Format(time.RFC3339))
	require.Equal(t, "b", list[1].Key)
	require.True(t, list[1].Held)
	for _, damaged := range list[1:] {
		require.Contains(t, damaged.Why, "the order cannot be read")
		_, err = j.HoldKey(t.Context(), "orders", damaged.Key, "ann", "x")
		require.ErrorContains(t, err, "is held already: the order cannot be read")
		_, err = j.ResumeKey(t.Context(), "orders", damaged.Key, "ann", "x")
		require.NoError(t, err)
	}
	_, err = j.HoldKey(t.Context(), "orders", `"quoted"`, "bob", "longer")
	require.NoError(t, err)
	rs, err := e.Records(t.Context(), "held-key", "", 10)
	require.NoError(t, err)
	require.Len(t, rs, 3)
	require.Equal(t, `"orders""\"quoted\""`, rs[0].Name)
	require.Contains(t, rs[0].Value, `{"queue":"orders","key":"\"quoted\"","event":"hold","held":true,"by":"bob","why":"longer","at":"`)
}
