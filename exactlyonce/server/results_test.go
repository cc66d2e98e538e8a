package server_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/internal/oncewire"
)

// client is 0af7651916cd43dd8448eb211c80319c.
var client = exactlyonce.Client{
	0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c,
}

var errHandler = errors.New("handler failed")

// request returns attempt 1 of a request of client, without First.
func request(seq int64) exactlyonce.Request {
	return exactlyonce.Request{ID: exactlyonce.ID{Client: client, Sequence: seq, Attempt: 1}}
}

func attempt(seq int64, n int) exactlyonce.Request {
	req := request(seq)
	req.Attempt = n
	return req
}

// since returns a request whose client has finished everything below first.
func since(seq, first int64) exactlyonce.Request {
	req := request(seq)
	req.First = first
	return req
}

func newResults(t *testing.T, c server.Config) (*server.Results, *clock.Mock) {
	t.Helper()
	mock := clock.NewMock()
	if c.Clock == nil {
		c.Clock = mock
	}
	r := server.NewResults(c)
	t.Cleanup(func() { require.NoError(t, r.Close(context.Background())) })
	return r, mock
}

// state tracks an attempt and returns the state that it found. A NEW attempt fails at
// once.
func state(t *testing.T, r *server.Results, req exactlyonce.Request) string {
	t.Helper()
	call, err := r.Track(t.Context(), req)
	switch {
	case errors.Is(err, exactlyonce.ErrStale):
		return "STALE"
	case err != nil:
		return err.Error()
	}
	defer call.Fail(nil)
	return call.State()
}

// complete runs a NEW request.
func complete(t *testing.T, r *server.Results, req exactlyonce.Request, answer string) {
	t.Helper()
	call, err := r.Track(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, "NEW", call.State())
	require.NoError(t, call.Complete([]byte(answer)))
}

// begin tracks a NEW request and leaves it running.
func begin(t *testing.T, r *server.Results, req exactlyonce.Request) *server.Call {
	t.Helper()
	call, err := r.Track(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, "NEW", call.State())
	t.Cleanup(func() { call.Fail(nil) })
	return call
}

func attach(t *testing.T, r *server.Results, req exactlyonce.Request) *server.Call {
	t.Helper()
	call, err := r.Track(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, "IN_PROGRESS", call.State())
	return call
}

func replay(t *testing.T, r *server.Results, req exactlyonce.Request) string {
	t.Helper()
	call, err := r.Track(t.Context(), req)
	require.NoError(t, err)
	require.Equal(t, "COMPLETED", call.State())
	answer, err := call.Wait(t.Context())
	require.NoError(t, err)
	return string(answer)
}

// X1: an attempt finds NEW, IN_PROGRESS, COMPLETED or STALE, and the handler runs once.
func TestResults_FourStates(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	call := begin(t, r, request(1))
	require.True(t, call.IsDriver())
	waits := attach(t, r, attempt(1, 2))
	require.False(t, waits.IsDriver())
	require.Equal(t, 1, r.Stats().Waiting)
	require.NoError(t, call.Complete([]byte("answer")))
	require.False(t, call.IsDriver())
	call.Fail(nil) // no effect

	answer, err := waits.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "answer", string(answer))
	require.Equal(t, "answer", replay(t, r, attempt(1, 3)))
	require.Equal(t, "NEW", state(t, r, since(2, 2)))
	require.Equal(t, "STALE", state(t, r, attempt(1, 4)))

	s := r.Stats()
	require.Equal(t, [...]uint64{2, 1, 1, 1}, [...]uint64{s.New, s.Attached, s.Replayed, s.Stale})
	require.Equal(t, [...]uint64{1, 1, 1}, [...]uint64{s.Completed, s.Failed, s.Acknowledged}, "2 has failed")
	require.Equal(t, [...]int{1, 0, 0, 0}, [...]int{s.Clients, s.Records, s.InProgress, s.Waiting})
}

// STALE is a separate, permanent error, and does not depend on whether the request ever
// ran.
func TestE1StaleMeansThatTheOutcomeIsUnknown(t *testing.T) {
	r, mock := newResults(t, server.Config{})
	complete(t, r, since(5, 5), "")
	for range 2 {
		_, found, err := r.Do(t.Context(), request(4), func(context.Context) ([]byte, error) {
			t.Error("a stale request must not run")
			return nil, nil
		})
		require.Equal(t, exactlyonce.ErrStale, err)
		require.False(t, found)
	}
	mock.Add(time.Hour - 1)
	require.Equal(t, "STALE", state(t, r, request(3)), "it keeps the client remembered")
	mock.Add(time.Hour - 1)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, "STALE", state(t, r, request(3)))
}

// The mark moves with the first incomplete number, even without records to remove, for
// known and unknown clients.
func TestE2MarkMovesDirectly(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	require.Equal(t, "NEW", state(t, r, since(10, 8)))
	require.Equal(t, "STALE", state(t, r, since(7, 1)), "unknown client")
	require.Equal(t, "NEW", state(t, r, since(20, 15)))
	require.Equal(t, "STALE", state(t, r, request(14)), "a straggler in the gap")
	require.Equal(t, "NEW", state(t, r, request(15)))
	require.Equal(t, "NEW", state(t, r, since(16, 2)), "the mark never falls")
	require.Equal(t, "STALE", state(t, r, request(14)))
	require.Equal(t, "NEW", state(t, r, since(oncewire.MaxSequence, oncewire.MaxSequence)))
	require.Equal(t, "STALE", state(t, r, request(oncewire.MaxSequence-1)))
}

// A request that declares itself done is refused and has no effect.
func TestE3InvalidIDsAreRefused(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	complete(t, r, request(1), "once")
	_, err := r.Track(t.Context(), since(1, 2))
	require.ErrorIs(t, err, exactlyonce.ErrInvalid)
	_, err = r.TakeOver(since(1, 2))
	require.ErrorIs(t, err, exactlyonce.ErrInvalid)
	require.Equal(t, "once", replay(t, r, request(1)))
	require.Equal(t, uint64(2), r.Stats().Invalid)
}

// A lower attempt finds the same as a higher one.
func TestE4LowerAttempt(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	call := begin(t, r, attempt(1, 7))
	waits := attach(t, r, attempt(1, 3))
	require.NoError(t, call.Complete([]byte("7")))
	answer, err := waits.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "7", string(answer))
	require.Equal(t, "7", replay(t, r, attempt(1, 2)))
}

// The same attempt twice, duplicated on its way, is handled as two attempts.
func TestE5SameAttemptTwice(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	call := begin(t, r, request(1))
	waits := attach(t, r, request(1))
	require.NoError(t, call.Complete([]byte("once")))
	answer, err := waits.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "once", string(answer))
	require.Equal(t, "once", replay(t, r, request(1)))
}

