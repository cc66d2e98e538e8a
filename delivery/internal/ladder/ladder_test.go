package ladder_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/channel"
	"github.com/weirflow/weir/delivery/deliverytest"
	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	errRefused = errors.New("refused")
	quiet      = slog.New(slog.DiscardHandler)
)

// config is a ladder of two layers in a new store.
func config() (ladder.Config[string], *memory.Engine) {
	s := memory.Open()
	return ladder.Config[string]{
		Store: s, Codec: codec.JSON[string](), Main: "new", DeadLetters: "dead",
		Layers:  []ladder.Layer{{Queue: "1m", Delay: time.Minute}, {Queue: "1h", Delay: time.Hour}},
		Options: []leases.SourceOption{leases.WithLogger(slog.New(slog.DiscardHandler)), leases.WithMaxPoll(200 * time.Millisecond)},
	}, s
}

func build(t *testing.T, c ladder.Config[string]) *ladder.Ladder[string] {
	t.Helper()
	l, err := ladder.New(c)
	require.NoError(t, err)
	return l
}

// exhausted is the failure of an element whose short retries are used up.
func exhausted(element string) asyncop.Failure[string] {
	return asyncop.Failure[string]{Element: element, Err: errors.New("503"), Attempts: 3, NoRetryReason: strategies.Refused}
}

func take(t *testing.T, l *ladder.Ladder[string], m message.Message[string]) {
	t.Helper()
	require.NoError(t, l.TakeFailure(message.NewContext(t.Context(), m), exhausted(m.Value)))
	m.Ack()
}

func messages(n int) delivery.Source[string] {
	c := make(chan string, n)
	for i := range n {
		c <- strconv.Itoa(i)
	}
	close(c)
	return channel.NewSource(c, func(v string) *message.Meta { return &message.Meta{ID: v} })
}

func dead(t *testing.T, s store.Inspector) []store.Entry {
	t.Helper()
	entries, err := s.List(t.Context(), "dead", store.Filter{}, store.Page{Max: 1000})
	require.NoError(t, err)
	return entries
}

// Laws D3, D6: a message that always fails climbs the layers, and is merged to begin
// anew.
func TestLadder_MessageThatAlwaysFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		l := build(t, c)
		begun := time.Now()
		first := make(chan string, 1)
		first <- "0"
		source := l.Source(channel.NewSource(first, func(v string) *message.Meta { return &message.Meta{ID: v} }))
		var at []time.Duration
		climb := func(merges int) {
			for visit := 1; visit <= 3; visit++ {
				ms, err := source.Receive(t.Context(), 10)
				require.NoError(t, err)
				require.Len(t, ms, 1)
				meta := ms[0].Meta()
				require.Equal(t, visit, max(1, meta.Visit))
				require.Equal(t, 3*(visit-1), meta.Attempts)
				require.Equal(t, merges, meta.Merges)
				at = append(at, time.Since(begun).Round(time.Second))
				take(t, l, ms[0])
			}
		}
		climb(0)
		require.Equal(t, []time.Duration{0, time.Minute, time.Minute + time.Hour}, at)
		letter := dead(t, s)[0]
		require.Equal(t, store.Exhausted, letter.Cause)
		require.Equal(t, 3, letter.Meta.Visit)
		require.Equal(t, 9, letter.Meta.Attempts)
		require.Equal(t, "503", letter.Meta.LastError)
		require.True(t, letter.Meta.FirstFailure.Equal(begun))
		require.True(t, letter.Meta.LastFailure.Equal(time.Now()))
		require.NoError(t, source.Close(t.Context()))

		source = l.Source(nil)
		require.Equal(t, jobs.Progress{Done: 1}, merge(t, s, false))
		climb(1)
		require.Len(t, dead(t, s), 1)
		require.NoError(t, source.Close(t.Context()))
	})
}

// merge sends the dead letters to the layer.
func merge(t *testing.T, s store.Engine, unsafeToRepeat bool) jobs.Progress {
	t.Helper()
	j, err := jobs.New(s, jobs.Config{})
	require.NoError(t, err)
	job, err := j.Start(t.Context(), jobs.Spec{Do: store.Merge, Queue: "dead", To: "1m", UnsafeToRepeat: unsafeToRepeat, By: "ann", Why: "test"})
	require.NoError(t, err)
	job, err = j.Run(t.Context(), job.ID, nil)
	require.NoError(t, err)
	return job.Progress
}

