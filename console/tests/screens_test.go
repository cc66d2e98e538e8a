package tests

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/outbox"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/keys"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// says writes the report of a worker.
func says(tb testing.TB, e store.Keeper, w jobs.Worker) {
	tb.Helper()
	text, err := json.Marshal(w)
	require.NoError(tb, err)
	require.NoError(tb, e.Update(context.Background(), func(ctx context.Context, tx store.Tx) error {
		list, err := tx.Records(ctx, "worker", "", 100)
		r := store.Record{Kind: "worker", Name: w.ID, Value: string(text)}
		for _, other := range list {
			if other.Name == w.ID {
				r.Version = other.Version
			}
		}
		return errors.Join(err, tx.Write(ctx, r))
	}))
}

// becomes waits until a page contains texts: looks are made in the background.
func becomes(t *testing.T, h http.Handler, path string, want ...string) {
	t.Helper()
	text := ""
	for _, w := range want {
		assert.Eventually(t, func() bool { text = page(t, h, path); return strings.Contains(text, w) }, time.Minute, 10*time.Millisecond, w)
	}
	if t.Failed() {
		t.Log(text)
	}
}

// Outboxes: staged messages, their sender, and why it cannot send.
func TestOutboxes(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		require.NoError(t, e.Put(t.Context(), "mails", store.Message{Meta: message.Meta{ID: "1"}}))
		require.NoError(t, e.Put(t.Context(), "letters dead", store.Message{Meta: message.Meta{ID: "2"}, Cause: store.Permanent}))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { // it is waited for below
			ended <- outbox.Relay(ctx, e, e.Locks(), outbox.Config{Queue: "mails", Owner: "relay-7", Logger: quiet, Publish: func(context.Context, []store.Message) error {
				return errors.New("https://ann:s3cret@broker: refused")
			}})
		}()
		h := handler(t, console.Config{Engine: e})
		becomes(t, h, "/outboxes", "relay-7, for 1", `data-l="Messages">1<`, `data-l="Processes">1<`, "letters", ">none<", `data-l="Dead letters"><a href="/queue?queue=letters&#43;dead">1</a>`)
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		says(t, e, jobs.Worker{ID: "r", Seen: time.Now(), Outbox: "mails", Operators: []json.RawMessage{json.RawMessage(`{"LastError":"https://ann:s3cret@broker: refused","LastFailure":"2026-01-02T03:04:05Z","Failures":3}`)}})
		h = handler(t, console.Config{Engine: e})
		becomes(t, h, "/outboxes", "https://ann:xxxxx@broker: refused", "3 in a row")
		text := page(t, h, "/")
		assert.Contains(t, text, "The outbox mails cannot be sent, where 1 message waits: https://ann:xxxxx@broker: refused")
		assert.Contains(t, text, "relays mails")
		assert.NotContains(t, text, "s3cret")
		assert.Contains(t, page(t, h, "/start?do=merge&queue=letters+dead"), "Send 1 message back")
	})
}

// The page of requests with keys shows their states, and contains neither the requests
// nor the answers.
func TestKeys(t *testing.T) {
	e := onSQLite(t)
	h := handler(t, console.Config{Engine: e})
	assert.Equal(t, http.StatusNotFound, ask(h, "/keys", nil).Code)
	assert.NotContains(t, page(t, h, "/"), `href="/keys"`)
	db := e.(*sqlite.Engine).DB()
	h = handler(t, console.Config{Engine: e, Keys: keys.New(db.Reader(), keys.SQLite, keys.Config{})})
	assert.Contains(t, page(t, h, "/keys"), "The requests cannot be read: keys: list: ")
	withKeys(t, db)
	text := page(t, h, "/keys")
	assert.Contains(t, text, "1 not finished")
	assert.Contains(t, text, `data-l="Last step">reserved<`)
	assert.Contains(t, text, ">waits<")
	assert.NotContains(t, text, "s3cret")
	assert.Contains(t, page(t, h, "/"), `href="/keys"`)
	text = page(t, h, "/keys?finished=yes&user=ann&key=ride-1")
	assert.Contains(t, text, "1 match")
	assert.Contains(t, text, ">answered 201<")
	assert.NotContains(t, text, "s3cret")
	assert.Contains(t, page(t, h, "/keys?finished=yes&user=bob&key=ride-1"), "0 match")
}