// A client that reuses an identity does not get the answer of another request.
func TestE6IdentityUsedAgain(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	first, second := request(1), request(1)
	first.Fingerprint[0], second.Fingerprint[0] = 1, 2
	complete(t, r, first, "of the first")
	_, err := r.Track(t.Context(), second)
	require.ErrorIs(t, err, exactlyonce.ErrMismatch)
	require.Equal(t, "of the first", replay(t, r, first))

	other := request(1)
	other.Scope = "another principal"
	require.Equal(t, "NEW", state(t, r, other))
	other = request(1)
	other.Client = exactlyonce.NewClient()
	require.Equal(t, "NEW", state(t, r, other))
}

// The server also bounds the number of requests: see the tests of the limits. This test
// is about waiting attempts.
func TestE7Track_TooManyOutstanding(t *testing.T) {
	r, _ := newResults(t, server.Config{MaxWaiters: 2, MaxRecords: 4})
	begin(t, r, request(1))
	begin(t, r, request(2))
	_, err := r.Track(t.Context(), request(3))
	require.ErrorIs(t, err, exactlyonce.ErrFull)
	attach(t, r, attempt(1, 2)).Fail(nil)
	a, b := attach(t, r, attempt(1, 3)), attach(t, r, attempt(1, 4))
	_, err = r.Track(t.Context(), attempt(1, 5))
	require.ErrorIs(t, err, exactlyonce.ErrInProgress)
	a.Fail(nil)
	attach(t, r, attempt(1, 6)).Fail(nil)
	b.Fail(nil)
	s := r.Stats()
	require.Equal(t, [...]uint64{1, 1}, [...]uint64{s.Refused, s.TooManyWaiting})

	never, _ := newResults(t, server.Config{MaxWaiters: -1})
	begin(t, never, request(1))
	_, err = never.Track(t.Context(), request(1))
	require.ErrorIs(t, err, exactlyonce.ErrInProgress)
}

// Requests that their client never declares done do not become stale.
func TestE8NothingIncomplete(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	for seq := int64(3); seq > 0; seq-- {
		complete(t, r, request(seq), fmt.Sprint(seq))
	}
	require.Equal(t, "3", replay(t, r, request(3)))
	require.Equal(t, "1", replay(t, r, request(1)))
}

// A slow request does not prevent other requests from being removed, by the mark or by
// age (X3).
func TestE9SlowRequestPinsNothingButItself(t *testing.T) {
	r, mock := newResults(t, server.Config{AnswerAge: time.Minute})
	slow := begin(t, r, request(1))
	complete(t, r, request(2), "2")
	complete(t, r, request(3), "3")
	require.Equal(t, "NEW", state(t, r, since(4, 3)))
	require.Equal(t, 2, r.Stats().Records, "1 runs, 3 has an answer, 2 is removed")
	require.Equal(t, "STALE", state(t, r, request(2)))
	require.Equal(t, "STALE", state(t, r, attempt(1, 2)), "its client has given it up")

	complete(t, r, request(5), "5")
	mock.Add(time.Minute)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, 1, r.Stats().Records)
	require.Equal(t, "STALE", state(t, r, request(5)))
	require.NoError(t, slow.Complete([]byte("late")), "its own caller gets the answer")
	require.Equal(t, 0, r.Stats().Records)
	require.Equal(t, "STALE", state(t, r, request(1)))
}

// If a higher number was removed for its age, a lower number that was never seen, that
// runs, or that has failed is not stale.
func TestE10LowerNumberAfterCollection(t *testing.T) {
	r, mock := newResults(t, server.Config{AnswerAge: time.Minute})
	runs := begin(t, r, request(2))
	require.Equal(t, "NEW", state(t, r, request(3)), "it fails")
	complete(t, r, request(10), "")
	complete(t, r, request(11), "")
	step := request(11)
	step.Step = "refund"
	mock.Add(time.Minute)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, "STALE", state(t, r, request(10)))
	require.Equal(t, "STALE", state(t, r, request(11)))
	require.Equal(t, "NEW", state(t, r, step), "another step")
	require.Equal(t, "NEW", state(t, r, request(1)), "never seen")
	require.Equal(t, "NEW", state(t, r, request(3)))
	require.NoError(t, runs.Complete([]byte("2")))
	require.Equal(t, "2", replay(t, r, request(2)))
	require.Equal(t, "NEW", state(t, r, request(12)))
}

// When the last handler leaves, waiting attempts get its error and the next attempt is
// NEW.
func TestE11IsDriver_NoneIsLost(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	client1 := begin(t, r, request(1))
	replica, err := r.TakeOver(attempt(1, 9))
	require.NoError(t, err)
	require.Equal(t, "NEW", replica.State())
	require.True(t, replica.IsDriver())
	require.False(t, client1.IsDriver())
	replica.Fail(errHandler)
	client2 := attach(t, r, attempt(1, 2))
	require.ErrorIs(t, client1.Complete([]byte("not its to give")), exactlyonce.ErrInProgress)
	_, err = client2.Wait(t.Context())
	require.Equal(t, errHandler, err)
	require.Equal(t, 0, r.Stats().Records)
	complete(t, r, attempt(1, 3), "at last")

	// The other order: the old handler leaves first, and the handler that took over
	// answers.
	old := begin(t, r, request(2))
	replica, err = r.TakeOver(attempt(2, 9))
	require.NoError(t, err)
	old.Fail(errHandler)
	waits := attach(t, r, attempt(2, 2))
	require.NoError(t, replica.Complete([]byte("by the replica")))
	answer, err := waits.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, "by the replica", string(answer))

	// TakeOver of an untracked, a completed and a stale request.
	replica, err = r.TakeOver(request(3))
	require.NoError(t, err)
	require.True(t, replica.IsDriver())
	replica.Fail(nil)
	replica, err = r.TakeOver(request(2))
	require.NoError(t, err)
	require.Equal(t, "COMPLETED", replica.State())
	require.Equal(t, "NEW", state(t, r, since(4, 4)))
	_, err = r.TakeOver(request(3))
	require.ErrorIs(t, err, exactlyonce.ErrStale)
}

// A handler that fails after another one has answered has no effect.
func TestE12OldHandlerFailsAfterTheAnswer(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	entered := make(chan struct{})
	leave := make(chan struct{})
	var got error
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _, got = r.Do(t.Context(), request(1), func(context.Context) ([]byte, error) {
			close(entered)
			<-leave
			return nil, errHandler
		})
	})
	<-entered
	replica, err := r.TakeOver(attempt(1, 9))
	require.NoError(t, err)
	waits := attach(t, r, attempt(1, 3))
	require.NoError(t, replica.Complete([]byte("kept")))
	close(leave)
	wg.Wait()
	require.Equal(t, errHandler, got, "its own caller")
	answer, err := waits.Wait(t.Context())
	require.NoError(t, err, "one that waited, and asks only now")
	require.Equal(t, "kept", string(answer))
	require.Equal(t, "kept", replay(t, r, attempt(1, 2)))
}