func TestJitterOnlyAdds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		c.Layers = c.Layers[:1]
		c.Layers[0].Jitter = 0.5
		l := build(t, c)
		now := time.Now()
		for i := range 200 {
			m := message.New(strconv.Itoa(i), &message.Meta{ID: strconv.Itoa(i)}, func(message.Settlement) {})
			take(t, l, m)
		}
		entries, err := s.List(t.Context(), "1m", store.Filter{}, store.Page{Max: 1000})
		require.NoError(t, err)
		require.Len(t, entries, 200)
		different := map[time.Duration]bool{}
		for _, e := range entries {
			d := e.Meta.Due.Sub(now)
			different[d] = true
			require.GreaterOrEqual(t, d, time.Minute)
			require.LessOrEqual(t, d, 90*time.Second)
		}
		require.Greater(t, len(different), 150)
	})
}

// onlyOnce is an element whose call must not happen twice.
type onlyOnce string

func (onlyOnce) Idempotent() bool { return false }

func TestLadder_HopelessMessages(t *testing.T) {
	s := memory.Open()
	l, err := ladder.New(ladder.Config[onlyOnce]{
		Store: s, Codec: codec.JSON[onlyOnce](), Main: "new", DeadLetters: "dead", Layers: []ladder.Layer{{Queue: "1m", Delay: time.Minute}},
	})
	require.NoError(t, err)
	for _, f := range []asyncop.Failure[onlyOnce]{
		{Element: "rejected", Err: errRefused, Reason: predicates.NewRejection("CARD_DECLINED"), NoRetryReason: strategies.Refused},
		{Element: "not retried", Err: errRefused, NoRetryReason: strategies.Final},
		{Element: "in doubt", Err: errRefused, InDoubt: true, NoRetryReason: strategies.Refused, Reason: predicates.NewReason("LOST", false, false)},
		{Element: "timed out", Err: &asyncop.TimeoutError{}, NoRetryReason: strategies.Final},
		{Element: "panics", Err: panicking{errRefused}, NoRetryReason: strategies.Final},
	} {
		require.NoError(t, l.TakeFailure(message.ContextWithMeta(t.Context(), message.Meta{ID: string(f.Element)}), f))
	}
	causes := map[string]store.Cause{}
	for _, e := range dead(t, s) {
		causes[e.Meta.ID] = e.Cause
		require.Equal(t, e.Cause == store.UnsafeToRepeat, e.Meta.UnsafeToRepeat)
	}
	require.Equal(t, map[string]store.Cause{"rejected": store.Permanent, "in doubt": store.UnsafeToRepeat}, causes)
	c, err := s.Count(t.Context(), "1m", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 3, c.Messages, "their errors have no reason")

	require.Error(t, l.TakeFailure(t.Context(), asyncop.Failure[onlyOnce]{Element: "cut off", Err: errRefused, Abandoned: true}))
	require.Len(t, dead(t, s), 2)
	require.NoError(t, l.TakeFailure(t.Context(), asyncop.Failure[onlyOnce]{Element: "no message", Err: errRefused, Reason: predicates.NewRejection("CARD_DECLINED")}))
	require.NotEmpty(t, dead(t, s)[2].Meta.ID)
}

// With layers, users expect that a failure waits in a layer. So the first call in doubt
// that becomes a dead letter is explained in the log.
func TestLadder_CallInDoubtIsExplainedOnce(t *testing.T) {
	for layers, want := range []int{0, 1} {
		c, s := config()
		var lines bytes.Buffer
		c.Layers, c.Logger = c.Layers[:layers], slog.New(slog.NewTextHandler(&lines, nil))
		l := build(t, c)
		for _, id := range []string{"a", "b"} {
			f := asyncop.Failure[string]{Element: id, Err: errRefused, InDoubt: true, NoRetryReason: strategies.Refused, Reason: predicates.NewReason("LOST", false, false)}
			require.NoError(t, l.TakeFailure(message.ContextWithMeta(t.Context(), message.Meta{ID: id}), f))
		}
		require.Len(t, dead(t, s), 2)
		require.Equal(t, want, strings.Count(lines.String(), "Idempotent() bool"), lines.String())
	}
}

// twice is an element whose call may happen twice.
type twice string

func (twice) Idempotent() bool { return true }

