package server_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

// fakeRecords are Records in memory. Each call of put is a transaction.
type fakeRecords struct {
	mu      sync.Mutex
	answers map[exactlyonce.ID]string
	marks   map[exactlyonce.Client]int64
	finds   []exactlyonce.ID
	collect [][2]time.Time
	err     error
}

func newFakeRecords() *fakeRecords {
	return &fakeRecords{answers: map[exactlyonce.ID]string{}, marks: map[exactlyonce.Client]int64{}}
}

func (f *fakeRecords) put(req exactlyonce.Request, answer string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := exactlyonce.ID{Client: req.Client, Sequence: req.Sequence, Step: req.Step}
	if _, ok := f.answers[id]; ok {
		return exactlyonce.ErrInProgress
	}
	f.answers[id] = answer
	return f.err
}

func (f *fakeRecords) Find(_ context.Context, req exactlyonce.Request) ([]byte, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finds = append(f.finds, req.ID)
	if f.err != nil {
		return nil, false, f.err
	}
	if req.Sequence < f.marks[req.Client] {
		return nil, false, exactlyonce.ErrStale
	}
	if answer, ok := f.answers[exactlyonce.ID{Client: req.Client, Sequence: req.Sequence, Step: req.Step}]; ok {
		return []byte(answer), true, nil
	}
	return nil, false, nil
}

func (f *fakeRecords) Acknowledge(_ context.Context, marks []exactlyonce.Request) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range marks {
		f.marks[m.Client] = max(f.marks[m.Client], m.First)
	}
	return f.err
}

func (f *fakeRecords) Collect(_ context.Context, answers, clients time.Time) (int, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.collect = append(f.collect, [2]time.Time{answers, clients})
	return 0, 0, f.err
}

// do runs a request whose handler puts its answer into f.
func do(t *testing.T, r *server.Results, f *fakeRecords, req exactlyonce.Request, answer string) (string, bool, error) {
	t.Helper()
	got, found, err := r.Do(t.Context(), req, func(ctx context.Context) ([]byte, error) {
		req, _ := exactlyonce.RequestFromContext(ctx)
		if err := f.put(req, answer); err != nil {
			return nil, err
		}
		return []byte(answer), nil
	})
	return string(got), found, err
}

// X2: after a restart, the records decide the answer and STALE.
func TestRecordsAfterRestart(t *testing.T) {
	f := newFakeRecords()
	before, _ := newResults(t, server.Config{Records: f})
	answer, found, err := do(t, before, f, request(1), "x")
	require.NoError(t, err)
	require.Equal(t, "x", answer)
	require.False(t, found)
	_, _, err = do(t, before, f, since(6, 2), "y")
	require.NoError(t, err)
	require.NoError(t, before.Collect(t.Context()))

	after, _ := newResults(t, server.Config{Records: f})
	answer, found, err = do(t, after, f, attempt(6, 2), "again")
	require.NoError(t, err)
	require.Equal(t, "y", answer)
	require.True(t, found)
	_, _, err = do(t, after, f, attempt(1, 2), "again")
	require.ErrorIs(t, err, exactlyonce.ErrStale)
	s := after.Stats()
	require.Equal(t, [...]uint64{0, 1, 1}, [...]uint64{s.New, s.Replayed, s.Stale})
}

// X1: without a record, a request is stale if it was first sent so long ago that Records
// may have forgotten it, unless its client has been known here since. A first attempt of
// a known client is not looked up: its Put decides.
func TestOldAttemptWithRecords(t *testing.T) {
	records := newFakeRecords()
	r, mock := newResults(t, server.Config{Records: records})
	aged := func(seq int64, age time.Duration) exactlyonce.Request {
		req := attempt(seq, 2)
		req.Age = age
		return req
	}
	require.NoError(t, records.put(request(1), "kept"))
	require.Equal(t, "kept", replay(t, r, aged(1, 100*time.Hour)), "the records have it still")
	require.Equal(t, "STALE", state(t, r, aged(2, 25*time.Hour)), "they may have forgotten it")
	require.Equal(t, "NEW", state(t, r, aged(3, 23*time.Hour)))
	require.Equal(t, "NEW", state(t, r, request(4)))
	mock.Add(30 * time.Minute)
	require.Equal(t, "NEW", state(t, r, aged(3, 23*time.Hour+30*time.Minute)))
	mock.Add(30 * time.Minute)
	require.Equal(t, "NEW", state(t, r, aged(3, 24*time.Hour)), "since its client is known here")
}