// An answer that may not be given is an error and is counted. Fail after the end of a
// call is neither.
func TestE13CallComplete_Misuse(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	call := begin(t, r, request(1))
	waits := attach(t, r, request(1))
	require.ErrorIs(t, waits.Complete(nil), exactlyonce.ErrInProgress)
	_, err := call.Wait(t.Context())
	require.ErrorContains(t, err, "Wait in the call that has to run the request")
	require.NoError(t, call.Complete([]byte("x")))
	require.ErrorIs(t, call.Complete([]byte("y")), exactlyonce.ErrInProgress)
	call.Fail(errHandler)
	_, err = waits.Wait(t.Context())
	require.NoError(t, err)
	waits.Fail(nil)
	require.Equal(t, "x", replay(t, r, request(1)))
	require.Equal(t, uint64(2), r.Stats().NotDriver)
	require.Equal(t, 0, r.Stats().Waiting)

	failed := begin(t, r, request(2))
	failed.Fail(nil)
	failed.Fail(nil)
	require.ErrorIs(t, failed.Complete(nil), exactlyonce.ErrInProgress)
	complete(t, r, request(2), "")
}

// A waiting attempt that leaves is released, and the handler continues.
func TestE14WaitingAttemptGoesAway(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	call := begin(t, r, request(1))
	before := r.Stats().Bytes
	for n := range 100 {
		waits := attach(t, r, attempt(1, n+2))
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errHandler)
		_, err := waits.Wait(ctx)
		require.Equal(t, errHandler, err)
	}
	s := r.Stats()
	require.Equal(t, 0, s.Waiting)
	require.Equal(t, before, s.Bytes)
	require.NoError(t, call.Complete([]byte("x")))

	// A stored answer takes precedence over the end of the context.
	call = begin(t, r, request(2))
	waits := attach(t, r, request(2))
	require.NoError(t, call.Complete([]byte("y")))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	answer, err := waits.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, "y", string(answer))
}

// The same id with other content is refused, while the first request runs and afterwards.
// A fingerprint of zero is not compared.
func TestE15OtherContent(t *testing.T) {
	r, _ := newResults(t, server.Config{})
	with := func(b byte) exactlyonce.Request {
		req := request(1)
		req.Fingerprint[31] = b
		return req
	}
	call := begin(t, r, with(1))
	_, err := r.Track(t.Context(), with(2))
	require.ErrorIs(t, err, exactlyonce.ErrMismatch)
	_, err = r.TakeOver(with(2))
	require.ErrorIs(t, err, exactlyonce.ErrMismatch)
	attach(t, r, with(0)).Fail(nil)
	require.NoError(t, call.Complete([]byte("1")))
	_, err = r.Track(t.Context(), with(2))
	require.ErrorIs(t, err, exactlyonce.ErrMismatch)
	require.Equal(t, "1", replay(t, r, with(1)))
	require.Equal(t, "1", replay(t, r, with(0)))
	require.Equal(t, uint64(3), r.Stats().Mismatched)
}

// After AnswerAge an attempt is STALE, also after ClientSilence, until the client is
// entirely forgotten. A running request is never forgotten.
func TestE16LongPartition(t *testing.T) {
	t.Parallel()
	r, mock := newResults(t, server.Config{AnswerAge: 10 * time.Minute, ClientSilence: time.Hour})
	complete(t, r, request(1), "x")
	mock.Add(10*time.Minute - 1)
	require.Equal(t, "x", replay(t, r, request(1)), "asked for: its age starts again")
	mock.Add(10*time.Minute - 1)
	require.Equal(t, "x", replay(t, r, request(1)))
	mock.Add(10 * time.Minute)
	require.Equal(t, "STALE", state(t, r, request(1)), "exactly at its age, collected or not")
	mock.Add(time.Hour - 1)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, "STALE", state(t, r, request(1)))
	mock.Add(time.Hour)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, server.Stats{}.Clients, r.Stats().Clients)
	require.Equal(t, [...]uint64{1, 1}, [...]uint64{r.Stats().Collected, r.Stats().CollectedClients})
	require.Equal(t, "STALE", state(t, r, request(1)))
	mock.Add(23 * time.Hour)
	require.NoError(t, r.Collect(t.Context()))
	require.Zero(t, r.Stats().Bytes)
	require.Zero(t, r.Tombstones())

	runs := begin(t, r, request(2))
	mock.Add(24 * time.Hour)
	require.NoError(t, r.Collect(t.Context()))
	attach(t, r, request(2)).Fail(nil)
	require.NoError(t, runs.Complete([]byte("y")))
	require.Equal(t, "y", replay(t, r, request(2)))
}

// An answer is STALE at its age even without a collection.
func TestResultsStats_AgeWithoutACollection(t *testing.T) {
	hand := &handClock{Clock: clock.New()}
	r, _ := newResults(t, server.Config{AnswerAge: time.Hour, Clock: hand})
	complete(t, r, request(1), "x")
	hand.now = time.Hour - 1
	require.Equal(t, "x", replay(t, r, request(1)))
	hand.now += time.Hour
	require.Equal(t, 1, r.Stats().Records, "nothing has collected")
	require.Equal(t, "STALE", state(t, r, request(1)))
	require.Equal(t, uint64(1), r.Stats().Collected)
}

// A timer collects, and stops when everything is removed.
func TestCollectionByTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := server.NewResults(server.Config{AnswerAge: 8 * time.Second, ClientSilence: 16 * time.Second})
		complete(t, r, request(1), "x")
		time.Sleep(9*time.Second + 1)
		synctest.Wait()
		require.Equal(t, [...]int{1, 0}, [...]int{r.Stats().Clients, r.Stats().Records})
		time.Sleep(8 * time.Second)
		synctest.Wait()
		require.Equal(t, [...]int{0, 0}, [...]int{r.Stats().Clients, r.Stats().Records})
		time.Sleep(24 * 16 * time.Second)
		synctest.Wait()
		require.Zero(t, r.Stats().Bytes)
	}) // a timer that did not stop would keep time advancing forever
}