// Only an error that is known to be permanent makes a dead letter at the first visit. An
// operator knows too little: its strategy may have been asked about one error only, and
// the service restarts.
func TestLadder_UnknownErrorIsNotPermanent(t *testing.T) {
	declined := predicates.NewRejection("CARD_DECLINED")
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	unsent := func(err error) error { return &predicates.StageError{Stage: predicates.ClientDispatch, Err: err} }
	flip := strategies.FixedDelay[string](1, 0).RetryIfException(predicates.ErrorIs(errRefused))
	named := strategies.ReasonAware(predicates.Named[string](), strategies.BestEffort[string]())
	for name, tt := range map[string]struct {
		strategy strategies.Retry[string] // nil means no retries
		err      error
		dead     store.Cause // "" if the message is in the layer
	}{
		"the service restarts":                {flip, fmt.Errorf("post: %w", io.EOF), ""},
		"connection refused":                  {flip, refused, ""},
		"unknown":                             {flip, errors.New("???"), ""},
		"unknown, no retries":                 {nil, errors.New("???"), ""},
		"unknown to a classifier":             {named, errors.New("???"), ""},
		"a panic":                             {flip, nil, ""},
		"an error that panics":                {flip, panicking{errors.New("???")}, ""},
		"not sent, but its connection failed": {named, unsent(refused), ""},
		"a status that may go away":           {flip, &httpretry.StatusError{StatusCode: 503}, ""},
		"a rejection, no retries":             {nil, fmt.Errorf("pay: %w", predicates.WithReason(errors.New("no"), declined)), store.Permanent},
		"a rejection":                         {flip, predicates.WithReason(errors.New("no"), declined), store.Permanent},
		"a rejection that a classifier names": {named, predicates.WithReason(errors.New("no"), declined), store.Permanent},
		"a status that will not go away":      {flip, fmt.Errorf("post: %w", &httpretry.StatusError{StatusCode: 422}), store.Permanent},
		"two, one of which may go away":       {flip, errors.Join(&httpretry.StatusError{StatusCode: 422}, &httpretry.StatusError{StatusCode: 503}), ""},
		"two, one of which is unknown":        {flip, errors.Join(predicates.WithReason(errors.New("no"), declined), errors.New("???")), ""},
		"before anything was sent":            {named, unsent(errors.New("no amount")), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := memory.Open()
			l, err := ladder.New(ladder.Config[twice]{
				Store: s, Codec: codec.JSON[twice](), Main: "new", DeadLetters: "dead", Layers: []ladder.Layer{{Queue: "1m", Delay: time.Minute}},
			})
			require.NoError(t, err)
			call := asyncop.Blocking(func(context.Context, twice) (string, error) {
				if tt.err == nil {
					panic("???")
				}
				return "", tt.err
			})
			opts := []asyncop.Option{asyncop.WithFailureSink(l.TakeFailure), asyncop.WithLogger(slog.New(slog.DiscardHandler))}
			strategy := tt.strategy
			if strategy == nil {
				strategy = strategies.NoRetry[string]()
			}
			op := asyncop.OrderedWaitWithRetry(call, time.Minute, 1, strategy, opts...)
			for range op.Results(slices.Values([]twice{"a"})) {
				require.Fail(t, "nothing comes out")
			}
			var cause store.Cause
			for _, e := range dead(t, s) {
				cause = e.Cause
			}
			require.Equal(t, tt.dead, cause)
			c, err := s.Count(t.Context(), "1m", store.Filter{})
			require.NoError(t, err)
			require.Equal(t, tt.dead == "", c.Messages == 1)
		})
	}
}

// Law D1: a message that is handed over again after a crash is one message.
func TestHandedOverAgain(t *testing.T) {
	c, s := config()
	l := build(t, c)
	m := message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {})
	for range 3 {
		take(t, l, m)
	}
	counts, err := s.Count(t.Context(), "1m", store.Filter{})
	require.NoError(t, err)
	require.Equal(t, 1, counts.Messages)
}

