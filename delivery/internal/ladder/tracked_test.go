package ladder_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// bank is a service that recognises ids. It counts what it has done.
type bank struct {
	*httptest.Server
	results *server.Results

	mu      sync.Mutex
	effects map[string]int              // by element
	ids     map[string][]exactlyonce.ID // the same
}

func newBank(t *testing.T) *bank {
	t.Helper()
	b := &bank{effects: map[string]int{}, ids: map[string][]exactlyonce.ID{}, results: server.NewResults(server.Config{})}
	charge := b.results.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.effects[string(body)]++
	}), server.HandlerConfig{Scope: func(*http.Request) (string, bool) { return "test", true }, Required: true})
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/charges" {
			return
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		id, err := parseID(r.Header.Get(exactlyonce.Header))
		if err == nil {
			b.mu.Lock()
			b.ids[string(body)] = append(b.ids[string(body)], id)
			b.mu.Unlock()
		}
		charge.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		b.Close()
		require.NoError(t, b.results.Close(context.Background()))
	})
	return b
}

// losing is a network that loses the answers to requests for which lost returns true.
type losing struct {
	base http.RoundTripper
	lost func(*http.Request) bool
}

func (l losing) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := l.base.RoundTrip(req)
	if err == nil && l.lost(req) {
		_ = resp.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

// work runs a worker until its source has ended. Its network loses the answers to
// requests for which lost returns true.
func work(t *testing.T, l *ladder.Ladder[string], source delivery.Source[string], b *bank, name string, lost func(*http.Request) bool, also ...string) {
	t.Helper()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: caller.Transport(losing{base, lost}, b.URL+"/charges")}
	post := func(ctx context.Context, url, body string) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return httpretry.CheckResponse(resp)
	}
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
		for _, path := range also {
			if err := post(ctx, b.URL+path, in); err != nil {
				return "", err
			}
		}
		return in, post(ctx, b.URL+"/charges", in)
	}), time.Minute, 10, strategies.ReasonAware(httpretry.Classifier[string](), strategies.ReasonStrategyFunc[string](
		func(_ context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
			if a.Number > 1 || !a.Idempotent {
				return strategies.Action{}, nil
			}
			return strategies.RetryAfter(time.Millisecond), nil
		})),
		asyncop.WithObserver(caller.NewTracker(caller.Config{Name: name, Secret: []byte("0123456789abcdef")})), asyncop.WithFailureSink(l.TakeFailure))
	for m, err := range op.Messages(receive(t.Context(), source)) {
		require.NoError(t, err)
		m.Ack()
	}
	require.NoError(t, op.Wait())
	require.NoError(t, source.Close(t.Context()))
}

func receive(ctx context.Context, source delivery.Source[string]) func(func(message.Message[string], error) bool) {
	return func(yield func(message.Message[string], error) bool) {
		for {
			ms, err := source.Receive(ctx, 10)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					yield(message.Message[string]{}, err)
				}
				return
			}
			for _, m := range ms {
				if !yield(m, nil) {
					return
				}
			}
		}
	}
}

func always(*http.Request) bool { return true }
func never(*http.Request) bool  { return false }

