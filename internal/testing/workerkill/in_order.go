package workerkill

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/child/workers"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/message"
)

const (
	inOrder = "ordered-worker" // the children of RunInOrder
	calls   = "calls"          // the queue in which workers note their calls

	// orderLease is long: a live worker that loses its lease on a busy machine would call
	// a message late.
	orderLease = 10 * time.Second
	orderSlots = 25
)

// keyed is a message of [RunInOrder]: the number Seq of its key.
type keyed struct{ Key, Seq int }

func (k keyed) id() string { return fmt.Sprintf("%d/%d", k.Key, k.Seq) }

// Idempotent reports that a message may be processed twice.
func (keyed) Idempotent() bool { return true }

// failures returns the number of visits that fail: one in ten messages fails at its first
// visit, some also after the first layer, and some after the second layer as well. Those
// become dead letters, and so does poison.
func (k keyed) failures() (visits int, isPoison bool) {
	switch kind := (k.Seq + 31*k.Key) % 100; {
	case kind == 63:
		return 1, true
	case kind == 83:
		return 3, false
	case kind%50 == 13:
		return 2, false
	case kind%10 == 3:
		return 1, false
	}
	return 0, false
}

func workInOrder(ctx context.Context, e Engine) error {
	engine := store.Engine(e)
	queues, ok := e.(Queues)
	if ok {
		engine = queues.Inspector // which is a store.InOrder
	}
	q := delivery.NewQueue[keyed](engine, work, delivery.WithLayers(delivery.Layer{Delay: delay, Jitter: 0.5}, delivery.Layer{Delay: delay}),
		delivery.WithOrdered(), delivery.WithLease(orderLease), delivery.WithLogger(quiet))
	call := func(ctx context.Context, k keyed) (keyed, error) {
		err := noteCall(ctx, e, k)
		if err != nil {
			return k, err
		}
		meta, _ := message.MetaFromContext(ctx)
		time.Sleep(rand.N(2 * time.Millisecond))
		visits, isPoison := k.failures()
		switch {
		case isPoison:
			return k, errPoison
		case meta.Visit <= visits:
			return k, errBusy
		}
		return k, nil
	}
	op := asyncop.UnorderedWait(asyncop.Blocking(call), time.Minute, orderSlots, asyncop.WithFailureSink(q.TakeFailure), asyncop.WithLogger(quiet))
	summary, err := delivery.Run(ctx, q, op, delivery.NewQueue[keyed](e, "done"), delivery.WithLogger(quiet), delivery.WithDrain(3*time.Second))
	fmt.Println(summary)
	return err
}

// noteCall notes a call in the queue of the calls, in the order of the calls of a key,
// whichever workers make them.
func noteCall(ctx context.Context, e Engine, k keyed) error {
	payload, err := json.Marshal(k)
	if err != nil {
		return err
	}
	id := k.id() + " " + strconv.FormatUint(rand.Uint64(), 36)
	return e.Put(ctx, calls, store.Message{Meta: message.Meta{ID: id}, Payload: payload})
}

// RunInOrder kills eight workers of a queue with delivery.WithOrdered at random, while
// messages fail at each of their visits: 300 messages of 30 keys by default, 1,200 of 60
// keys in CI, and 20,000 of 200 keys with WEIR_LONG=1. In the end no message of a key was
// called, or has its result, before an earlier one. No message is lost, and each has a
// result or is a dead letter, once (laws D1, D4).
func RunInOrder(t *testing.T, c Config) {
	t.Helper()
	keys := 30
	each := 10
	kills := 2
	switch {
	case suite.Long():
		keys = 200
		each = 100
		kills = 60
	case suite.Full():
		keys = 60
		each = 20
		kills = 4
	}
	e, err := c.Open(t.Context(), c.DSN)
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Close()) }()
	want := fillInOrder(t, e, keys, each)
	all := workers.Start(t, inOrder, c.DSN, 8, patience)
	begun := time.Now()
	for kill := 1; kill <= kills; kill++ {
		progress(t, e, all, func(done int) bool { return done >= kill*len(want.done)*9/10/kills })
		all.Kill()
	}
	progress(t, e, all, func(done int) bool {
		return done >= len(want.done) && count(t, e, Dead) >= len(want.dead) && count(t, e, work) == 0
	})
	took := time.Since(begun)
	all.End()
	called, done := listKeyed(t, e, calls), listKeyed(t, e, "done")
	requireOrder(t, "calls", called)
	requireOrder(t, "results", done)
	require.ElementsMatch(t, want.done, done, "results")
	require.ElementsMatch(t, want.dead, listKeyed(t, e, Dead), "dead letters")
	for _, queue := range []string{work, first, second} {
		require.Zero(t, count(t, e, queue), queue)
	}
	again := len(called) - want.calls
	require.LessOrEqual(t, again, kills*orderSlots, "calls that were made again, which only a kill explains")
	t.Logf("%d messages of %d keys in %v, %d kills of 8 workers; %d calls were made again", keys*each, keys, took.Round(time.Millisecond), all.Kills, again)
}

type expected struct {
	done, dead []keyed
	calls      int
}

// fillInOrder puts the messages of [RunInOrder], those of a key in order.
func fillInOrder(t *testing.T, e Engine, keys, each int) (want expected) {
	t.Helper()
	for seq := range each {
		ms := make([]store.Message, keys)
		for key := range keys {
			k := keyed{key, seq}
			payload, err := json.Marshal(k)
			require.NoError(t, err)
			ms[key] = store.Message{Meta: message.Meta{ID: k.id(), Key: strconv.Itoa(key)}, Payload: payload}
			visits, isPoison := k.failures()
			want.calls += visits
			if isPoison || visits > 2 {
				want.dead = append(want.dead, k)
				continue
			}
			want.done = append(want.done, k)
			want.calls++
		}
		require.NoError(t, e.Put(t.Context(), work, ms...))
	}
	return want
}

func listKeyed(t *testing.T, e Engine, queue string) (list []keyed) {
	t.Helper()
	for page := (store.Page{Max: 1000}); ; {
		entries, err := e.List(t.Context(), queue, store.Filter{}, page)
		require.NoError(t, err)
		if len(entries) == 0 {
			return list
		}
		for _, entry := range entries {
			var k keyed
			require.NoError(t, json.Unmarshal(entry.Payload, &k))
			list = append(list, k)
		}
		page.After = entries[len(entries)-1].Position
	}
}

// requireOrder requires that no message comes behind a later one of its key.
func requireOrder(t *testing.T, what string, list []keyed) {
	t.Helper()
	last := map[int]int{}
	for _, k := range list {
		require.GreaterOrEqual(t, k.Seq, last[k.Key], "%s of key %d", what, k.Key)
		last[k.Key] = k.Seq
	}
}