// If a handler panics, exits or fails, the next attempt is NEW, and waiting attempts get
// an error.
func TestHandlerThatGivesNoAnswer(t *testing.T) {
	for name, handler := range map[string]func() ([]byte, error){
		"panic":  func() ([]byte, error) { panic("boom") },
		"goexit": func() ([]byte, error) { runtime.Goexit(); return nil, nil },
		"error":  func() ([]byte, error) { return nil, errHandler },
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newResults(t, server.Config{})
			entered, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var recovered any
			var err error
			go func() {
				defer close(left)
				defer func() { recovered = recover() }()
				_, _, err = r.Do(t.Context(), request(1), func(context.Context) ([]byte, error) {
					close(entered)
					<-leave
					return handler()
				})
			}()
			<-entered
			waits := attach(t, r, attempt(1, 2))
			close(leave)
			_, waitErr := waits.Wait(t.Context())
			<-left
			switch name {
			case "panic":
				require.Equal(t, "boom", recovered, "the panic goes on")
				require.Equal(t, server.ErrNoAnswer, waitErr)
			case "goexit":
				require.Equal(t, server.ErrNoAnswer, waitErr)
			case "error":
				require.Equal(t, errHandler, err)
				require.Equal(t, errHandler, waitErr)
			}
			require.Equal(t, 0, r.Stats().Records)
			complete(t, r, attempt(1, 3), "x")
		})
	}
}

type panicking struct{ error }

func (panicking) Is(error) bool { panic("in Is") }

// A handler that leaves its request in doubt makes the request STALE.
func TestHandlerThatIsInDoubt(t *testing.T) {
	for _, doubt := range []error{fmt.Errorf("lost: %w", exactlyonce.ErrStale), panicking{}} {
		r, _ := newResults(t, server.Config{})
		_, _, err := r.Do(t.Context(), request(1), func(context.Context) ([]byte, error) { return nil, doubt })
		require.True(t, err == doubt) //nolint:testifylint // require.Equal would call its methods
		require.Equal(t, "STALE", state(t, r, request(1)))
		require.Equal(t, "NEW", state(t, r, request(2)))
	}
}

// The context of a handler has the request and the values of its caller's context, and
// ends after the handler.
func TestHandlerContext(t *testing.T) {
	type key struct{}
	r, _ := newResults(t, server.Config{})
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "v"), time.Hour)
	defer cancel()
	var kept, derived context.Context
	_, _, err := r.Do(ctx, request(1), func(ctx context.Context) ([]byte, error) {
		req, ok := exactlyonce.RequestFromContext(ctx)
		require.True(t, ok)
		require.Equal(t, request(1), req)
		require.Equal(t, "v", ctx.Value(key{}))
		require.Nil(t, ctx.Value("other"))
		require.NoError(t, ctx.Err())
		require.NoError(t, context.Cause(ctx))
		_, ok = ctx.Deadline()
		require.False(t, ok)
		kept = ctx
		before := runtime.NumGoroutine()
		for range 100 { // goroutines of earlier tests may end meanwhile, and the runtime may start its own
			another, cancel := context.WithCancel(ctx)
			t.Cleanup(cancel)
			derived = another
		}
		require.Less(t, runtime.NumGoroutine(), before+50, "a derived context needs no goroutine")
		require.Equal(t, "v", ctx.Value(key{}))
		return nil, nil
	})
	require.NoError(t, err)
	require.Equal(t, context.Canceled, kept.Err())
	<-kept.Done()
	<-derived.Done()

	_, _, err = r.Do(ctx, request(2), func(ctx context.Context) ([]byte, error) { kept = ctx; return nil, nil })
	require.NoError(t, err)
	require.Equal(t, context.Canceled, kept.Err(), "not opened before")
	<-kept.Done()
}

// A driver's handler outlives its caller while others wait, but no longer.
func TestHandlerOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := server.NewResults(server.Config{})
		defer r.Close(context.Background())
		run := func(ctx context.Context, seq int64, wait func(ctx context.Context)) chan error {
			ended := make(chan error, 1)
			go func() {
				_, _, err := r.Do(ctx, request(seq), func(ctx context.Context) ([]byte, error) {
					wait(ctx)
					return []byte("x"), context.Cause(ctx)
				})
				ended <- err
			}()
			synctest.Wait()
			return ended
		}
		untilDone := func(ctx context.Context) { <-ctx.Done() }

		ctx, cancel := context.WithCancelCause(t.Context())
		ended := run(ctx, 1, untilDone)
		cancel(errHandler)
		require.Equal(t, errHandler, <-ended, "alone: it ends with its caller, for the same reason")

		ctx, cancel = context.WithCancelCause(t.Context())
		ended = run(ctx, 2, untilDone)
		waits := attach(t, r, attempt(2, 2))
		cancel(errHandler)
		synctest.Wait()
		require.Empty(t, ended, "it goes on for the other one")
		waits.Fail(nil)
		require.Equal(t, errHandler, <-ended)

		ctx, cancel = context.WithCancelCause(t.Context())
		ended = run(ctx, 5, untilDone)
		waits = attach(t, r, attempt(5, 2))
		other := attach(t, r, attempt(5, 3))
		cancel(errHandler)
		synctest.Wait()
		other.Fail(nil)
		synctest.Wait()
		require.Empty(t, ended, "one of two is left")
		waits.Fail(nil)
		require.Equal(t, errHandler, <-ended)

		ctx, cancel = context.WithCancelCause(t.Context())
		asks, asked := make(chan struct{}), make(chan error)
		ended = run(ctx, 3, func(ctx context.Context) {
			<-asks
			asked <- ctx.Err() // without a Done before
			<-asks
			asked <- ctx.Err()
		})
		waits = attach(t, r, attempt(3, 2))
		cancel(errHandler)
		asks <- struct{}{}
		require.NoError(t, <-asked)
		waits.Fail(nil)
		asks <- struct{}{}
		require.Equal(t, context.Canceled, <-asked)
		require.Equal(t, errHandler, <-ended)

		ctx, cancel = context.WithCancelCause(t.Context())
		leave := make(chan struct{})
		ended = run(ctx, 4, func(context.Context) { <-leave })
		waits = attach(t, r, attempt(4, 2))
		cancel(errHandler)
		synctest.Wait()
		close(leave)
		answer, err := waits.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "x", string(answer))
		require.NoError(t, <-ended)
	})
}