// Law X1: a call that was in doubt is made again on another worker, under the same client
// and number and with a higher attempt, so it has one effect. This holds even if the
// worker was killed before it handed the message over, and only its source knows the
// message.
func TestInDoubt_CallKeepsItsID(t *testing.T) {
	t.Parallel() // it waits for the layer
	c, s := config()
	c.Layers = []ladder.Layer{{Queue: "1m", Delay: 4 * time.Second}}
	c.Remembers = 10 * time.Minute
	l, b := build(t, c), newBank(t)
	work(t, l, l.Source(messages(20)), b, "charges", always)
	counts, err := s.Count(t.Context(), "1m", store.Filter{})
	require.NoError(t, err)
	entries, err := s.List(t.Context(), "1m", store.Filter{}, store.Page{Max: 100})
	require.NoError(t, err)
	for _, e := range entries {
		require.True(t, e.Meta.UnsafeToRepeat)
		id, err := parseID(e.Meta.Request)
		require.NoError(t, err)
		require.Equal(t, 3, id.Attempt)
		require.WithinDuration(t, time.Now().Add(c.Remembers), e.Meta.Remembered, time.Minute)
	}
	require.Positive(t, counts.Messages, "the source ended before they were due")
	second := build(t, c) // another worker
	left := counts.Messages
	base := second.Source(nil)
	drained := make(chan message.Message[string], left)
	for len(drained) < left { // reads the messages of the layer, to deliver them by a source that ends
		ms, err := base.Receive(t.Context(), 10)
		require.NoError(t, err)
		for _, m := range ms {
			drained <- m
		}
	}
	close(drained)
	work(t, second, fixed{drained, base}, b, "charges", never)
	require.Empty(t, dead(t, s))
	for what, n := range b.effects {
		require.Equal(t, 1, n, what)
		ids := b.ids[what]
		require.Len(t, ids, 3, "%s: two attempts and a visit", what)
		for i, id := range ids {
			require.Equal(t, ids[0].Client, id.Client)
			require.Equal(t, ids[0].Sequence, id.Sequence)
			require.Equal(t, i+2, id.Attempt)
		}
	}
	require.Len(t, b.effects, 20)

	work(t, l, l.Source(messages(20)), b, "charges", never) // as if the messages had not been acknowledged
	for what, n := range b.effects {
		require.Equal(t, 1, n, what)
	}
}

// fixed is a source of messages that were received already.
type fixed struct {
	from chan message.Message[string]
	of   delivery.Source[string]
}

func (f fixed) Receive(context.Context, int) ([]message.Message[string], error) {
	m, ok := <-f.from
	if !ok {
		return nil, io.EOF
	}
	return []message.Message[string]{m}, nil
}

func (f fixed) Close(ctx context.Context) error { return f.of.Close(ctx) }

// A call is not repeated if the server may not recognise it, or does not remember it for
// as long as the ladder lasts.
func TestCallsInDoubtThatCannotBeMadeAgain(t *testing.T) {
	for name, change := range map[string]struct {
		remembers time.Duration
		also      []string // other requests of the call
		lost      func(*http.Request) bool
		want      store.Cause
	}{
		"remembered longer":       {remembers: 62 * time.Minute, lost: always},
		"remembered for less":     {remembers: 60 * time.Minute, lost: always, want: store.UnsafeToRepeat},
		"not said":                {lost: always, want: store.UnsafeToRepeat},
		"another without id":      {remembers: 62 * time.Minute, also: []string{"/audit"}, lost: func(r *http.Request) bool { return r.URL.Path == "/charges" }, want: store.UnsafeToRepeat},
		"only the one without id": {remembers: 62 * time.Minute, also: []string{"/audit"}, lost: always, want: store.UnsafeToRepeat},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := config()
			c.Remembers = change.remembers
			l, b := build(t, c), newBank(t)
			work(t, l, l.Source(messages(1)), b, "charges", change.lost, change.also...)
			letters := dead(t, s)
			if change.want == "" {
				require.Empty(t, letters)
				return
			}
			require.Len(t, letters, 1)
			require.Equal(t, change.want, letters[0].Cause)
			require.True(t, letters[0].Meta.UnsafeToRepeat)
			require.True(t, letters[0].Meta.Remembered.IsZero() || change.remembers > 0)
		})
	}
}

// inDoubt is the failure of a call that may have taken effect under an id.
func inDoubt() asyncop.Failure[string] {
	now := time.Now()
	return asyncop.Failure[string]{
		Element: "a", Err: io.ErrUnexpectedEOF, Attempts: 1, NoRetryReason: strategies.Refused, Reason: predicates.NewReason("LOST", false, false),
		InDoubt: true, Deduplicated: true, FirstAttempt: now, LastAttempt: now,
	}
}

// visit does the work of an operator with a tracker: it gives the message an id, and
// hands it over.
func visit(t *testing.T, l *ladder.Ladder[string], m message.Message[string], f asyncop.Failure[string]) exactlyonce.ID {
	t.Helper()
	tracker := caller.NewTracker(caller.Config{Name: "charges", Secret: []byte("0123456789abcdef")})
	ctx := tracker.Accepted(message.NewContext(t.Context(), m), nil, false)
	id, err := caller.NextID(tracker.AttemptStarted(ctx, 1))
	require.NoError(t, err)
	require.NoError(t, l.TakeFailure(ctx, f))
	m.Ack()
	return id
}

