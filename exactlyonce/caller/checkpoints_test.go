package caller

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/extension"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// job is a stream of numbers whose operator calls a service once for each. It is killed
// and restarted.
type job struct {
	t      *testing.T
	rng    *rand.Rand // guarded by mu
	inputs []int

	results *server.Results // of the service, which survives

	mu      sync.Mutex
	effects map[int]int            // by element
	ids     map[int]exactlyonce.ID // client and sequence number by element
	resent  int                    // requests sent by several runs
	runs    map[int]int            // last run that sent each element
}

func newJob(t *testing.T, seed uint64, n int) *job {
	j := &job{
		t: t, rng: rand.New(rand.NewPCG(seed, 0)), results: server.NewResults(server.Config{}),
		effects: map[int]int{}, ids: map[int]exactlyonce.ID{}, runs: map[int]int{},
	}
	for i := range n {
		j.inputs = append(j.inputs, i)
	}
	return j
}

// n returns a random number from 0 to n-1.
func (j *job) n(n int) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.rng.IntN(n)
}

func (j *job) sleep(most time.Duration) { time.Sleep(time.Duration(j.n(int(most)))) }

var errUnlucky = errors.New("unlucky")

// call is the operator's function: a request with an effect. Both may fail, and the
// answer may be lost.
func (j *job) call(ctx context.Context, run, in int) (int, error) {
	id, err := NextID(ctx)
	if err != nil {
		assert.Error(j.t, ctx.Err(), "%v, and the run goes on", err) // a call that starts while its run is killed sends no request
		return 0, err
	}
	j.mu.Lock()
	first, sent := j.ids[in]
	if !sent {
		j.ids[in] = id
	} else if j.runs[in] != run {
		j.resent++
	}
	j.runs[in] = run
	j.mu.Unlock()
	if sent {
		assert.Equal(j.t, first.Client, id.Client, "element %d", in)
		assert.Equal(j.t, first.Sequence, id.Sequence, "element %d", in)
	}
	j.sleep(5 * time.Millisecond) // it may arrive late
	answer, _, err := j.results.Do(ctx, exactlyonce.Request{ID: id}, func(context.Context) ([]byte, error) {
		j.sleep(10 * time.Millisecond)
		if j.n(5) == 0 {
			return nil, errUnlucky
		}
		j.mu.Lock()
		defer j.mu.Unlock()
		j.effects[in]++
		return []byte(strconv.Itoa(in)), nil
	})
	assert.NotErrorIs(j.t, err, exactlyonce.ErrStale)
	switch {
	case err != nil:
		return 0, err
	case j.n(5) == 0:
		return 0, errUnlucky
	}
	assert.Equal(j.t, strconv.Itoa(in), string(answer))
	return in, nil
}

// start starts a run that resumes from store. wait waits for its end, kill kills it.
func (j *job) start(run int, store checkpoint.Store) (coordinator *checkpoint.Coordinator, wait func() error, kill func()) {
	quiet := slog.New(slog.DiscardHandler)
	coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithLogger(quiet),
		checkpoint.WithInterval(time.Duration(5+j.n(60))*time.Millisecond))
	require.NoError(j.t, err)
	source := checkpoint.NewSource(coordinator, "numbers", checkpointtest.NewSliceInput(j.inputs))
	tracker := NewTracker(Config{Window: 2 + j.n(12)})
	ctx, cancel := context.WithCancelCause(context.Background())
	call := asyncop.Blocking(func(ctx context.Context, in int) (int, error) { return j.call(ctx, run, in) })
	again := strategies.FixedDelay[int](1000, time.Duration(j.n(5))*time.Millisecond).RetryIfException(predicates.HasException)
	opts := []asyncop.Option{
		asyncop.WithName("calls"), asyncop.WithCheckpoints(coordinator, asyncop.State[int, int]{Retries: asyncop.RetryState(j.n(3))}), asyncop.WithObserver(tracker), asyncop.WithContext(ctx),
		asyncop.WithDrainRetries(), asyncop.WithLogger(quiet),
	}
	var op *asyncop.AsyncWaitOperator[int, int]
	switch capacity := 1 + j.n(8); j.n(3) {
	case 0:
		op = asyncop.OrderedWaitWithRetry(call, time.Hour, capacity, again, opts...)
	case 1:
		op = asyncop.UnorderedWaitWithRetry(call, time.Hour, capacity, again, opts...)
	default:
		op = asyncop.KeyOrderedWait(call, func(in int) int { return in % 7 }, time.Hour, capacity, again, opts...)
	}
	require.NoError(j.t, coordinator.Start())
	done := make(chan struct{})
	go func() {
		defer close(done)
		source.Via(op).To(extension.NewIgnoreSink())
	}()
	end := func() {
		cancel(errUnlucky)
		<-done
		<-op.Done()
		assert.NoError(j.t, coordinator.Close())
	}
	return coordinator, func() error { defer end(); return coordinator.Wait() }, func() {
		cancel(errUnlucky) // calls continue for a while, as on the server after its client was killed
		assert.NoError(j.t, coordinator.Close())
		end()
	}
}