// X3: a request refused by a bound is refused before it runs, and may be repeated.
func TestLimitsRefuse(t *testing.T) {
	other := func(n byte) exactlyonce.Request {
		req := request(1)
		req.Client[0] = n
		return req
	}
	t.Run("records", func(t *testing.T) {
		r, mock := newResults(t, server.Config{MaxRecords: 2})
		complete(t, r, request(1), "1")
		complete(t, r, request(2), "2")
		_, err := r.Track(t.Context(), request(3))
		require.ErrorIs(t, err, exactlyonce.ErrFull)
		require.Equal(t, "1", replay(t, r, request(1)), "what is there stays")
		mock.Add(10 * time.Minute)
		require.Equal(t, "NEW", state(t, r, request(3)), "what is due makes room, collected or not")
	})
	t.Run("clients", func(t *testing.T) {
		r, mock := newResults(t, server.Config{MaxClients: 2})
		complete(t, r, other(1), "1")
		complete(t, r, other(2), "2")
		_, err := r.Track(t.Context(), other(3))
		require.ErrorIs(t, err, exactlyonce.ErrFull)
		require.Equal(t, 2, r.Stats().Clients)
		mock.Add(time.Hour)
		require.Equal(t, "NEW", state(t, r, other(3)))
	})
	t.Run("bytes", func(t *testing.T) {
		r, _ := newResults(t, server.Config{MaxBytes: 14_300, MaxAnswer: 20_000})
		complete(t, r, request(1), strings.Repeat("x", 8_000))
		_, err := r.Track(t.Context(), other(3))
		require.ErrorIs(t, err, exactlyonce.ErrFull)
		complete(t, r, request(2), strings.Repeat("x", 8_000)) // there is room for it, not for its answer
		require.Equal(t, "STALE", state(t, r, request(2)))
		require.Equal(t, 8_000, len(replay(t, r, request(1))))
		require.LessOrEqual(t, r.Stats().Bytes, int64(14_300))
		require.Equal(t, uint64(1), r.Stats().Unkept)
	})
	t.Run("answer", func(t *testing.T) {
		r, _ := newResults(t, server.Config{MaxAnswer: 3})
		call := begin(t, r, request(1))
		waits := attach(t, r, request(1))
		require.NoError(t, call.Complete([]byte("long")))
		answer, err := waits.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "long", string(answer), "those that wait get it")
		require.Equal(t, "STALE", state(t, r, request(1)))
		complete(t, r, request(2), "sho")
		require.Equal(t, "sho", replay(t, r, request(2)))
	})
}

// X3: evicted requests are STALE. Running requests are never evicted.
func TestLimitsEvict(t *testing.T) {
	t.Parallel()
	other := func(n byte, seq int64) exactlyonce.Request {
		req := request(seq)
		req.Client[0] = n
		return req
	}
	t.Run("records", func(t *testing.T) {
		r, _ := newResults(t, server.Config{MaxRecords: 3, Evict: true})
		runs := begin(t, r, request(1))
		complete(t, r, request(2), "2")
		complete(t, r, request(3), "3")
		require.Equal(t, "2", replay(t, r, request(2)))
		complete(t, r, request(4), "4")
		require.Equal(t, "STALE", state(t, r, request(3)), "asked for least recently")
		require.Equal(t, "2", replay(t, r, request(2)))
		begin(t, r, request(5))
		_, err := r.Track(t.Context(), request(6))
		require.ErrorIs(t, err, exactlyonce.ErrFull, "a half runs")
		require.NoError(t, runs.Complete([]byte("1")))
		require.Equal(t, "1", replay(t, r, request(1)))
		require.Equal(t, uint64(2), r.Stats().Evicted)
	})
	t.Run("clients", func(t *testing.T) {
		r, mock := newResults(t, server.Config{MaxClients: 3, Evict: true})
		complete(t, r, other(1, 5), "5")
		mock.Add(time.Second)
		complete(t, r, other(9, 1), "")
		runs := begin(t, r, other(2, 1))
		complete(t, r, other(3, 1), "")
		require.Equal(t, 3, r.Stats().Clients)
		require.Equal(t, "STALE", state(t, r, other(1, 5)))
		require.Equal(t, "STALE", state(t, r, other(1, 4)), "below what it has asked for")
		require.Equal(t, uint64(1), r.Stats().EvictedClients)
		require.Equal(t, "NEW", state(t, r, other(1, 6)), "it goes on, in place of another one")
		require.Equal(t, "STALE", state(t, r, other(1, 5)))
		require.Equal(t, "STALE", state(t, r, other(9, 1)))
		require.NoError(t, runs.Complete(nil))
		mock.Add(time.Hour)
		require.NoError(t, r.Collect(t.Context()))
		require.Equal(t, "STALE", state(t, r, other(9, 1)))
		mock.Add(24 * time.Hour)
		require.NoError(t, r.Collect(t.Context()))
		require.Zero(t, r.Stats().Bytes)
	})
	t.Run("bytes", func(t *testing.T) {
		r, _ := newResults(t, server.Config{MaxBytes: 20_000, Evict: true})
		for seq := range int64(100) {
			complete(t, r, request(seq+1), strings.Repeat("x", 1000))
			require.LessOrEqual(t, r.Stats().Bytes, int64(20_000))
		}
		require.Equal(t, 1000, len(replay(t, r, request(100))))
		require.Equal(t, "STALE", state(t, r, request(1)))
		complete(t, r, request(101), strings.Repeat("x", 30_000))
		require.Equal(t, "STALE", state(t, r, request(101)), "longer than everything")
		require.LessOrEqual(t, r.Stats().Bytes, int64(20_000))
		for n := range 1000 { // the remains of evicted clients are bounded, too
			_, _ = r.Track(t.Context(), other(byte(n), int64(n)+1))
			req := other(byte(n), 1)
			req.Client[1] = byte(n >> 8)
			if call, err := r.Track(t.Context(), req); err == nil {
				call.Fail(nil)
			}
			require.LessOrEqual(t, r.Stats().Bytes, int64(20_000))
		}
		require.NotZero(t, r.Stats().Refused)
	})
}

// X3: an answer is removed at once because attempts that wait for it take its room.
func TestLimitsEvictTheAnswerItself(t *testing.T) {
	r, _ := newResults(t, server.Config{MaxBytes: 6_100, MaxWaiters: 30, Evict: true})
	call := begin(t, r, request(1))
	var waits []*server.Call
	for n := range 5 {
		waits = append(waits, attach(t, r, attempt(1, n+2)))
	}
	require.Greater(t, r.Stats().Bytes, int64(6_100))
	require.NoError(t, call.Complete([]byte("x")))
	require.Equal(t, 0, r.Stats().Records)
	for _, w := range waits {
		answer, err := w.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "x", string(answer))
	}
	require.Equal(t, "STALE", state(t, r, request(1)))
	require.Equal(t, "NEW", state(t, r, request(2)))
}

// X3: removed answers with many gaps cost a client a bounded number of spans. Requests
// given up for that are STALE, not NEW.
func TestResults_ManyGaps(t *testing.T) {
	r, mock := newResults(t, server.Config{AnswerAge: time.Minute})
	for seq := int64(2); seq <= 20_000; seq += 2 {
		complete(t, r, request(seq), "")
	}
	mock.Add(time.Minute)
	require.NoError(t, r.Collect(t.Context()))
	s := r.Stats()
	require.Less(t, s.Bytes, int64(5000*48))
	for seq := int64(2); seq <= 20_000; seq += 2 {
		require.Equal(t, "STALE", state(t, r, request(seq)))
	}
	require.Equal(t, "STALE", state(t, r, request(3)))
	require.Equal(t, "NEW", state(t, r, request(19_999)))
}