func one(t *testing.T, source delivery.Source[string]) message.Message[string] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Hour) // otherwise a test of a lost message would not end
	defer cancel()
	ms, err := source.Receive(ctx, 1)
	require.NoError(t, err)
	require.Len(t, ms, 1)
	return ms[0]
}

// A call stays in doubt over visits without evidence about it, and its time does not
// begin anew. A message that returns too late is not called. Its merge must be requested,
// and is another request.
func TestInDoubt_RememberedForATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		c.Remembers = 62 * time.Minute
		c.Options = append(c.Options, leases.WithMaxPoll(time.Second))
		l := build(t, c)
		m := message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {})
		began := time.Now()
		first := visit(t, l, m, inDoubt())
		source := l.Source(nil)
		m = one(t, source)
		require.Equal(t, began.Add(c.Remembers), m.Meta().Remembered.Local())
		refused := exhausted("a") // without a request
		refused.Attempts = 1
		second := visit(t, l, m, refused)
		require.Equal(t, first.Client, second.Client)
		require.Equal(t, first.Sequence, second.Sequence)
		require.Greater(t, second.Attempt, first.Attempt)
		m = one(t, source)
		require.True(t, m.Meta().UnsafeToRepeat)
		require.Equal(t, began.Add(c.Remembers), m.Meta().Remembered.Local())
		m.Nack(2 * time.Minute) // too late
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := source.Receive(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		letter := dead(t, s)[0]
		require.Equal(t, store.UnsafeToRepeat, letter.Cause)
		require.Equal(t, 2, letter.Meta.Visit)
		require.NoError(t, source.Close(t.Context()))

		require.Equal(t, jobs.Progress{Unsafe: 1}, merge(t, s, false))
		require.Equal(t, jobs.Progress{Done: 1}, merge(t, s, true))
		source = l.Source(nil)
		m = one(t, source)
		require.False(t, m.Meta().UnsafeToRepeat)
		again := visit(t, l, m, exhausted("a"))
		require.Equal(t, first.Client, again.Client)
		require.Equal(t, first.Sequence+1, again.Sequence)
		require.NoError(t, source.Close(t.Context()))
	})
}

// A merge returns a dead letter whose call the server still remembers, without an
// explicit request, under the same id.
func TestMergeOfWhatIsStillRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		c.Layers = c.Layers[:1]
		c.Remembers = time.Hour
		l := build(t, c)
		first := visit(t, l, message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {}), inDoubt())
		source := l.Source(nil)
		visit(t, l, one(t, source), exhausted("a"))
		require.Equal(t, store.UnsafeToRepeat, dead(t, s)[0].Cause)
		require.Equal(t, jobs.Progress{Done: 1}, merge(t, s, false))
		m := one(t, source)
		require.True(t, m.Meta().UnsafeToRepeat)
		again := visit(t, l, m, inDoubt())
		require.Equal(t, first.Client, again.Client)
		require.Equal(t, first.Sequence, again.Sequence)
		require.Greater(t, again.Attempt, first.Attempt)
		require.NoError(t, source.Close(t.Context()))
	})
}

// A FLIP-232 strategy does not prove anything about calls. If its predicate asked for
// another attempt, the user allows a repetition.
func TestFailuresUnderAFlipStrategy(t *testing.T) {
	for name, change := range map[string]struct {
		strategy strategies.Retry[string]
		want     []store.Cause // of the dead letter; empty if the message is in the layer
	}{
		"its predicate asked": {strategies.FixedDelay[string](1, 0).RetryIfException(predicates.HasException), nil},
		"it did not":          {strategies.FixedDelay[string](1, 0).RetryIfException(predicates.ErrorIs(io.EOF)), []store.Cause{store.UnsafeToRepeat}},
		"it did not, but the calls may happen twice": { // so the error is not known to be permanent
			strategies.PolicyOf(strategies.FixedDelay[string](1, 0).RetryIfException(predicates.ErrorIs(io.EOF))).Idempotent(), nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := config()
			c.Clock = clock.New()
			l := build(t, c)
			op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(context.Context, string) (string, error) { return "", errRefused }),
				time.Minute, 1, change.strategy, asyncop.WithFailureSink(l.TakeFailure))
			source := l.Source(messages(1))
			for _, err := range op.Messages(receive(t.Context(), source)) {
				require.NoError(t, err)
				require.Fail(t, "nothing comes out")
			}
			require.NoError(t, op.Wait())
			require.NoError(t, source.Close(t.Context()))
			var causes []store.Cause
			for _, e := range dead(t, s) {
				causes = append(causes, e.Cause)
			}
			require.True(t, slices.Equal(change.want, causes), causes)
		})
	}
}