// Law D4: a layer's flow is bounded, each of its messages gets through, and it delays
// neither new messages nor another layer.
func TestRateAndConcurrencyOfALayer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		c.Layers = []ladder.Layer{{Queue: "slow", Delay: 1, Rate: 10, MaxConcurrent: 3}, {Queue: "stuck", Delay: 1, MaxConcurrent: 2}, {Queue: "free", Delay: 1}}
		l := build(t, c)
		for _, layer := range c.Layers {
			for i := range 50 {
				m, err := leases.Encode(c.Codec, layer.Queue, message.Meta{ID: strconv.Itoa(i)})
				require.NoError(t, err)
				require.NoError(t, s.Put(t.Context(), layer.Queue, m))
			}
		}
		source := l.Source(messages(50))
		begun := time.Now()
		counts, last := map[string]int{}, map[string]time.Duration{}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for {
			ms, err := source.Receive(ctx, 100)
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				break
			}
			for _, m := range ms {
				name := m.Value
				if _, err := strconv.Atoi(name); err == nil {
					name = "new"
				}
				counts[name]++
				last[name] = time.Since(begun)
				if name != "stuck" { // never settled
					m.Ack()
				}
			}
		}
		require.Equal(t, map[string]int{"new": 50, "free": 50, "slow": 50, "stuck": 2}, counts)
		require.Less(t, last["new"], time.Second)
		require.Less(t, last["free"], time.Second)
		require.InDelta(t, 4.9, last["slow"].Seconds(), 0.5)
		require.NoError(t, source.Close(t.Context()))
	})
}

// takes counts the calls of Take for each queue.
type takes struct {
	*memory.Engine
	mu sync.Mutex
	n  map[string]int
}

func (s *takes) Take(ctx context.Context, queue string, limit int, lease time.Duration) ([]store.Leased, error) {
	s.mu.Lock()
	s.n[queue]++
	s.mu.Unlock()
	return s.Engine.Take(ctx, queue, limit, lease)
}

// A layer with a rate does not deliver the messages of a second at once, and an empty
// layer is not asked at each Receive of new messages.
func TestLayer_AskedForALittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, memory := config()
		s := &takes{Engine: memory, n: map[string]int{}}
		c.Store, c.Layers = s, []ladder.Layer{{Queue: "paced", Delay: 1, Rate: 100}}
		source := build(t, c).Source(messages(200))
		for range 100 {
			m := one(t, source)
			m.Ack()
		}
		require.LessOrEqual(t, s.n["paced"], 3, "at the start, and when the engine can wake it")
		for i := range 100 {
			m, err := leases.Encode(c.Codec, "layer", message.Meta{ID: strconv.Itoa(i)})
			require.NoError(t, err)
			require.NoError(t, s.Put(t.Context(), "paced", m))
		}
		time.Sleep(time.Second)
		for {
			ms, err := source.Receive(t.Context(), 100)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			paced := 0
			for _, m := range ms {
				if m.Value == "layer" {
					paced++
				}
				m.Ack()
			}
			require.LessOrEqual(t, paced, 5, "of 100 a second")
		}
		require.NoError(t, source.Close(t.Context()))
	})
}

// Regression: whatever a worker asked for, it got 100 new messages at most.
func TestSource_AsManyNewMessagesAsAskedFor(t *testing.T) {
	c, s := config()
	for i := range 300 {
		require.NoError(t, s.Put(t.Context(), "new", store.Message{Meta: message.Meta{ID: strconv.Itoa(i)}, Payload: []byte(`"new"`)}))
	}
	source := build(t, c).Source(nil)
	ms, err := source.Receive(t.Context(), 250)
	require.NoError(t, err)
	require.Len(t, ms, 250)
	for _, m := range ms {
		m.Ack()
	}
	require.NoError(t, source.Close(t.Context()))
}

// broken is a source that fails once.
type broken struct {
	delivery.Source[string]
	err error
}

func (b *broken) Receive(ctx context.Context, n int) ([]message.Message[string], error) {
	if err := b.err; err != nil {
		b.err = nil
		return nil, err
	}
	return b.Source.Receive(ctx, n)
}

// An error of one input is returned, and loses no message of the others.
func TestSource_InputFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		l := build(t, c)
		m, err := leases.Encode(c.Codec, "layer", message.Meta{ID: "a"})
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), "1m", m))
		source := l.Source(&broken{messages(1), fmt.Errorf("%w: the connection: %w", errRefused, io.EOF)}) // it wraps io.EOF, but is not the end
		var got []string
		failures := 0
		for {
			ms, err := source.Receive(t.Context(), 10)
			if err == io.EOF {
				break
			}
			if err != nil {
				require.ErrorIs(t, err, errRefused)
				failures++
			}
			for _, m := range ms {
				got = append(got, m.Value)
				m.Ack()
			}
		}
		require.ElementsMatch(t, []string{"layer", "0"}, got)
		require.Equal(t, 1, failures)
		require.NoError(t, source.Close(t.Context()))
	})
}

// leaving is a source whose first Receive calls leave, which does not return.
type leaving struct {
	delivery.Source[string]
	leave func()
}