// X1: Records are notified of an active client even if all its requests fail. Otherwise
// they would forget it and its answers.
func TestRecordsHearOfRequestsThatFail(t *testing.T) {
	records := newFakeRecords()
	r, mock := newResults(t, server.Config{Records: records})
	failed := errors.New("503")
	fail := func(n int) {
		_, _, err := r.Do(t.Context(), attempt(1, n), func(context.Context) ([]byte, error) { return nil, failed })
		require.ErrorIs(t, err, failed)
	}
	fail(1)
	require.NoError(t, r.Collect(t.Context()))
	require.NotContains(t, records.marks, request(1).Client, "one that may not come again")
	for n := range 4 {
		mock.Add(15 * time.Minute)
		fail(n + 2)
	}
	require.NoError(t, r.Collect(t.Context()))
	require.Contains(t, records.marks, request(1).Client)
	require.Zero(t, records.marks[request(1).Client])
}

func TestRecordsAreNotReadForFirstAttempts(t *testing.T) {
	f := newFakeRecords()
	r, _ := newResults(t, server.Config{Records: f})
	for seq := range int64(10) {
		_, _, err := do(t, r, f, request(seq+1), "x")
		require.NoError(t, err)
	}
	require.Len(t, f.finds, 1)
	require.NoError(t, f.put(request(11), "of another server"))
	answer, found, err := do(t, r, f, request(11), "y")
	require.NoError(t, err)
	require.Equal(t, "of another server", answer)
	require.True(t, found, "its handler ran and was rolled back")
	require.Equal(t, "of another server", replay(t, r, request(11)))

	require.NoError(t, f.put(request(12), "of another server"))
	answer, _, err = r12(t, r)
	require.NoError(t, err)
	require.Equal(t, "of another server", answer)
}

// r12 sends attempt 2 of request 12, which must not run.
func r12(t *testing.T, r *server.Results) (string, bool, error) {
	t.Helper()
	answer, found, err := r.Do(t.Context(), attempt(12, 2), func(context.Context) ([]byte, error) {
		t.Error("it has been answered")
		return nil, nil
	})
	return string(answer), found, err
}

// X2: when the answer to COMMIT is lost, the record shows the outcome.
func TestRecordsAfterLostCommit(t *testing.T) {
	f := newFakeRecords()
	r, _ := newResults(t, server.Config{Records: f})
	lost := func(commits bool) (string, bool, error) {
		answer, found, err := r.Do(t.Context(), request(1), func(ctx context.Context) ([]byte, error) {
			req, _ := exactlyonce.RequestFromContext(ctx)
			if commits {
				require.NoError(t, f.put(req, "x"))
			}
			return nil, errHandler
		})
		return string(answer), found, err
	}
	_, _, err := lost(false)
	require.Equal(t, errHandler, err)
	answer, found, err := lost(true)
	require.NoError(t, err)
	require.Equal(t, "x", answer)
	require.True(t, found)
	require.Equal(t, "x", replay(t, r, request(1)))
}

// If Records fail, an attempt fails before it runs; the next one looks again.
func TestRecordsThatFail(t *testing.T) {
	f := newFakeRecords()
	r, mock := newResults(t, server.Config{Records: f})
	f.err = errors.New("no connection")
	_, err := r.Track(t.Context(), request(1))
	require.ErrorIs(t, err, f.err)
	require.ErrorContains(t, err, `look for a record of "0af7651916cd43dd8448eb211c80319c";seq=1;attempt=1: no connection`)
	require.ErrorIs(t, r.Collect(t.Context()), f.err)
	require.Equal(t, uint64(1), r.Stats().CollectErrors)
	require.Equal(t, 0, r.Stats().Records)
	_, _, err = r.Do(t.Context(), request(1), nil)
	require.ErrorIs(t, err, f.err)

	f.err = nil
	begin(t, r, request(1)).Fail(nil)
	_, _, err = r.Do(t.Context(), request(1), func(context.Context) ([]byte, error) {
		f.err = errors.New("no connection")
		return nil, errHandler
	})
	require.ErrorIs(t, err, errHandler)
	require.ErrorIs(t, err, f.err)
	f.err = nil
	mock.Add(time.Minute)
	require.NoError(t, r.Collect(t.Context()))
}

type panickingRecords struct{ *fakeRecords }

