package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

// modelRequest is a request in a model of Results.
type modelRequest struct {
	handlers map[*server.Call]bool // empty if the request does not run
	driver   *server.Call
	waiting  map[*server.Call]bool
	err      error // of the driver that left
	done     bool
	answer   string
	touched  time.Duration
	gone     bool
	doubt    bool // gone, if it ends without an answer
	print    byte
}

type modelKey struct {
	seq  int64
	step string
}

// resultsModel is a slow and simple model of Results with one client.
type resultsModel struct {
	now, age, silence time.Duration
	requests          map[modelKey]*modelRequest
	before            int64
	heard             time.Duration
}

func (m *resultsModel) running() (n int) {
	for _, q := range m.requests {
		if len(q.handlers) > 0 {
			n++
		}
	}
	return n
}

func (m *resultsModel) collect() {
	for _, q := range m.requests {
		if q.done && m.now-q.touched >= m.age {
			q.done, q.gone = false, true
		}
	}
	switch {
	case m.running() > 0:
	case m.now-m.heard >= 24*m.silence:
		m.requests, m.before = map[modelKey]*modelRequest{}, 0
	case m.now-m.heard >= m.silence: // numbers up to the highest that is done or gone are STALE, the rest is NEW
		for key, q := range m.requests {
			if q.done || q.gone {
				m.before = max(m.before, key.seq+1)
			}
		}
		m.requests = map[modelKey]*modelRequest{}
	}
}

// track returns the state that an attempt finds, and its request.
func (m *resultsModel) track(req exactlyonce.Request) (string, *modelRequest) {
	m.heard = m.now
	m.before = max(m.before, req.First)
	key := modelKey{req.Sequence, req.Step}
	q := m.requests[key]
	if q == nil {
		q = &modelRequest{handlers: map[*server.Call]bool{}, waiting: map[*server.Call]bool{}}
		m.requests[key] = q
	}
	mismatch := q.print != 0 && req.Fingerprint[0] != 0 && q.print != req.Fingerprint[0]
	switch {
	case req.Sequence < m.before || q.gone:
		return "STALE", q
	case len(q.handlers) > 0 && mismatch, q.done && mismatch:
		return "MISMATCH", q
	case len(q.handlers) > 0:
		return "IN_PROGRESS", q
	case q.done:
		q.touched = m.now
		return "COMPLETED", q
	}
	q.print = req.Fingerprint[0]
	return "NEW", q
}

// left ends a handler.
func (m *resultsModel) left(q *modelRequest, call *server.Call, err error) {
	if q.driver == call || q.err == nil {
		q.err = err
	}
	if q.driver == call {
		q.driver = nil
	}
	delete(q.handlers, call)
	m.heard = m.now
}

