package ladder_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/delivery/internal/ladder"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/caller"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/predicates/httpretry"
	"github.com/weirflow/weir/strategies"
)

// strictBank is a service with a tracker. It refuses charges with 402, and accepts
// everything else. An authentication in front of the tracker refuses all requests with
// 401 while isLocked is set.
type strictBank struct {
	*httptest.Server
	isLocked atomic.Bool
	charges  atomic.Int32 // how often the handler of charges ran
}

func newStrictBank(t *testing.T) *strictBank {
	t.Helper()
	b := &strictBank{}
	results := server.NewResults(server.Config{})
	tracked := results.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/charges" {
			b.charges.Add(1)
			w.WriteHeader(http.StatusPaymentRequired)
		}
	}), server.HandlerConfig{Scope: func(*http.Request) (string, bool) { return "test", true }})
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if b.isLocked.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		tracked.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		b.Close()
		require.NoError(t, results.Close(context.Background()))
	})
	return b
}

// step is a request of a call, and its fate in the network.
type step struct {
	path string
	name string // of caller.WithStep
	ends string // "answered", "answer lost", or "request lost"
}

// network is an http.RoundTripper which loses requests and answers according to their
// steps.
type network struct {
	base http.RoundTripper
	ends atomic.Value // a string: of the step that runs
}

func (n *network) RoundTrip(req *http.Request) (*http.Response, error) {
	if n.ends.Load() == "request lost" {
		return nil, io.ErrUnexpectedEOF
	}
	resp, err := n.base.RoundTrip(req)
	if err == nil && n.ends.Load() == "answer lost" {
		_ = resp.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

// visitBank runs an operator for a message. The call of each attempt makes the steps of
// that attempt, until one fails. It returns how the element ended.
func visitBank(t *testing.T, l *ladder.Ladder[string], b *strictBank, m message.Message[string], attempts ...[]step) observe.Ending {
	t.Helper()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	n := &network{base: base}
	client := &http.Client{Transport: caller.Transport(n, b.URL+"/")}
	ends := &lastEnding{}
	op := asyncop.OrderedWaitWithRetry(asyncop.Blocking(func(ctx context.Context, in string) (string, error) {
		for _, s := range attempts[asyncop.AttemptFromContext(ctx)-1] {
			n.ends.Store(s.ends)
			if s.path == "/lock" {
				b.isLocked.Store(true)
				continue
			}
			sending := ctx
			if s.name != "" {
				sending = caller.WithStep(ctx, s.name)
			}
			req, err := http.NewRequestWithContext(sending, http.MethodPost, b.URL+s.path, strings.NewReader(in))
			if err != nil {
				return "", err
			}
			resp, err := client.Do(req)
			if err != nil {
				return "", err
			}
			_ = resp.Body.Close()
			err = httpretry.CheckResponse(resp)
			if err != nil {
				return "", err
			}
		}
		return in, nil
	}), time.Hour, 1, strategies.ReasonAware(httpretry.Classifier[string](), strategies.ReasonStrategyFunc[string](
		func(_ context.Context, a *predicates.Attempt[string]) (strategies.Action, error) {
			if a.Number == len(attempts) || !a.Idempotent {
				return strategies.Action{}, nil
			}
			return strategies.RetryAfter(0), nil
		})),
		asyncop.WithObserver(caller.NewTracker(caller.Config{Name: "charges", Secret: []byte("0123456789abcdef")})),
		asyncop.WithObserver(ends), asyncop.WithFailureSink(l.TakeFailure))
	for m, err := range op.Messages(func(yield func(message.Message[string], error) bool) { yield(m, nil) }) {
		require.NoError(t, err)
		m.Ack()
	}
	require.NoError(t, op.Wait())
	return ends.ending
}

// lastEnding is an observer that keeps how the last element ended.
type lastEnding struct{ ending observe.Ending }

func (*lastEnding) Accepted(ctx context.Context, _ any, _ bool) context.Context { return ctx }
func (*lastEnding) AttemptStarted(ctx context.Context, _ int) context.Context   { return ctx }
func (*lastEnding) AttemptEnded(context.Context, observe.Outcome)               {}
func (l *lastEnding) Ended(_ context.Context, e observe.Ending)                 { l.ending = e }

// Law X1: a server that keeps a refusal as its answer to a request has executed no
// attempt of the request. So neither the element nor its dead letter is in doubt. Other
// requests of the call stay in doubt, and so does a request that was refused by something
// in front of the tracker.
func TestTake_RefusalOfACallInDoubt(t *testing.T) {
	charge := func(ends string) []step { return []step{{path: "/charges", ends: ends}} }
	for name, tt := range map[string]struct {
		attempts [][]step
		isLocked bool // in the last attempt
		charges  int32
		inDoubt  bool
		want     store.Repetition
	}{
		"the refusal was lost":       {attempts: [][]step{charge("answer lost"), charge("answered")}, charges: 1, want: store.RepeatPointless},
		"two refusals were lost":     {attempts: [][]step{charge("answer lost"), charge("answer lost"), charge("answered")}, charges: 1, want: store.RepeatPointless},
		"the request was lost":       {attempts: [][]step{charge("request lost"), charge("answered")}, charges: 1, want: store.RepeatPointless},
		"refused before the tracker": {attempts: [][]step{charge("answer lost"), charge("answered")}, isLocked: true, charges: 1, inDoubt: true, want: store.RepeatInDoubt},
		"another request in doubt": {
			attempts: [][]step{
				{{path: "/reserve", name: "reserve", ends: "answer lost"}},
				{{path: "/charges", name: "charge", ends: "answered"}},
			}, charges: 1, inDoubt: true, want: store.RepeatInDoubt,
		},
		"another request took effect": {
			attempts: [][]step{
				{{path: "/reserve", name: "reserve", ends: "answered"}, {path: "/charges", name: "charge", ends: "answer lost"}},
				{{path: "/charges", name: "charge", ends: "answered"}},
			}, charges: 1, inDoubt: true, want: store.RepeatInDoubt,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := config()
			l, b := build(t, c), newStrictBank(t)
			if tt.isLocked {
				last := tt.attempts[len(tt.attempts)-1]
				tt.attempts[len(tt.attempts)-1] = append([]step{{path: "/lock"}}, last...)
			}
			m := message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {})
			ending := visitBank(t, l, b, m, tt.attempts...)
			require.Equal(t, tt.inDoubt, ending.InDoubt)
			require.Equal(t, tt.charges, b.charges.Load())
			letters := dead(t, s)
			require.Len(t, letters, 1)
			require.Equal(t, tt.inDoubt, letters[0].Meta.UnsafeToRepeat)
			require.Equal(t, tt.inDoubt, letters[0].Cause == store.UnsafeToRepeat)
			require.Equal(t, tt.want, letters[0].Repetition(time.Now()))
		})
	}
}