// faulty is a store that refuses what goes to a queue while broken is set.
type faulty struct {
	*memory.Engine
	queue  string
	broken atomic.Bool
}

func (f *faulty) Put(ctx context.Context, queue string, ms ...store.Message) error {
	if queue == f.queue && f.broken.Load() {
		return errRefused
	}
	return f.Engine.Put(ctx, queue, ms...)
}

func (f *faulty) HandOver(ctx context.Context, moves ...store.Move) error {
	if moves[0].Queue == f.queue && f.broken.Load() {
		return errRefused
	}
	return f.Engine.HandOver(ctx, moves...)
}

// Law D4: a message that is too late and cannot be stored among the dead letters does not
// delay the messages of its batch. It stays in its layer until it can be stored.
func TestInDoubt_MessageThatCannotBeADeadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := config()
		f := &faulty{Engine: s, queue: "dead"}
		f.broken.Store(true)
		c.Store = f
		l := build(t, c)
		for _, m := range []message.Meta{{ID: "late", UnsafeToRepeat: true, Remembered: time.Now()}, {ID: "good"}} {
			stored, err := leases.Encode(c.Codec, m.ID, m)
			require.NoError(t, err)
			require.NoError(t, s.Put(t.Context(), "1m", stored))
		}
		source := l.Source(nil)
		defer func() { require.NoError(t, source.Close(context.Background())) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ms, err := source.Receive(ctx, 10)
		require.NoError(t, err)
		require.Len(t, ms, 1)
		require.Equal(t, "good", ms[0].Value)
		ms[0].Ack()
		_, err = source.Receive(ctx, 10)
		require.ErrorIs(t, err, errRefused)
		synctest.Wait()
		counts, err := s.Count(t.Context(), "1m", store.Filter{})
		require.NoError(t, err)
		require.Equal(t, 1, counts.Messages, "the late one waits, and the other is done")
		f.broken.Store(false)
		_, err = source.Receive(ctx, 10)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, store.UnsafeToRepeat, dead(t, s)[0].Cause)
	})
}

// panicking is an error that panics when it is looked into.
type panicking struct{ error }

func (panicking) Unwrap() error { panic("no error to look into") }

