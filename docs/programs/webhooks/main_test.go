package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
)

const patience = 2 * time.Minute // of a test on a busy machine

// endpoint is the endpoint of a customer, which counts its calls.
type endpoint struct {
	answer func(w http.ResponseWriter, r *http.Request)

	mu            sync.Mutex
	ids           []string // of the events it was called for
	running, most int      // calls at a time
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	e.ids = append(e.ids, r.Header.Get("Webhook-Id"))
	e.running++
	e.most = max(e.most, e.running)
	e.mu.Unlock()
	e.answer(w, r)
	e.mu.Lock()
	e.running--
	e.mu.Unlock()
}

func (e *endpoint) calls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.ids...)
}

// open returns a sender whose customers have these endpoints, and "s1" as their secret.
func open(t *testing.T, turns delivery.QueueOption, endpoints map[string]*endpoint) *sender {
	t.Helper()
	engine, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "shop.db"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engine.Close()) })
	s, err := newSender(engine, turns)
	require.NoError(t, err)
	s.exec(t, tables)
	for name, e := range endpoints {
		server := httptest.NewServer(e)
		t.Cleanup(server.Close)
		s.exec(t, "INSERT INTO customers (name, url, secrets) VALUES (?, ?, 's1')", name, server.URL)
	}
	return s
}

func (s *sender) exec(t *testing.T, statement string, args ...any) {
	t.Helper()
	_, err := s.engine.DB().Writer().ExecContext(t.Context(), statement, args...)
	require.NoError(t, err)
}

// start runs the sender. stop ends it, and returns the error of run.
func (s *sender) start(t *testing.T) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	t.Cleanup(func() { require.NoError(t, stop()) })
	return stop
}

func (s *sender) counts(t *testing.T) delivery.QueueCounts {
	t.Helper()
	counts, err := s.events.Counts(t.Context())
	require.NoError(t, err)
	counts.Age = 0
	return counts
}

func answers(status int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
}

// isSigned reports whether a request has a signature that was made with a secret.
func isSigned(r *http.Request, body []byte, secret string) bool {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(r.Header.Get("Webhook-Id") + "." + r.Header.Get("Webhook-Timestamp") + "." + string(body)))
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for signature := range strings.FieldsSeq(r.Header.Get("Webhook-Signature")) {
		if hmac.Equal([]byte(signature), []byte(want)) {
			return true
		}
	}
	return false
}

func TestBook_EventIsInTheTransaction(t *testing.T) {
	s := open(t, delivery.WithFairByKey(5), map[string]*endpoint{"ann": {answer: answers(200)}})
	require.NoError(t, s.book(t.Context(), "17", "ann"))
	require.Error(t, s.book(t.Context(), "17", "ann"), "this booking exists")
	require.ErrorContains(t, s.book(t.Context(), "18", "unknown"), "no rows")
	require.Equal(t, delivery.QueueCounts{Waiting: 1}, s.counts(t))
}

// A customer changes its secret. While both are stored, requests have a signature of each.
// Events that were refused before are sent again with the new secret.
func TestSend_ChangedSecret(t *testing.T) {
	ann := &endpoint{answer: func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || !isSigned(r, body, "s2") {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}}
	s := open(t, delivery.WithFairByKey(5), map[string]*endpoint{"ann": ann})
	s.start(t)
	require.NoError(t, s.book(t.Context(), "17", "ann"))
	require.Eventually(t, func() bool { return s.counts(t) == delivery.QueueCounts{Dead: 1} }, patience, 10*time.Millisecond)

	s.exec(t, "UPDATE customers SET secrets = 's2 s1' WHERE name = 'ann'")
	job, err := s.jobs.Start(t.Context(), jobs.Spec{
		Do: store.Merge, Queue: s.events.DeadLetters(), To: s.events.Name(), Filter: store.Filter{Key: "ann"},
		By: "bob", Why: "ann has told us the new secret",
	})
	require.NoError(t, err)
	_, err = s.jobs.Run(t.Context(), job.ID, nil) // otherwise a worker runs it within 20 s
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.counts(t) == delivery.QueueCounts{} }, patience, 10*time.Millisecond)
	require.Equal(t, []string{"booked/17", "booked/17"}, ann.calls())
}