// Law X1: as above, over visits. An id that does not name the only request in doubt, such
// as an id that a worker of an earlier version has stored, does not prove anything.
func TestTake_RefusalInTheNextVisit(t *testing.T) {
	charge := func(ends string) []step { return []step{{path: "/charges", ends: ends}} }
	steps := func(reserve, charge string) []step {
		return []step{{path: "/reserve", name: "reserve", ends: reserve}, {path: "/charges", name: "charge", ends: charge}}
	}
	for name, tt := range map[string]struct {
		first, second []step
		isOlder       bool // the first worker is of an earlier version
		want          store.Repetition
	}{
		"the only request":        {first: charge("answer lost"), second: charge("answered"), want: store.RepeatPointless},
		"the only request, named": {first: steps("", "answer lost")[1:], second: steps("", "answered")[1:], want: store.RepeatPointless},
		"an earlier version":      {first: charge("answer lost"), second: charge("answered"), isOlder: true, want: store.RepeatSafeUntil},
		"another request":         {first: steps("answered", "answer lost"), second: steps("", "answered")[1:], want: store.RepeatSafeUntil},
		"again in doubt":          {first: charge("answer lost"), second: charge("answer lost"), want: store.RepeatSafeUntil},
	} {
		t.Run(name, func(t *testing.T) {
			c, s := config()
			c.Layers = []ladder.Layer{{Queue: "1m", Delay: time.Millisecond}}
			c.Remembers = time.Hour
			l, b := build(t, c), newStrictBank(t)
			m := message.New("a", &message.Meta{ID: "a"}, func(message.Settlement) {})
			visitBank(t, l, b, m, tt.first)
			require.Empty(t, dead(t, s), "it waits in the layer")
			source := l.Source(nil)
			m = one(t, source)
			require.True(t, m.Meta().UnsafeToRepeat)
			var id exactlyonce.ID
			require.NoError(t, id.UnmarshalText([]byte(m.Meta().Request)))
			if tt.isOlder {
				meta := m.Meta()
				id.Step = ""
				meta.Request = id.String()
				m = message.New("a", &meta, func(message.Settlement) {})
			}
			visitBank(t, l, b, m, tt.second)
			require.EqualValues(t, 1, b.charges.Load())
			letters := dead(t, s)
			require.Len(t, letters, 1)
			require.Equal(t, tt.want, letters[0].Repetition(time.Now()))
			isInDoubt := tt.want == store.RepeatSafeUntil
			require.Equal(t, isInDoubt, letters[0].Meta.UnsafeToRepeat)
			require.Equal(t, isInDoubt, letters[0].Meta.Request != "")
			require.Equal(t, isInDoubt, letters[0].Cause == store.UnsafeToRepeat)
			require.NoError(t, source.Close(t.Context()))
		})
	}
}