func TestDump(t *testing.T) {
	r, mock := newResults(t, server.Config{})
	req := since(5, 5)
	req.Scope = "alice"
	complete(t, r, req, "gone")
	mock.Add(9 * time.Minute)
	req.Sequence, req.Attempt = 6, 2
	complete(t, r, req, "seventeen bytes..")
	mock.Add(time.Minute)
	req.Sequence, req.Step = 10, "charge"
	begin(t, r, req)
	req.Attempt = 3
	_, err := r.TakeOver(req)
	require.NoError(t, err)
	attach(t, r, req)
	require.NoError(t, r.Collect(t.Context()))
	mock.Add(3 * time.Second)
	begin(t, r, request(1)).Fail(nil)
	var b strings.Builder
	require.NoError(t, r.Dump(&b))
	lines := strings.Split(b.String(), "\n")
	require.Regexp(t, `^2 clients, 2 records \(1 in progress\), 1 waiting, \d+ bytes$`, lines[0])
	require.Equal(t, []string{
		`client 0af7651916cd43dd8448eb211c80319c of "", heard 0s ago, stale below 0`,
		`client 0af7651916cd43dd8448eb211c80319c of "alice", heard 3s ago, stale below 5, gone 5-5`,
		`  6           COMPLETED by attempt 2, 17 bytes, asked for 1m3s ago`,
		`  10 charge   IN_PROGRESS, 1 waiting, 2 handlers, driver is attempt 3`,
		``,
	}, lines[1:])

	for seq := range int64(10_100) {
		complete(t, r, request(seq+1), "")
	}
	b.Reset()
	require.NoError(t, r.Dump(&b))
	require.Equal(t, 10_001, strings.Count(b.String(), "\n"))
	require.Contains(t, b.String(), "… and 105 more")
}

func TestConfigThatMakesNoSense(t *testing.T) {
	for field, c := range map[string]server.Config{
		"AnswerAge is 1ns":     {AnswerAge: 1},
		"AnswerAge is -1s":     {AnswerAge: -time.Second},
		"ClientSilence is 1m":  {ClientSilence: time.Minute},
		"MaxBytes is -1":       {MaxBytes: -1},
		"MaxClients is -1":     {MaxClients: -1},
		"MaxRecords is -1":     {MaxRecords: -1},
		"MaxAnswer is -1":      {MaxAnswer: -1},
		"ClientSilence is -1s": {ClientSilence: -time.Second},
	} {
		func() {
			defer func() { require.Contains(t, fmt.Sprint(recover()), "server: NewResults: "+field) }()
			server.NewResults(c)
		}()
	}
	r := server.NewResults(server.Config{AnswerAge: 2 * time.Hour})
	require.NoError(t, r.Close(t.Context()))
}

// X3: clients that are evicted and return repeatedly use a bounded amount of memory.
func TestEvictedClientsThatComeBack(t *testing.T) {
	t.Parallel()
	r, mock := newResults(t, server.Config{MaxClients: 1, Evict: true})
	for seq := int64(1); seq <= 1000; seq++ {
		mock.Add(time.Millisecond)
		for n := range byte(2) {
			req := request(seq)
			req.Client[0] = n
			complete(t, r, req, "")
		}
	}
	require.Less(t, r.Tombstones(), 100)
	evicted := request(1)
	evicted.Client[0] = 0
	require.Equal(t, "STALE", state(t, r, evicted), "what is left of it is still known")
	for range 2 {
		mock.Add(24 * time.Hour)
		require.NoError(t, r.Collect(t.Context()))
	}
	require.Zero(t, r.Tombstones())
	require.Zero(t, r.Stats().Bytes)
}

// X1: when a client has been silent for hours, its executed requests are STALE. Others
// are NEW: the next number of an idle client, and a request whose attempts have all
// failed.
func TestClientThatWasSilent(t *testing.T) {
	t.Parallel()
	for name, silence := range map[string]time.Duration{"two hours": 2 * time.Hour, "most of a day": 23 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			r, mock := newResults(t, server.Config{})
			complete(t, r, request(1), "charged")
			complete(t, r, since(7, 3), "charged")
			begin(t, r, request(8)).Fail(errHandler)
			doubtful := begin(t, r, request(9))
			doubtful.Fail(fmt.Errorf("%w: streamed", exactlyonce.ErrStale))
			for range 10 {
				mock.Add(silence / 10)
				require.NoError(t, r.Collect(t.Context()))
			}
			require.Zero(t, r.Stats().Clients)
			require.Equal(t, "STALE", state(t, r, attempt(1, 2)))
			require.Equal(t, "STALE", state(t, r, attempt(7, 2)))
			require.Equal(t, "STALE", state(t, r, attempt(9, 2)), "in doubt")
			require.Equal(t, "NEW", state(t, r, attempt(10, 2)), "its first attempt was lost")
			require.Equal(t, "STALE", state(t, r, attempt(7, 3)), "now that its client is here again")
		})
	}
	r, mock := newResults(t, server.Config{})
	begin(t, r, request(1)).Fail(errHandler)
	mock.Add(2 * time.Hour)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, "NEW", state(t, r, attempt(1, 2)), "a service that was not there, and had said so")
}

// X1: a request of a completely forgotten client is STALE forever. A request first sent
// later is NEW.
func TestCollect_OldAttemptOfAForgottenClient(t *testing.T) {
	t.Parallel()
	aged := func(seq int64, age time.Duration) exactlyonce.Request {
		req := attempt(seq, 2)
		req.Age = age
		return req
	}
	r, mock := newResults(t, server.Config{})
	began := mock.Now()
	complete(t, r, request(1), "charged")
	for range 50 {
		mock.Add(24 * time.Hour)
		require.NoError(t, r.Collect(t.Context()))
	}
	require.Zero(t, r.Tombstones())
	require.Zero(t, r.Stats().Bytes)
	old := mock.Since(began)
	require.Equal(t, "STALE", state(t, r, aged(1, old)))
	require.Zero(t, r.Stats().Clients, "nothing is kept for it")
	require.Equal(t, "NEW", state(t, r, request(2)), "it was idle, and goes on")
	require.Equal(t, "STALE", state(t, r, aged(1, old)), "now that its client is here again")
	require.Equal(t, "NEW", state(t, r, aged(3, 2*time.Hour)), "its first attempts were lost")
	mock.Add(30 * time.Hour)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, "NEW", state(t, r, aged(3, 32*time.Hour)), "nothing of its time was forgotten")

	r, mock = newResults(t, server.Config{})
	for range 3 {
		require.Equal(t, "NEW", state(t, r, aged(1, mock.Since(began))), "its service has refused it for days, and has forgotten nothing")
		mock.Add(48 * time.Hour)
		require.NoError(t, r.Collect(t.Context()))
	}
}