// A customer whose endpoint is gone gets no event that waits, and no new event. Its dead
// letters are removed. Others get their events.
func TestSend_EndpointIsGone(t *testing.T) {
	const events = 100
	ann, bob := &endpoint{answer: answers(http.StatusNotFound)}, &endpoint{answer: answers(http.StatusNoContent)}
	s := open(t, delivery.WithFairByKey(5), map[string]*endpoint{"ann": ann, "bob": bob})
	require.NoError(t, s.book(t.Context(), "first", "ann"))
	stop := s.start(t)
	require.Eventually(t, func() bool { return s.counts(t) == delivery.QueueCounts{Dead: 1} }, patience, 10*time.Millisecond)
	require.NoError(t, stop())

	ann.answer = answers(http.StatusGone)
	for i := range events {
		require.NoError(t, s.book(t.Context(), fmt.Sprint("a", i), "ann"))
	}
	require.NoError(t, s.book(t.Context(), "b", "bob"))
	s.start(t)
	require.Eventually(t, func() bool { return s.counts(t).Waiting == 0 }, patience, 10*time.Millisecond)
	list, err := s.jobs.List(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, job := range list {
		_, err := s.jobs.Run(t.Context(), job.ID, nil) // otherwise a worker runs it within 20 s
		require.NoError(t, err)
	}
	require.Equal(t, delivery.QueueCounts{}, s.counts(t))
	require.Equal(t, []string{"booked/b"}, bob.calls())
	require.LessOrEqual(t, len(ann.calls()), 1+5, "the first event, and a call for each place of the customer")

	require.NoError(t, s.book(t.Context(), "later", "ann"))
	require.Equal(t, delivery.QueueCounts{}, s.counts(t))
}

// A customer whose endpoint is down does not delay the others, and has at most five calls
// at a time from two senders.
func TestSend_EndpointIsDown(t *testing.T) {
	const events = 50
	ann, bob := &endpoint{answer: answers(http.StatusServiceUnavailable)}, &endpoint{answer: answers(http.StatusOK)}
	s := open(t, delivery.WithFairByKey(5), map[string]*endpoint{"ann": ann, "bob": bob})
	for i := range events {
		require.NoError(t, s.book(t.Context(), fmt.Sprint("a", i), "ann"))
		require.NoError(t, s.book(t.Context(), fmt.Sprint("b", i), "bob"))
	}
	s.start(t)
	s.start(t)
	require.Eventually(t, func() bool { return len(bob.calls()) == events }, patience, 10*time.Millisecond)
	require.Less(t, len(ann.calls()), events)
	ann.mu.Lock()
	defer ann.mu.Unlock()
	require.LessOrEqual(t, ann.most, 5)
}

// A redirect could lead to an address inside the network of the sender.
func TestSend_RedirectsAreNotFollowed(t *testing.T) {
	bob := &endpoint{answer: answers(http.StatusOK)}
	inside := httptest.NewServer(bob)
	defer inside.Close()
	ann := &endpoint{answer: func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, inside.URL, http.StatusTemporaryRedirect)
	}}
	s := open(t, delivery.WithFairByKey(5), map[string]*endpoint{"ann": ann})
	require.NoError(t, s.book(t.Context(), "17", "ann"))
	s.start(t)
	require.Eventually(t, func() bool { return s.counts(t) == delivery.QueueCounts{Retrying: 1} }, patience, 10*time.Millisecond)
	require.Empty(t, bob.calls())
}

func TestNewSender_Ordered(t *testing.T) {
	ann := &endpoint{answer: answers(http.StatusOK)}
	s := open(t, delivery.WithOrdered(), map[string]*endpoint{"ann": ann})
	var want []string
	for i := range 20 {
		require.NoError(t, s.book(t.Context(), fmt.Sprint(i), "ann"))
		want = append(want, fmt.Sprint("booked/", i))
	}
	s.start(t)
	require.Eventually(t, func() bool { return s.counts(t) == delivery.QueueCounts{} }, patience, 10*time.Millisecond)
	require.Equal(t, want, ann.calls())
	require.Equal(t, 1, ann.most)
}

// A sender that is stopped finishes the call that runs.
func TestRun_IsStopped(t *testing.T) {
	called, answered := make(chan struct{}), make(chan struct{})
	ann := &endpoint{answer: func(http.ResponseWriter, *http.Request) {
		called <- struct{}{}
		<-answered
	}}
	s := open(t, delivery.WithFairByKey(5), map[string]*endpoint{"ann": ann})
	require.NoError(t, s.book(t.Context(), "17", "ann"))
	stop := s.start(t)
	<-called
	go close(answered)
	require.NoError(t, stop())
	require.Equal(t, delivery.QueueCounts{}, s.counts(t))
}