func (l *leaving) Receive(ctx context.Context, n int) ([]message.Message[string], error) {
	if leave := l.leave; leave != nil {
		l.leave = nil
		leave()
	}
	return l.Source.Receive(ctx, n)
}

// Law A6: a source that panics, or ends the goroutine, in Receive has failed, and does
// not block the others.
func TestSource_InputPanics(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, _ := config()
				source := build(t, c).Source(&leaving{messages(1), leave})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := source.Receive(ctx, 1)
				require.ErrorContains(t, err, "ladder: panic in user code: ")
				ms, err := source.Receive(ctx, 1)
				require.NoError(t, err)
				require.Equal(t, "0", ms[0].Value)
				ms[0].Ack()
				require.NoError(t, source.Close(t.Context()))
			})
		})
	}
}

func TestSource_EndOfTheFirstSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		l := build(t, c)
		m, err := leases.Encode(c.Codec, "layer", message.Meta{ID: "a"})
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), "1m", m))
		source := l.Source(messages(2))
		var layer message.Message[string]
		for got := 0; got < 3; {
			ms, err := source.Receive(t.Context(), 10)
			require.NoError(t, err)
			for _, m := range ms {
				if got++; m.Value == "layer" {
					layer = m
				} else {
					m.Ack()
				}
			}
		}
		time.AfterFunc(time.Hour, layer.Ack)
		begun := time.Now()
		_, err = source.Receive(t.Context(), 10)
		require.Equal(t, io.EOF, err)
		require.Equal(t, time.Hour, time.Since(begun), "the end waits for what is in flight")
		require.NoError(t, source.Close(t.Context()))
	})
}

func TestLayersAreASource(t *testing.T) {
	deliverytest.RunSource(t, func(t *testing.T) deliverytest.Queue[string] {
		t.Parallel() // the rules wait
		c, s := config()
		c.Layers = []ladder.Layer{{Queue: "a", Delay: 1}, {Queue: "b", Delay: 1, MaxConcurrent: 1000, Rate: 1e6}}
		n := 0
		return deliverytest.Queue[string]{
			Open: func() (delivery.Source[string], error) { return build(t, c).Source(nil), nil },
			Put: func(values ...string) error {
				for _, v := range values {
					n++
					m, err := leases.Encode(c.Codec, v, message.Meta{ID: strconv.Itoa(n)})
					if err := errors.Join(err, s.Put(t.Context(), c.Layers[n%2].Queue, m)); err != nil {
						return err
					}
				}
				return nil
			},
			Keeps: true, Shared: true,
		}
	}, func(i int) string { return fmt.Sprint("value ", i) })
}

func TestNewRefusesAWrongConfig(t *testing.T) {
	for _, wrong := range []struct {
		named  string
		change func(*ladder.Config[string])
	}{
		{"Store is nil", func(c *ladder.Config[string]) { c.Store = nil }},
		{"Codec is nil", func(c *ladder.Config[string]) { c.Codec = nil }},
		{"Main is empty", func(c *ladder.Config[string]) { c.Main = "" }},
		{"DeadLetters is empty", func(c *ladder.Config[string]) { c.DeadLetters = "" }},
		{`layer 2: the queue "1h"`, func(c *ladder.Config[string]) { c.DeadLetters = "1h" }},
		{`layer 2: the queue "1m"`, func(c *ladder.Config[string]) { c.Layers[1].Queue = "1m" }},
		{"not a store.InOrder", func(c *ladder.Config[string]) {
			c.InOrder, c.Store = true, struct{ store.Store }{c.Store.(store.Store)}
		}},
	} {
		c, _ := config()
		wrong.change(&c)
		_, err := ladder.New(c)
		require.ErrorContains(t, err, wrong.named)
	}
}

// A Receive that waits for messages to be settled returns when its source is closed.
func TestCloseWhileALayerIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		c.Layers = []ladder.Layer{{Queue: "1m", Delay: 1, MaxConcurrent: 1}}
		m, err := leases.Encode(c.Codec, "layer", message.Meta{ID: "a"})
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), "1m", m))
		source := build(t, c).Source(nil)
		one(t, source)
		ended := make(chan error)
		go func() {
			_, err := source.Receive(t.Context(), 1)
			ended <- err
		}()
		synctest.Wait()
		require.NoError(t, source.Close(t.Context()))
		require.Error(t, <-ended)
	})
}