// X3: tombstones are removed first when there is no room, but not within ClientSilence.
func TestTombstonesMakeRoom(t *testing.T) {
	hand := &handClock{Clock: clock.New()}
	r, _ := newResults(t, server.Config{MaxBytes: 40_000, Clock: hand})
	of := func(n int) exactlyonce.Request {
		req := request(1)
		req.Client[0], req.Client[1] = byte(n), byte(n>>8)
		return req
	}
	for n := range 500 {
		complete(t, r, of(n), "")
		hand.now += 2 * time.Minute
		require.NoError(t, r.Collect(t.Context()))
		require.LessOrEqual(t, r.Stats().Bytes, int64(40_000))
	}
	require.NotZero(t, r.Tombstones())
	require.Zero(t, r.Stats().Refused)
}

// X3: a principal that fills a bound is refused itself, and makes room for others.
func TestPrincipalThatFillsABound(t *testing.T) {
	of := func(scope string, client byte, seq int64) exactlyonce.Request {
		req := request(seq)
		req.Scope, req.Client[0] = scope, client
		return req
	}
	for name, c := range map[string]server.Config{
		"clients": {MaxClients: 10}, "records": {MaxRecords: 10}, "bytes": {MaxBytes: 40_000}, "evicts": {MaxClients: 10, Evict: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newResults(t, c)
			complete(t, r, of("careful", 200, 1), "kept")
			var err error
			for n := 0; n < 200 && err == nil; n++ {
				var call *server.Call
				if call, err = r.Track(t.Context(), of("greedy", byte(n), 1)); err == nil {
					require.NoError(t, call.Complete(make([]byte, 500)))
				}
			}
			if !c.Evict {
				require.ErrorIs(t, err, exactlyonce.ErrFull)
			}
			for n := range byte(3) {
				complete(t, r, of("other", n, 1), "x")
				require.Equal(t, "x", replay(t, r, of("other", n, 1)))
			}
			require.Equal(t, "kept", replay(t, r, of("careful", 200, 1)))
			if !c.Evict {
				require.Equal(t, "STALE", state(t, r, of("greedy", 0, 1)), "removed for the others, and not executed again")
				_, err = r.Track(t.Context(), of("greedy", 201, 1))
				require.ErrorIs(t, err, exactlyonce.ErrFull)
			}
		})
	}
}

// X3: the marks of evicted clients stay. The marks of one principal take at most half of
// the bytes, so that other principals find room.
func TestPrincipalWithManyMarks(t *testing.T) {
	r, mock := newResults(t, server.Config{MaxBytes: 40_000, MaxClients: 40, Evict: true})
	of := func(scope string, n int) exactlyonce.Request {
		req := request(1)
		req.Scope, req.Client[0], req.Client[1] = scope, byte(n), byte(n>>8)
		return req
	}
	last := 0
	for n := range 1000 {
		call, err := r.Track(t.Context(), of("greedy", n))
		if err != nil {
			require.ErrorIs(t, err, exactlyonce.ErrFull)
			continue
		}
		require.NoError(t, call.Complete(nil))
		last = n
	}
	require.Greater(t, last, 50)
	require.Equal(t, "STALE", state(t, r, of("greedy", 0)), "refused is a new client, and no mark is lost (law X1)")
	complete(t, r, of("other", 1), "x")
	require.Equal(t, "x", replay(t, r, of("other", 1)))
	req := of("greedy", last)
	req.Sequence = 2
	require.Equal(t, "NEW", state(t, r, req), "a client that is known goes on")
	for n := range last + 1 { // clients that have marks, or are known
		req := of("greedy", n)
		req.Sequence = 2
		if call, err := r.Track(t.Context(), req); err == nil {
			defer call.Fail(nil)
		}
	}
	require.Greater(t, r.Stats().InProgress, 4)
	complete(t, r, of("other", 2), "x")
	mock.Add(time.Hour)
	require.Equal(t, "NEW", state(t, r, of("greedy", 1000)), "marks of silent clients make room")
}

// X3: of many principals the longest silent makes room, not the newest, whatever the
// newest runs.
func TestResults_ManyPrincipals(t *testing.T) {
	of := func(scope string) exactlyonce.Request {
		req := request(1)
		req.Scope = scope
		return req
	}
	fill := func(t *testing.T, c server.Config) *server.Results {
		t.Helper()
		r, _ := newResults(t, c)
		for n := range 10 {
			complete(t, r, of(fmt.Sprint("principal ", n)), "x")
		}
		return r
	}
	t.Run("cache of records", func(t *testing.T) {
		r := fill(t, server.Config{MaxClients: 10, Records: newFakeRecords()})
		for n := range 10 {
			begin(t, r, of(fmt.Sprint("runs ", n)))
		}
		_, err := r.Track(t.Context(), of("one more"))
		require.ErrorIs(t, err, exactlyonce.ErrFull, "all that is left runs")
	})
	for name, c := range map[string]server.Config{"clients": {MaxClients: 10, Evict: true}, "records": {MaxRecords: 10, Evict: true}} {
		t.Run(name, func(t *testing.T) {
			r := fill(t, c)
			require.Equal(t, "x", replay(t, r, of("principal 0")), "it is not silent")
			complete(t, r, of("new 1"), "y")
			complete(t, r, of("new 2"), "y")
			require.Equal(t, "y", replay(t, r, of("new 1")))
			require.Equal(t, "x", replay(t, r, of("principal 0")))
			require.Equal(t, "STALE", state(t, r, of("principal 1")))
		})
	}
	t.Run("a request that has just ended", func(t *testing.T) {
		r, _ := newResults(t, server.Config{MaxClients: 2, Evict: true})
		slow := begin(t, r, of("slow"))
		complete(t, r, of("quick"), "x")
		require.NoError(t, slow.Complete([]byte("y")))
		complete(t, r, of("new"), "z")
		require.Equal(t, "y", replay(t, r, of("slow")), "it is not silent")
	})
	t.Run("due", func(t *testing.T) {
		r, mock := newResults(t, server.Config{MaxClients: 4, AnswerAge: 50 * time.Minute, ClientSilence: time.Hour})
		complete(t, r, of("principal 0"), "x")
		mock.Add(time.Minute)
		complete(t, r, of("principal 1"), "x")
		for n := range byte(2) {
			req := of("has the most")
			req.Client[0] = n
			complete(t, r, req, "x")
		}
		mock.Add(59 * time.Minute)
		require.Equal(t, 4, r.Stats().Clients, "the timer comes later")
		require.Equal(t, "NEW", state(t, r, of("principal 2")))
	})
}