func (panickingRecords) Find(context.Context, exactlyonce.Request) ([]byte, bool, error) {
	panic("boom")
}

// Records that panic leave the request NEW.
func TestRecordsThatPanic(t *testing.T) {
	r, _ := newResults(t, server.Config{Records: panickingRecords{newFakeRecords()}})
	require.Panics(t, func() { _, _ = r.Track(t.Context(), request(1)) })
	require.Equal(t, 0, r.Stats().InProgress)
}

// breakingRecords panic, or end the goroutine, in a collection.
type breakingRecords struct {
	*fakeRecords
	end func()
}

func (r *breakingRecords) Collect(context.Context, time.Time, time.Time) (int, int, error) {
	r.end()
	return 0, 0, nil
}

// Law A6: a collection by the timer that panics is counted, and the next one follows.
func TestCollectionsThatPanic(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeRecords()
				records := &breakingRecords{f, end}
				r := server.NewResults(server.Config{Records: records})
				_, _, err := do(t, r, f, request(1), "x")
				require.NoError(t, err)
				time.Sleep(4 * time.Minute) // the timer fires every 75 s
				synctest.Wait()
				require.Equal(t, uint64(3), r.Stats().CollectErrors)
				records.end = func() {}
				require.NoError(t, r.Close(t.Context()))
			})
		})
	}
}

// With Records, memory is a cache: a request that left it is read again, and not STALE.
// Records get the marks and the ages.
func TestMemoryIsACacheOfRecords(t *testing.T) {
	f := newFakeRecords()
	r, mock := newResults(t, server.Config{Records: f, MaxRecords: 1, Evict: true, AnswerAge: time.Minute})
	for seq := range int64(3) {
		_, _, err := do(t, r, f, request(seq+1), "x")
		require.NoError(t, err)
	}
	answer, found, err := do(t, r, f, attempt(1, 2), "again")
	require.NoError(t, err)
	require.Equal(t, "x", answer)
	require.True(t, found)
	require.Equal(t, uint64(3), r.Stats().Evicted)

	f.collect = nil
	now := mock.Now()
	_, _, err = do(t, r, f, since(4, 3), "x")
	require.NoError(t, err)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, int64(3), f.marks[client])
	require.Equal(t, [][2]time.Time{{now.Add(-time.Minute), now.Add(-time.Hour)}}, f.collect)

	mock.Add(time.Hour)
	require.NoError(t, r.Collect(t.Context()))
	require.Zero(t, r.Stats().Bytes)
	answer, _, err = do(t, r, f, request(4), "again")
	require.NoError(t, err)
	require.Equal(t, "x", answer, "of a client that was forgotten here")
}

// recordsThatWait are Records whose Find calls found before it returns.
type recordsThatWait struct {
	*fakeRecords
	found func()
}

func (f recordsThatWait) Find(ctx context.Context, req exactlyonce.Request) ([]byte, bool, error) {
	answer, found, err := f.fakeRecords.Find(ctx, req)
	f.found()
	return answer, found, err
}

// A replica's order overtakes an attempt that still looks for its record. The answer that
// counts is stored before.
func TestTakenOverWhileRecordsAreAsked(t *testing.T) {
	f := recordsThatWait{fakeRecords: newFakeRecords()}
	r, _ := newResults(t, server.Config{Records: &f})
	f.found = func() {
		f.found = func() {}
		driver, err := r.TakeOver(attempt(1, 2))
		require.NoError(t, err)
		require.NoError(t, driver.Complete([]byte("driver")))
		for seq := int64(2); seq < 40; seq++ { // may reuse its memory
			complete(t, r, request(seq), "another")
		}
	}
	call, err := r.Track(t.Context(), request(1))
	require.NoError(t, err)
	require.Equal(t, "NEW", call.State())
	require.False(t, call.IsDriver())
	require.ErrorIs(t, call.Complete([]byte("late")), exactlyonce.ErrInProgress)
	require.Equal(t, "driver", replay(t, r, request(1)))
}

// slowRecords are Records whose Collect lasts until its context ends, once.
type slowRecords struct {
	*fakeRecords
	began chan struct{}
	slow  bool
}

func (s *slowRecords) Collect(ctx context.Context, answers, clients time.Time) (int, int, error) {
	if s.slow {
		s.slow = false
		close(s.began)
		<-ctx.Done()
		return 0, 0, context.Cause(ctx)
	}
	return s.fakeRecords.Collect(ctx, answers, clients)
}