// A call in doubt enters a layer only if it is remembered for longer than all layers
// before its last visit can last: jitter and a wait that the server demands included, and
// without a sum that is too large for a Duration.
func TestInDoubt_HowLongItMustBeRemembered(t *testing.T) {
	const longest = math.MaxInt64
	for name, change := range map[string]struct {
		layers    []ladder.Layer
		remembers time.Duration
		err       error
		demanded  time.Duration
		elapsed   time.Duration // since an attempt that has no time
		enters    bool
	}{
		"as long as the layers":     {[]ladder.Layer{{Delay: time.Minute}, {Delay: time.Hour}}, time.Hour + time.Minute, nil, 0, 0, false},
		"longer":                    {[]ladder.Layer{{Delay: time.Minute}, {Delay: time.Hour}}, time.Hour + time.Minute + 1, nil, 0, 0, true},
		"as long as the jitter":     {[]ladder.Layer{{Delay: time.Minute, Jitter: 0.5}}, 90 * time.Second, nil, 0, 0, false},
		"longer than the jitter":    {[]ladder.Layer{{Delay: time.Minute, Jitter: 0.5}}, 90*time.Second + 1, nil, 0, 0, true},
		"a server's demand":         {[]ladder.Layer{{Delay: time.Minute}}, 2 * time.Minute, nil, time.Minute, 0, false},
		"longer than its demand":    {[]ladder.Layer{{Delay: time.Minute}}, 2*time.Minute + 1, nil, time.Minute, 0, true},
		"it began before":           {[]ladder.Layer{{Delay: time.Minute}}, 11 * time.Minute, nil, 0, 10 * time.Minute, false},
		"longer, and before":        {[]ladder.Layer{{Delay: time.Minute}}, 11*time.Minute + 1, nil, 0, 10 * time.Minute, true},
		"a jitter without end":      {[]ladder.Layer{{Delay: longest, Jitter: 1}}, time.Hour, nil, 0, 0, false},
		"layers without end":        {[]ladder.Layer{{Delay: longest / 3 * 2}, {Delay: longest / 3 * 2}}, time.Hour, nil, 0, 0, false},
		"an error that panics":      {[]ladder.Layer{{Delay: time.Minute}}, time.Hour, panicking{errRefused}, 0, 0, true},
		"nothing is remembered":     {[]ladder.Layer{{Delay: time.Minute}}, 0, nil, 0, 0, false},
		"one layer, hardly a delay": {[]ladder.Layer{{Delay: 1}}, 2, nil, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := config()
				for i := range change.layers {
					change.layers[i].Queue = strconv.Itoa(i + 1)
				}
				c.Layers, c.Remembers = change.layers, change.remembers
				f := inDoubt()
				if change.err != nil {
					f.Err = change.err
				}
				f.Demanded = change.demanded
				if change.elapsed > 0 {
					f.FirstAttempt, f.Elapsed = time.Time{}, change.elapsed
				}
				visit(t, build(t, c), message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {}), f)
				counts, err := s.Count(t.Context(), "1", store.Filter{})
				require.NoError(t, err)
				require.Equal(t, change.enters, counts.Messages == 1)
				require.Equal(t, !change.enters, len(dead(t, s)) == 1)
			})
		})
	}
}

// A layer's delay that cannot get longer is kept as it is.
func TestInDoubt_LayerWithoutEnd(t *testing.T) {
	c, s := config()
	c.Layers = []ladder.Layer{{Queue: "1m", Delay: math.MaxInt64, Jitter: 1}}
	take(t, build(t, c), message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {}))
	entries, err := s.List(t.Context(), "1m", store.Filter{}, store.Page{Max: 1})
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Greater(t, entries[0].Meta.Due.Year(), 2200)
}

// Law X1: a call in doubt stays marked, even if a later visit is refused for good, or the
// call of another operator gets into doubt as well: there is room for one id.
func TestInDoubt_StaysInDoubt(t *testing.T) {
	for name, second := range map[string]func(t *testing.T, l *ladder.Ladder[string], m message.Message[string]){
		"refused for good": func(t *testing.T, l *ladder.Ladder[string], m message.Message[string]) {
			f := exhausted("a")
			f.Attempts, f.Reason = 1, predicates.NewRejection("CARD_DECLINED")
			visit(t, l, m, f)
		},
		"another operator": func(t *testing.T, l *ladder.Ladder[string], m message.Message[string]) {
			tracker := caller.NewTracker(caller.Config{Name: "refunds", Secret: []byte("0123456789abcdef")})
			ctx := tracker.Accepted(message.NewContext(t.Context(), m), nil, false)
			_, err := caller.NextID(tracker.AttemptStarted(ctx, 1))
			require.NoError(t, err)
			require.NoError(t, l.TakeFailure(ctx, inDoubt()))
			m.Ack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := config()
				c.Remembers = 10 * time.Hour
				l := build(t, c)
				visit(t, l, message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {}), inDoubt())
				source := l.Source(nil)
				second(t, l, one(t, source))
				require.Equal(t, store.UnsafeToRepeat, dead(t, s)[0].Cause)
				require.NoError(t, source.Close(t.Context()))
			})
		})
	}
}

// parseID reads an id.
func parseID(text string) (id exactlyonce.ID, err error) {
	err = id.UnmarshalText([]byte(text))
	return id, err
}