func (j *job) check() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, in := range j.inputs {
		assert.Equal(j.t, 1, j.effects[in], "effects of element %d", in)
		assert.EqualValues(j.t, in+1, j.ids[in].Sequence, "in the order of the input")
	}
	assert.Zero(j.t, j.results.Stats().Stale)
}

// unluckyStore fails before or after it has stored a checkpoint, or takes some time.
type unluckyStore struct {
	*checkpointtest.MemoryStore
	job *job
}

func (s unluckyStore) Save(ctx context.Context, snapshot *checkpoint.Snapshot) error {
	s.job.sleep(20 * time.Millisecond)
	what := s.job.n(8)
	if what == 0 {
		return errUnlucky
	}
	if err := s.MemoryStore.Save(ctx, snapshot); err != nil {
		return err
	}
	switch what {
	case 1:
		return errUnlucky // although it was stored
	case 2:
		s.job.sleep(100 * time.Millisecond) // perhaps killed between Save and Completed
		return ctx.Err()
	}
	return nil
}

// Under any schedule of calls, failures, checkpoints, kills and suspensions, each element
// has its effect once, under one id (X1, C1, C3).
func TestTrackerInAKilledJob(t *testing.T) {
	resent, kills, suspended := 0, 0, 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			j := newJob(t, seed, 60)
			store := checkpointtest.NewMemoryStore()
			for run := 0; ; run++ {
				coordinator, wait, kill := j.start(run, unluckyStore{store, j})
				if run == 8 {
					require.NoError(t, wait())
					break
				}
				j.sleep(150 * time.Millisecond)
				if j.n(3) == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
					if coordinator.Finish(ctx, checkpoint.Suspend) == nil {
						suspended++
					}
					cancel()
				}
				kill()
				kills++
				store = store.Reopen()
			}
			time.Sleep(time.Minute) // for requests of killed runs
			require.NoError(t, j.results.Close(t.Context()))
			j.check()
			resent += j.resent
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	require.Positive(t, resent)
	require.Positive(t, suspended)
	t.Logf("%d kills, %d of suspended runs; %d elements were sent by several runs", kills, suspended, resent)
}

// hangingStore stores checkpoints. With hang, Save then waits for the end of its context.
type hangingStore struct {
	*checkpointtest.MemoryStore
	hang bool
}

func (s *hangingStore) Save(ctx context.Context, snapshot *checkpoint.Snapshot) error {
	err := s.MemoryStore.Save(ctx, snapshot)
	if s.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// A coordinator dies after the checkpoint was stored but before the tracker is notified.
// No number was released too early, and the next run begins without the numbers of
// elements that the checkpoint no longer holds.
func TestDeathBetweenSaveAndCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hangingStore{MemoryStore: checkpointtest.NewMemoryStore()}
		inputs := make(chan int)
		tracker := NewTracker(Config{})
		run := func() (coordinator *checkpoint.Coordinator, end func()) {
			quiet := slog.New(slog.DiscardHandler)
			coordinator, err := checkpoint.NewCoordinator(store, checkpoint.WithLogger(quiet))
			require.NoError(t, err)
			source := checkpoint.NewSource(coordinator, "numbers", checkpointtest.NewChannelInput(inputs))
			op := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
				_, err := NextID(ctx)
				return in, err
			}), 0, 4, asyncop.WithName("calls"), asyncop.WithCheckpoints(coordinator), asyncop.WithObserver(tracker), asyncop.WithLogger(quiet))
			require.NoError(t, coordinator.Start())
			done := make(chan struct{})
			go func() {
				defer close(done)
				source.Via(op).To(extension.NewIgnoreSink())
			}()
			return coordinator, func() {
				require.NoError(t, coordinator.Close())
				<-done
				<-op.Done()
			}
		}
		coordinator, end := run()
		inputs <- 1
		inputs <- 2
		synctest.Wait()
		require.Equal(t, []int64{1, 2}, checkList(t, tracker), "they have ended, and no checkpoint says so")
		store.hang = true
		go func() { _, _ = coordinator.Trigger(t.Context()) }()
		synctest.Wait()
		snapshot, _, err := checkpoint.Latest(t.Context(), store)
		require.NoError(t, err)
		require.EqualValues(t, 2, snapshot.ID)
		require.Equal(t, []int64{1, 2}, checkList(t, tracker))
		end()
		require.Equal(t, []int64{1, 2}, checkList(t, tracker))

		store = &hangingStore{MemoryStore: store.MemoryStore.Reopen()}
		old := tracker.Client()
		tracker = NewTracker(Config{})
		go func() { inputs <- 1; inputs <- 2 }() // the source continues after these
		coordinator, end = run()
		require.Equal(t, old, tracker.Client())
		inputs <- 3
		synctest.Wait()
		require.Equal(t, []int64{3}, checkList(t, tracker))
		_, err = coordinator.Trigger(t.Context())
		require.NoError(t, err)
		require.Empty(t, checkList(t, tracker))
		end()
	})
}