// withKeys puts two requests into a database: one is finished, of the other one step is
// done.
func withKeys(t *testing.T, db *sqlite.DB) {
	t.Helper()
	require.NoError(t, keys.New(db.Writer(), keys.SQLite, keys.Config{}).Migrate(t.Context()))
	k := keys.New(db.Writer(), keys.SQLite, keys.Config{Logger: quiet})
	ride := k.Operation("ride", func(context.Context, *keys.Run) (exactlyonce.Response, error) {
		return keys.JSON(http.StatusCreated, "s3cret")
	})
	refund := k.Operation("refund", func(ctx context.Context, run *keys.Run) (exactlyonce.Response, error) {
		err := run.Phase(ctx, "reserved", func(context.Context, *sql.Tx) error { return nil })
		return exactlyonce.Response{}, errors.Join(err, errors.New("s3cret"))
	})
	_, err := ride.Do(t.Context(), keys.Request{User: "ann", Key: "ride-1", Method: http.MethodPost, Path: "/rides", Body: []byte("s3cret")})
	require.NoError(t, err)
	_, err = refund.Do(t.Context(), keys.Request{User: "ann", Key: "refund-1", Method: http.MethodPost, Path: "/refunds", Body: []byte("s3cret")})
	require.ErrorContains(t, err, "s3cret")
}

// pipeline is a coordinator with a participant, whose checkpoints fail when fails is set.
type pipeline struct {
	checkpointtest.MemoryStore
	fails error
}

func (p *pipeline) Save(ctx context.Context, s *checkpoint.Snapshot) error {
	if p.fails != nil {
		return p.fails
	}
	return p.MemoryStore.Save(ctx, s)
}

func (*pipeline) Pending(b participant.Barrier) {
	b.Report("p", participant.State{[]byte("7 bytes")}, nil)
}
func (*pipeline) Completed(uint64)      {}
func (*pipeline) Aborted(uint64, error) {}

// checkpoints returns the coordinator of a pipeline of which one checkpoint was stored,
// and others failed.
func checkpoints(t *testing.T, failed int) *checkpoint.Coordinator {
	t.Helper()
	p := &pipeline{}
	c, err := checkpoint.NewCoordinator(p, checkpoint.WithLogger(quiet))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	c.Host().Register("p", p)
	require.NoError(t, c.Start())
	_, err = c.Trigger(t.Context())
	require.NoError(t, err)
	for range failed {
		p.fails = errors.New("https://ann:s3cret@bucket is full")
		_, err = c.Trigger(t.Context())
		require.Error(t, err)
	}
	return c
}

// Checkpoints of pipelines of this process, and of others by their reports.
func TestCheckpoints(t *testing.T) {
	engines(t, func(t *testing.T, e store.Keeper) {
		assert.NotContains(t, page(t, handler(t, console.Config{Engine: e}), "/"), "Checkpoints")
		h := handler(t, console.Config{Engine: e, Checkpoints: map[string]*checkpoint.Coordinator{"flights": checkpoints(t, 3)}})
		for _, want := range []string{
			"3 checkpoints of flights (this process) failed in a row: checkpoint 4: https://ann:xxxxx@bucket is full", `data-l="Size">7 B<`, `data-l="Stored">1<`, "0 s ago",
		} {
			assert.Contains(t, page(t, h, "/"), want)
		}
		var worker jobs.Worker
		require.Eventually(t, func() bool {
			j, err := jobs.New(e, jobs.Config{Logger: quiet})
			require.NoError(t, err)
			list, err := j.Workers(t.Context())
			require.NoError(t, err)
			if len(list) == 1 {
				worker = list[0]
			}
			return len(list) == 1
		}, time.Minute, 10*time.Millisecond)
		assert.Equal(t, os.Getpid(), worker.PID)
		const own = "<span>3 checkpoints of flights (this process) failed in a row"
		assert.Equal(t, 1, strings.Count(page(t, h, "/"), own), "also when its heartbeat says so")
		h = handler(t, console.Config{Engine: e}) // such as beside partitions.Run
		assert.Equal(t, 1, strings.Count(page(t, h, "/"), own))
		worker.ID, worker.PID, worker.Host = "other", 7, "pod-7"
		says(t, e, worker)
		h = handler(t, console.Config{Engine: e})
		becomes(t, h, "/", "3 checkpoints of flights (pod-7, 7) failed in a row: checkpoint 4: https://ann:xxxxx@bucket is full", `data-l="Size">7 B<`)
	})
}
