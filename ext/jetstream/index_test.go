package jetstream

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// leader is a stream that ends with a message.
type leader struct {
	jetstream.Stream
	last uint64
}

func (l leader) GetLastMsgForSubject(context.Context, string) (*jetstream.RawStreamMsg, error) {
	return &jetstream.RawStreamMsg{Sequence: l.last}, nil
}

// follower is a consumer that does not answer while it is replaced.
type follower struct {
	jetstream.Consumer
	replaced chan struct{}
}

func (f follower) CachedInfo() *jetstream.ConsumerInfo {
	<-f.replaced
	return &jetstream.ConsumerInfo{Name: "c"}
}

func newIndex(replaced chan struct{}) *index {
	return &index{
		consumer: follower{replaced: replaced}, consumed: "c", naming: make(chan struct{}, 1),
		items: map[string]*item{}, whys: map[string]*why{}, sorted: true, changed: make(chan struct{}),
	}
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Regression (law W3): an index of a queue that is only taken from kept every message
// that the queue ever had.
func TestIndex_ForgetsRemovedMessages(t *testing.T) {
	ix := newIndex(closed())
	for seq := uint64(1); seq < 10_000; seq += 2 {
		r := &record{subject: "q." + strconv.FormatUint(seq, 10), seq: seq, state: state{kind: waiting, position: seq}}
		ix.apply(r)
		if seq > 20 {
			ix.apply(&record{subject: r.subject, seq: seq + 1, state: state{kind: removed, position: seq}})
		}
	}
	if len(ix.items) != 10 || len(ix.order) > 20 {
		t.Fatalf("10 messages are there, and it has %d and %d", len(ix.items), len(ix.order))
	}
	if list := ix.after(0, 100); len(list) != 10 || list[9].position != 19 {
		t.Fatalf("it has %v", list)
	}
}

// Regression: a Take does not wait long for a server that is behind. A count after it
// took the messages that had arrived until then for all messages.
func TestIndex_CountAfterATake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ix := newIndex(closed())
		ix.seen, ix.wanted = 5, 10
		s := &Engine{clock: clock.New(), stream: leader{last: 10}}
		if err := ix.sync(t.Context(), s, false); err != nil {
			t.Fatal("a Take:", err)
		}
		begun := time.Now()
		if err := ix.sync(t.Context(), s, false); err != nil || time.Since(begun) != 0 {
			t.Fatal("the next Take:", err, time.Since(begun))
		}
		if err := ix.sync(t.Context(), s, true); err == nil {
			t.Fatal("a count of what has come")
		}
		time.AfterFunc(farBehind-time.Second, func() { come(ix, 7) })
		time.AfterFunc(2*farBehind-2*time.Second, func() { come(ix, 10) })
		if err := ix.sync(t.Context(), s, true); err != nil {
			t.Fatal("while it is read:", err)
		}
	})
}

func come(ix *index, seq uint64) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.seen = seq
	ix.notify()
}

// While the client replaces a consumer, with servers that do not answer, a call ends with
// its context, or with an error.
func TestIndex_CallWhileAConsumerIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replaced := make(chan struct{})
		ix := newIndex(replaced)
		s := &Engine{clock: clock.New(), stream: leader{}}
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := ix.sync(ctx, s, false); !errors.Is(err, context.DeadlineExceeded) {
				t.Error("after the context:", err)
			}
			cancel()
			if err := ix.sync(t.Context(), s, true); !errors.Is(err, errReplacing) {
				t.Error("without one that ends:", err)
			}
		}
		close(replaced)
		if err := ix.sync(t.Context(), s, true); err != nil {
			t.Error("after it:", err)
		}
	})
}

// Law W3: unused indexes are removed when another index is opened.
func TestIndexesThatAreNotUsed(t *testing.T) {
	c := clock.NewMock()
	old, young := &index{used: c.Now()}, &index{}
	s := &Engine{clock: c, indexes: map[string]*index{"old": old, "young": young}}
	c.Add(keepIndex - time.Second)
	young.used = c.Now()
	require.Empty(t, s.unused())
	c.Add(time.Second)
	require.Equal(t, map[string]*index{"old": old}, s.unused())
}

// unplaced is a JetStream that makes no consumer, and notes which ones are deleted.
type unplaced struct {
	jetstream.JetStream
	deleted chan string
}

func (unplaced) OrderedConsumer(context.Context, string, jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	return nil, jetstream.ErrStreamNotFound
}

func (u unplaced) DeleteConsumer(_ context.Context, _, name string) error {
	u.deleted <- name
	return nil
}

type iterator struct{ jetstream.MessagesContext }

func (iterator) Stop() {}

// While the client replaces the consumer of an unused index, a call for another queue
// does not wait for it. Close ends it.
func TestIndex_CallDoesNotWaitForAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		replaced := make(chan struct{})
		old := newIndex(replaced)
		old.iterator, old.end = iterator{}, func() {}
		old.running.Go(func() { <-replaced })
		js := unplaced{deleted: make(chan string, 1)}
		s := &Engine{clock: clock.New(), js: js, life: t.Context(), indexes: map[string]*index{"old": old}, opening: map[string]chan struct{}{}}
		time.AfterFunc(closeWait/2, func() { close(replaced) })
		begun := time.Now()
		if _, err := s.index(t.Context(), "q", 0, false); !errors.Is(err, jetstream.ErrStreamNotFound) || time.Since(begun) != 0 {
			t.Error(err, "after", time.Since(begun))
		}
		s.closeIndexes()
		select {
		case <-js.deleted:
		default:
			t.Error("Close did not wait for its end")
		}
	})
}