// Close aborts a collection that the timer has started, and does its own.
func TestCloseWhileRecordsAreCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slowRecords{fakeRecords: newFakeRecords(), began: make(chan struct{}), slow: true}
		r := server.NewResults(server.Config{Records: f})
		_, _, err := do(t, r, f.fakeRecords, request(1), "x")
		require.NoError(t, err)
		<-f.began
		require.NoError(t, r.Close(t.Context()))
		require.Len(t, f.collect, 1)
		require.Equal(t, uint64(1), r.Stats().CollectErrors)
	})
}

// Law X3: the number of marks that Records do not accept is bounded by MaxClients;
// existing marks still rise.
func TestMarksAreBounded(t *testing.T) {
	f := newFakeRecords()
	r, mock := newResults(t, server.Config{Records: f, MaxClients: 2, Evict: true})
	of := func(n byte, seq int64) exactlyonce.Request {
		req := since(seq, seq)
		req.Client[0] = n
		return req
	}
	for n := range byte(5) {
		complete(t, r, of(n, 3), "")
	}
	complete(t, r, of(0, 9), "")
	require.NoError(t, r.Collect(t.Context()))
	require.Len(t, f.marks, 2)
	require.Equal(t, int64(9), f.marks[of(0, 1).Client], "of a client whose mark is there")
	require.Zero(t, r.Stats().CollectErrors)
	complete(t, r, of(4, 10), "")
	mock.Add(time.Millisecond)
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, int64(10), f.marks[of(4, 1).Client], "the others come later")
}

// X3: with Records behind it, full memory refuses a request only because of running ones.
func TestFullMemoryWithRecords(t *testing.T) {
	f := newFakeRecords()
	r, _ := newResults(t, server.Config{Records: f, MaxClients: 3})
	of := func(n byte) exactlyonce.Request {
		req := request(1)
		req.Client[0] = n
		return req
	}
	for n := range byte(20) {
		_, _, err := do(t, r, f, of(n), "x")
		require.NoError(t, err)
	}
	require.Equal(t, 3, r.Stats().Clients)
	again := of(0)
	again.Attempt = 2
	answer, found, err := do(t, r, f, again, "y")
	require.NoError(t, err)
	require.Equal(t, "x", answer)
	require.True(t, found)
}

// heldRecords reject the mark of one client.
type heldRecords struct {
	*fakeRecords
	held exactlyonce.Client
}

func (f *heldRecords) Acknowledge(ctx context.Context, marks []exactlyonce.Request) error {
	for _, m := range marks {
		if m.Client == f.held {
			return errHandler
		}
	}
	return f.fakeRecords.Acknowledge(ctx, marks)
}

// A mark that Records reject delays few others, and no collection.
func TestMarkThatIsHeldUp(t *testing.T) {
	f := &heldRecords{newFakeRecords(), client}
	r, _ := newResults(t, server.Config{Records: f})
	for n := range 2000 {
		req := since(3, 3)
		req.Client[0], req.Client[1] = byte(n), byte(n>>8)
		complete(t, r, req, "")
	}
	require.NotContains(t, f.marks, client)
	complete(t, r, since(3, 3), "")
	require.ErrorIs(t, r.Collect(t.Context()), errHandler)
	require.GreaterOrEqual(t, len(f.marks), 1500)
	require.Len(t, f.collect, 1)
	f.held = exactlyonce.NewClient()
	require.NoError(t, r.Collect(t.Context()))
	require.Equal(t, int64(3), f.marks[client])
}

// silentRecords are Records that forget silent clients, as the records in databases do.
type silentRecords struct {
	*fakeRecords
	now    func() time.Time
	heard  map[exactlyonce.Client]time.Time
	stored map[exactlyonce.ID]time.Time
}

func newSilentRecords(now func() time.Time) *silentRecords {
	return &silentRecords{newFakeRecords(), now, map[exactlyonce.Client]time.Time{}, map[exactlyonce.ID]time.Time{}}
}

// put is fakeRecords.put with a time, and refuses a request below the mark.
func (s *silentRecords) put(req exactlyonce.Request, answer string) error {
	s.mu.Lock()
	isBelow := req.Sequence < s.marks[req.Client]
	s.heard[req.Client] = s.now()
	s.stored[exactlyonce.ID{Client: req.Client, Sequence: req.Sequence, Step: req.Step}] = s.now()
	s.mu.Unlock()
	if isBelow {
		return exactlyonce.ErrStale
	}
	return s.fakeRecords.put(req, answer)
}