// A dead letter is logged in one line, by the operator.
func TestLadder_DeadLetterIsLoggedOnce(t *testing.T) {
	c, s := config()
	c.Layers = nil // else the first call in doubt is explained
	l := build(t, c)
	var lines bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&lines, nil))
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(logger)
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, string) (string, error) { return "", errRefused }), time.Minute, 1,
		asyncop.WithFailureSink(l.TakeFailure), asyncop.WithLogger(logger))
	source := l.Source(messages(1))
	for _, err := range op.Messages(receive(t.Context(), source)) {
		require.Fail(t, "nothing comes out", err)
	}
	require.NoError(t, source.Close(t.Context()))
	require.Len(t, dead(t, s), 1)
	require.Equal(t, 1, strings.Count(lines.String(), "\n"), lines.String())
	require.Contains(t, lines.String(), "id=0")
}

// Laws B2 and W2: a message whose visits are used up waits once more while its backend is
// down, a bounded number of times.
func TestLadder_OutageMakesNoDeadLetter(t *testing.T) {
	closed := asyncop.Failure[string]{Element: "a", Err: asyncop.ErrBackendDown, BackendDown: true, Attempts: 1}
	answered := closed
	answered.OthersAnswered = true
	for name, of := range map[string]struct {
		change func(c *ladder.Config[string])
		visit  int
		f      asyncop.Failure[string]
		want   string
	}{
		"the first visit":          {nil, 1, closed, "1m"},
		"behind the last layer":    {nil, 3, closed, "1h"},
		"long behind it":           {nil, 99, closed, "1h"},
		"too often":                {nil, 100, closed, "dead"},
		"answered since":           {nil, 3, answered, "1h"},
		"answered since, again":    {nil, 4, answered, "dead"},
		"another failure":          {nil, 3, exhausted("a"), "dead"},
		"no layers":                {func(c *ladder.Config[string]) { c.Layers = nil }, 1, closed, "new"},
		"no layers, answered":      {func(c *ladder.Config[string]) { c.Layers = nil }, 2, answered, "dead"},
		"no layers, too often":     {func(c *ladder.Config[string]) { c.Layers = nil }, 100, closed, "dead"},
		"no layers, order of keys": {func(c *ladder.Config[string]) { c.Layers, c.InOrder = nil, true }, 1, closed, "new"},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := config()
			if of.change != nil {
				of.change(&c)
			}
			l := build(t, c)
			require.NoError(t, l.TakeFailure(message.ContextWithMeta(t.Context(), message.Meta{ID: "a", Visit: of.visit}), of.f))
			queues, err := s.Queues(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{of.want}, queues)
			entries, err := s.List(t.Context(), of.want, store.Filter{}, store.Page{Max: 2})
			require.NoError(t, err)
			require.Len(t, entries, 1)
			require.Equal(t, of.visit, entries[0].Meta.Visit)
			if of.want != "dead" {
				require.GreaterOrEqual(t, time.Until(entries[0].Meta.Due), 59*time.Second)
			} else {
				require.Equal(t, store.Exhausted, entries[0].Cause)
			}
		})
	}
}

// idle is a source without messages.
type idle struct{}

func (idle) Receive(ctx context.Context, _ int) ([]message.Message[string], error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (idle) Close(context.Context) error { return nil }

// slowEnd is a source whose Close needs all the time that it has.
type slowEnd struct{ ladder.Source[string] }

func (slowEnd) Close(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Regression: a source that closes slowly took the time of those behind it, whose
// messages were not released, and counted as lapsed.
func TestSource_ClosesSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		m, err := leases.Encode(c.Codec, "a", message.Meta{ID: "a", Visit: 1})
		require.NoError(t, err)
		require.NoError(t, s.Put(t.Context(), "1m", m))
		source := build(t, c).Source(slowEnd{idle{}})
		one(t, source)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, source.Close(ctx), context.DeadlineExceeded)
		time.Sleep(time.Minute)
		taken, err := s.Take(t.Context(), "1m", 1, time.Minute)
		require.NoError(t, err)
		require.Len(t, taken, 1)
		require.Zero(t, taken[0].Lapses)
	})
}

// panicky is a source that panics in Close.
type panicky struct{ idle }

func (panicky) Close(context.Context) error { panic("broken source") }

// Law A6: a source that panics in Close makes Close return an error, and does not end the
// process.
func TestSource_BreaksWhenClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := config()
		source := build(t, c).Source(panicky{})
		require.ErrorContains(t, source.Close(t.Context()), "broken source")
	})
}