// X1: with attempts and ends in any order, and changes of drivers, Results behave like
// the model.
func TestResultsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mock := &handClock{Clock: clock.New()}
		m := &resultsModel{age: 10 * time.Second, silence: 30 * time.Second, requests: map[modelKey]*modelRequest{}}
		r := server.NewResults(server.Config{
			AnswerAge: m.age, ClientSilence: m.silence, Clock: mock, MaxWaiters: 1000,
		})
		defer func() { require.NoError(t, r.Close(context.Background())) }()
		handlers, waiting := map[*server.Call]*modelRequest{}, map[*server.Call]*modelRequest{}
		var calls []*server.Call // in the order in which they came
		attempts := 0

		track := func(t *rapid.T, takeOver bool) {
			attempts++
			req := exactlyonce.Request{ID: exactlyonce.ID{
				Client: client, Sequence: rapid.Int64Range(1, 6).Draw(t, "seq"), Attempt: attempts,
				Step: rapid.SampledFrom([]string{"", "", "b"}).Draw(t, "step"),
			}}
			if rapid.IntRange(0, 9).Draw(t, "marks") == 0 {
				req.First = rapid.Int64Range(1, req.Sequence).Draw(t, "first")
			}
			req.Fingerprint[0] = rapid.SampledFrom([]byte{0, 1, 1, 1, 1, 2}).Draw(t, "fingerprint")
			want, q := m.track(req)
			var call *server.Call
			var err error
			if takeOver {
				call, err = r.TakeOver(req)
			} else {
				call, err = r.Track(context.Background(), req)
			}
			got := ""
			switch {
			case errors.Is(err, exactlyonce.ErrStale):
				got = "STALE"
			case errors.Is(err, exactlyonce.ErrMismatch):
				got = "MISMATCH"
			default:
				require.NoError(t, err)
				got = call.State()
			}
			if takeOver && want == "IN_PROGRESS" {
				want = "NEW"
			}
			require.Equal(t, want, got, "%v", req)
			calls = append(calls, call)
			switch got {
			case "NEW":
				q.handlers[call], q.driver, handlers[call] = true, call, q
			case "IN_PROGRESS":
				q.waiting[call], waiting[call] = true, q
			case "COMPLETED":
				answer, err := call.Wait(context.Background())
				require.NoError(t, err)
				require.Equal(t, q.answer, string(answer))
			}
		}
		// ended checks that the calls that wait for q got its result.
		ended := func(t *rapid.T, q *modelRequest) {
			if len(q.handlers) > 0 {
				return
			}
			for call := range q.waiting {
				answer, err := call.Wait(context.Background())
				if q.done {
					require.NoError(t, err)
					require.Equal(t, q.answer, string(answer))
				} else {
					require.Equal(t, cmp.Or(q.err, server.ErrNoAnswer), err)
				}
				delete(waiting, call)
			}
			clear(q.waiting)
			q.gone = q.doubt && !q.done
			q.err, q.doubt = nil, false
			for key, other := range m.requests {
				if other == q && key.seq < m.before {
					q.done = false // removed, and STALE by the mark
				}
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"track":    func(t *rapid.T) { track(t, false) },
			"takeOver": func(t *rapid.T) { track(t, true) },
			"complete": func(t *rapid.T) {
				call := pick(t, calls, handlers)
				q := handlers[call]
				delete(handlers, call)
				answer := fmt.Sprint("by ", attempts, " of ", len(handlers))
				err := call.Complete([]byte(answer))
				if q.driver != call {
					require.ErrorIs(t, err, exactlyonce.ErrInProgress)
					if q.handlers[call] {
						delete(q.handlers, call)
						m.heard = m.now
						ended(t, q)
					}
					return
				}
				require.NoError(t, err)
				q.driver, q.done, q.answer, q.touched, q.err = nil, true, answer, m.now, nil
				clear(q.handlers) // the remaining ones no longer count
				m.heard = m.now
				ended(t, q)
			},
			"fail": func(t *rapid.T) {
				call := pick(t, calls, handlers)
				q := handlers[call]
				delete(handlers, call)
				err := fmt.Errorf("failure %d", attempts)
				doubt := rapid.IntRange(0, 9).Draw(t, "in doubt") == 0
				if doubt {
					err = fmt.Errorf("%w: %w", exactlyonce.ErrStale, err)
				}
				call.Fail(err)
				if !q.handlers[call] {
					return // after the end
				}
				m.left(q, call, err)
				q.doubt = q.doubt || doubt
				ended(t, q)
			},
			"leave": func(t *rapid.T) {
				call := pick(t, calls, waiting)
				call.Fail(nil)
				delete(waiting[call].waiting, call)
				delete(waiting, call)
			},
			"wait": func(t *rapid.T) {
				d := rapid.SampledFrom([]time.Duration{1, 9 * time.Second, 10 * time.Second, 30 * time.Second, 24 * 30 * time.Second}).Draw(t, "time")
				m.now += d
				mock.now = m.now
				require.NoError(t, r.Collect(context.Background()))
				m.collect()
			},
			"": func(t *rapid.T) {
				s := r.Stats()
				done := 0
				for key, q := range m.requests {
					if q.done && key.seq >= m.before {
						done++
					}
				}
				require.Equal(t, m.running(), s.InProgress)
				require.Equal(t, m.running()+done, s.Records)
				require.Equal(t, len(waiting), s.Waiting)
				require.GreaterOrEqual(t, s.Bytes, int64(0))
				if s.Clients == 0 && m.before == 0 {
					require.Zero(t, s.Bytes)
				}
			},
		})
		for call := range handlers {
			call.Fail(nil)
		}
		for call := range waiting {
			_, _ = call.Wait(context.Background())
		}
		for range 2 {
			mock.now += 24 * m.silence
			require.NoError(t, r.Collect(context.Background()))
		}
		require.Zero(t, r.Stats().Bytes)
		require.Zero(t, r.Stats().Records)
	})
}

// pick returns one of the remaining calls.
func pick(
	t *rapid.T, calls []*server.Call, left map[*server.Call]*modelRequest,
) *server.Call {
	if len(left) == 0 {
		t.Skip("no call")
	}
	var among []*server.Call
	for _, call := range calls {
		if left[call] != nil {
			among = append(among, call)
		}
	}
	return among[rapid.IntRange(0, len(among)-1).Draw(t, "call")]
}

// handClock is set by the test. Its timers are real ones, and do not fire in a test.
type handClock struct {
	clock.Clock
	now time.Duration
}

func (c *handClock) Now() time.Time                      { return time.Unix(0, 0).Add(c.now) }
func (c *handClock) Since(start time.Time) time.Duration { return c.Now().Sub(start) }