// X3: running requests are never removed. So a principal may run half of each bound, and
// others always find room.
func TestPrincipalThatRunsMuch(t *testing.T) {
	of := func(scope string, client byte, seq int64) exactlyonce.Request {
		req := request(seq)
		req.Scope, req.Client[0] = scope, client
		return req
	}
	for name, tt := range map[string]struct {
		config server.Config
		req    func(n int) exactlyonce.Request
		runs   int
	}{
		"records": {server.Config{MaxRecords: 10}, func(n int) exactlyonce.Request { return of("greedy", 1, int64(n)+1) }, 5},
		"clients": {server.Config{MaxClients: 9}, func(n int) exactlyonce.Request { return of("greedy", byte(n), 1) }, 5},
		"bytes":   {server.Config{MaxBytes: 40_000}, func(n int) exactlyonce.Request { return of("greedy", 1, int64(n)+1) }, 20},
		"evicts":  {server.Config{MaxRecords: 10, Evict: true}, func(n int) exactlyonce.Request { return of("greedy", 1, int64(n)+1) }, 5},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newResults(t, tt.config)
			var calls []*server.Call
			for n := range 200 {
				call, err := r.Track(t.Context(), tt.req(n))
				if err != nil {
					require.ErrorIs(t, err, exactlyonce.ErrFull)
					break
				}
				calls = append(calls, call)
			}
			require.InDelta(t, tt.runs, len(calls), 2)
			for n := range byte(3) {
				complete(t, r, of("other", n, 1), "x")
			}
			require.NoError(t, calls[0].Complete(nil))
			call, err := r.Track(t.Context(), tt.req(199))
			require.NoError(t, err, "one has ended")
			call.Fail(nil)
			for _, call := range calls[1:] {
				call.Fail(nil)
			}
		})
	}
}

// X3: waiting attempts count as running requests of a principal.
func TestPrincipalThatWaitsMuch(t *testing.T) {
	r, _ := newResults(t, server.Config{MaxBytes: 40_000})
	call, waiting := begin(t, r, request(1)), 0
	for seq := int64(1); seq < 20; seq++ {
		if seq > 1 {
			_, err := r.Track(t.Context(), request(seq))
			if err != nil {
				require.ErrorIs(t, err, exactlyonce.ErrFull)
				break
			}
		}
		for n := range 16 {
			if w, err := r.Track(t.Context(), attempt(seq, n+2)); err == nil {
				defer w.Fail(nil)
				waiting++
				continue
			} else {
				require.ErrorIs(t, err, exactlyonce.ErrInProgress)
			}
		}
	}
	require.Greater(t, waiting, 16)
	require.Less(t, r.Stats().Bytes, int64(40_000*3/4))
	for n := range int64(3) {
		req := request(n + 1)
		req.Scope = "other"
		complete(t, r, req, "x")
	}
	require.NoError(t, call.Complete(nil))
}

// X3: a principal without remaining state takes no room, however many there were since
// the last collection.
func TestPrincipalsOfWhichNothingIsLeft(t *testing.T) {
	r, _ := newResults(t, server.Config{MaxBytes: 40_000, Records: newFakeRecords()})
	for n := range 1000 {
		req := request(1)
		req.Scope = fmt.Sprint("principal ", n)
		complete(t, r, req, "x")
	}
	require.Less(t, r.Principals(), 100)
	require.Less(t, r.Silent(), 100)
}

// X3: the marks of many principals are removed when there is no room, but not within
// ClientSilence.
func TestMarksOfManyPrincipals(t *testing.T) {
	t.Parallel()
	r, mock := newResults(t, server.Config{MaxBytes: 40_000})
	for n := range 400 {
		req := request(1)
		req.Scope = fmt.Sprint("principal ", n)
		complete(t, r, req, "x")
		mock.Add(10 * time.Minute)
	}
	req := request(1)
	req.Scope = "principal 398"
	require.Equal(t, "STALE", state(t, r, req))
}

// X3: empty answers fill the bound with their records.
func TestPrincipalWithEmptyAnswers(t *testing.T) {
	r, _ := newResults(t, server.Config{MaxBytes: 40_000})
	for n := range int64(10_000) {
		req := request(n + 1)
		req.Scope = "greedy"
		call, err := r.Track(t.Context(), req)
		if err != nil {
			require.ErrorIs(t, err, exactlyonce.ErrFull)
			break
		}
		require.NoError(t, call.Complete(nil))
	}
	for n := range int64(3) {
		req := request(n + 1)
		req.Scope = "other"
		complete(t, r, req, "x")
	}
}

// X3: clients with running requests give up half of their spans of removed answers at a
// time when another principal needs room, so one principal keeps at most half of the
// bytes.
func TestResultsMaxBytes_ClientsThatRunHaveManySpans(t *testing.T) {
	const clients, answers = 30, 4000
	of := func(scope string, client int, seq int64) exactlyonce.Request {
		req := request(seq)
		req.Scope, req.Client[0], req.Client[1] = scope, byte(client), byte(client>>8)
		return req
	}
	r, mock := newResults(t, server.Config{MaxBytes: 4 << 20})
	var running []*server.Call
	for c := range clients {
		running = append(running, begin(t, r, of("greedy", c, 1_000_000)))
		for seq := range int64(answers) {
			call, err := r.Track(t.Context(), of("greedy", c, 2*seq+2))
			if err != nil {
				require.ErrorIs(t, err, exactlyonce.ErrFull)
				break
			}
			require.NoError(t, call.Complete(nil))
		}
		mock.Add(10 * time.Minute) // the answers have reached their age: only their spans are left
		require.NoError(t, r.Collect(t.Context()))
	}
	require.Greater(t, r.Stats().Bytes, int64(3<<20), "the spans fill the memory")

	var others []*server.Call
	for c := range 2000 {
		call, err := r.Track(t.Context(), of("other", c, 1))
		if err != nil {
			require.ErrorIs(t, err, exactlyonce.ErrFull)
			break
		}
		others = append(others, call)
	}
	require.Greater(t, len(others), 1400, "the other principal has about half of the bytes")
	require.LessOrEqual(t, r.Stats().Bytes, int64(4<<20))

	for c, call := range running {
		require.Equal(t, "STALE", state(t, r, of("greedy", c, 2)), "no request is executed again (law X1)")
		require.NoError(t, call.Complete([]byte("x")))
	}
	for _, call := range others {
		call.Fail(nil)
	}
	require.Equal(t, "x", replay(t, r, of("greedy", clients-1, 1_000_000)), "the running request is above the mark")
}
