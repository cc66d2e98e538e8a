package tests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/console"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

// The overview of many queues, each with a worker and a history of 24 hours: 20, and with
// WEIR_LONG=1 300, with a limit for a quiet machine.
func TestOverview_ManyQueues(t *testing.T) {
	queues, pages := 20, 5
	if suite.Long() {
		queues, pages = 300, 40
	}
	e := onSQLite(t)
	manyQueues(t, e, queues)
	mock := clock.NewMock()
	mock.Set(time.Now())
	h := handler(t, console.Config{Engine: e, Clock: mock})
	text := ""
	look := func() {
		mock.Add(3 * time.Second) // for a new look, and now and then for a new history
		text = page(t, h, "/")
	}
	require.Eventually(t, func() bool {
		look()
		return strings.Count(text, `data-l="Messages">1<`) == queues && strings.Count(text, " in, ") == queues
	}, time.Minute, time.Millisecond, "each queue has its number and its rates")
	var all []time.Duration
	for range pages {
		begun := time.Now()
		look()
		all = append(all, time.Since(begun))
	}
	slices.Sort(all)
	p95 := all[len(all)*95/100-1]
	t.Logf("%d bytes, median %v, p95 %v, at most %v", len(text), all[len(all)/2], p95, all[len(all)-1])
	if suite.Long() {
		require.LessOrEqual(t, p95, 300*time.Millisecond)
	}
}

// manyQueues puts a message into each of n queues, and writes a report of a worker and a
// history of 24 hours for each.
func manyQueues(t *testing.T, e store.Keeper, n int) {
	t.Helper()
	now := time.Now().UTC()
	var points []string
	for minute := range 60 {
		points = append(points, fmt.Sprintf("[%d,%d,%d,%d,%d,%d]", minute, 4000+minute, 17, 900+minute%7, 860+minute%5, minute%3))
	}
	value := `{"counter":"w1","points":[` + strings.Join(points, ",") + `]}`
	for i := range n {
		queue := fmt.Sprintf("orders-of-shop-%03d", i)
		require.NoError(t, e.Put(t.Context(), queue, store.Message{Meta: message.Meta{ID: "1"}}))
	}
	require.NoError(t, e.Update(t.Context(), func(ctx context.Context, tx store.Tx) (err error) {
		for i := range n {
			queue := fmt.Sprintf("orders-of-shop-%03d", i)
			id := fmt.Sprintf("w%03d", i)
			text, marshalErr := json.Marshal(jobs.Worker{ID: id, Host: "h", Since: now, Seen: now, Queues: []string{queue}, Reads: queue, Counts: json.RawMessage(`{"Received":7,"Acknowledged":7}`)})
			err = errors.Join(err, marshalErr, tx.Write(ctx, store.Record{Kind: "worker", Name: id, Value: string(text)}))
			for hours := range 25 {
				name := now.Add(-time.Duration(hours)*time.Hour).Format("2006-01-02T15") + " " + queue
				err = errors.Join(err, tx.Write(ctx, store.Record{Kind: "history", Name: name, Value: value}))
			}
		}
		return err
	}))
}