func (s *silentRecords) Acknowledge(ctx context.Context, marks []exactlyonce.Request) error {
	s.mu.Lock()
	for _, m := range marks {
		if s.err == nil {
			s.heard[m.Client] = s.now()
		}
	}
	s.mu.Unlock()
	return s.fakeRecords.Acknowledge(ctx, marks)
}

func (s *silentRecords) Collect(_ context.Context, _, clients time.Time) (int, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	silence := s.now().Sub(clients)
	for c, heard := range s.heard {
		if s.now().Sub(heard) < silence {
			continue
		}
		for id := range s.answers {
			if id.Client == c {
				s.marks[c] = max(s.marks[c], id.Sequence+1)
				delete(s.answers, id)
			}
		}
		if s.now().Sub(heard) >= 24*silence {
			delete(s.marks, c)
			delete(s.heard, c)
		}
	}
	return 0, 0, s.err
}

// X1: a client whose request runs is not silent, however long it runs, so its request can
// store its answer, and an answered request is not executed again.
func TestResultsRecords_ClientOfARunningRequestIsNotSilent(t *testing.T) {
	t.Parallel()
	mock := clock.NewMock()
	records := newSilentRecords(mock.Now)
	results := server.NewResults(server.Config{Clock: mock, Records: records, AnswerAge: time.Minute, ClientSilence: 10 * time.Minute})
	defer func() { require.NoError(t, results.Close(context.Background())) }()
	other := server.NewResults(server.Config{Clock: mock, Records: records, AnswerAge: time.Minute, ClientSilence: 10 * time.Minute})
	defer func() { require.NoError(t, other.Close(context.Background())) }()

	slow, err := results.Track(t.Context(), request(5))
	require.NoError(t, err)
	require.True(t, slow.IsNew())
	begun := mock.Now()
	_, _, err = results.Do(t.Context(), request(6), func(context.Context) ([]byte, error) { return []byte("6"), records.put(request(6), "6") })
	require.NoError(t, err)
	for range 24 * 10 * 2 { // 24 times the silence, and a little more
		mock.Add(time.Minute / 2)
		require.NoError(t, results.Collect(t.Context()))
		require.NoError(t, other.Collect(t.Context()))
	}
	mock.Add(time.Minute)
	late := attempt(6, 2)
	late.Age = mock.Now().Sub(begun).Truncate(time.Second)
	for _, r := range []*server.Results{results, other} { // there is a record or a mark
		answer, found, err := r.Do(t.Context(), late, func(context.Context) ([]byte, error) { return nil, errors.New("it is executed a second time") })
		if !errors.Is(err, exactlyonce.ErrStale) {
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, "6", string(answer))
		}
	}
	require.NoError(t, records.put(request(5), "5"), "the request that has run so long stores its answer")
	require.NoError(t, slow.Complete([]byte("5")))

	// Now the client is silent.
	mock.Add(11 * time.Minute)
	require.NoError(t, results.Collect(t.Context()))
	require.EqualValues(t, 7, records.marks[request(6).Client])
}

// X1: if Records could not be notified of a client for so long that they may have
// forgotten it, a request that was first sent before is stale.
func TestResultsRecords_RenewalsFail(t *testing.T) {
	t.Parallel()
	mock := clock.NewMock()
	records := newSilentRecords(mock.Now)
	results := server.NewResults(server.Config{Clock: mock, Records: records, AnswerAge: time.Minute, ClientSilence: 10 * time.Minute})
	defer func() { require.NoError(t, results.Close(context.Background())) }()
	slow, err := results.Track(t.Context(), request(5))
	require.NoError(t, err)
	defer slow.Fail(nil)
	_, _, err = results.Do(t.Context(), request(6), func(context.Context) ([]byte, error) { return []byte("6"), records.put(request(6), "6") })
	require.NoError(t, err)
	records.err = errors.New("the database is down")
	for range 25 * 10 {
		mock.Add(time.Minute)
		require.Error(t, results.Collect(t.Context()))
	}
	records.err = nil
	require.Empty(t, records.answers, "another server's collection has forgotten the client")
	late := attempt(6, 2)
	late.Age = 25 * 10 * time.Minute
	require.Equal(t, "STALE", state(t, results, late))
	require.Equal(t, "NEW", state(t, results, attempt(7, 2)))
}
