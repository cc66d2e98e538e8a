package partitions_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/backend"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/internal/testing/rowoutput"
	"github.com/weirflow/weir/internal/testing/suite"
	"github.com/weirflow/weir/partitions"
)

var (
	quiet    = slog.New(slog.DiscardHandler)
	errTrial = errors.New("trial")
)

// stores keep checkpoints in memory and fence by epoch.
type stores struct {
	mu     sync.Mutex
	newest map[string]*checkpointtest.MemoryStore
	epochs map[string]uint64
	opened int
}

func newStores() *stores {
	return &stores{newest: map[string]*checkpointtest.MemoryStore{}, epochs: map[string]uint64{}}
}

func (s *stores) Open(_ context.Context, partition string, epoch uint64) (checkpoint.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	if epoch < s.epochs[partition] {
		return nil, fmt.Errorf("epoch %d: %w", epoch, checkpoint.ErrFenced)
	}
	s.epochs[partition] = epoch
	m := checkpointtest.NewMemoryStore()
	if before := s.newest[partition]; before != nil {
		m = before.Reopen()
	}
	s.newest[partition] = m
	return m, nil
}

// table has the rows that the output of a partition has published.
type table struct {
	mu   sync.Mutex
	rows []int
}

func (t *table) output() *rowoutput.Output {
	return &rowoutput.Output{Publish: func(_ context.Context, first int, rows []int) error {
		t.mu.Lock()
		defer t.mu.Unlock()
		if n := len(t.rows) - first; n < len(rows) {
			t.rows = append(t.rows, rows[n:]...)
		}
		return nil
	}}
}

// job is a job of several partitions: each element is doubled, after a while.
type job struct {
	inputs map[string][]int
	tables map[string]*table
	stores *stores

	permits       *backend.Backend // of all partitions
	running, most atomic.Int64     // concurrent calls: now, and at most so far

	done    sync.WaitGroup // one for each partition
	drained sync.Map       // their names
}

func newJob(count, length int) *job {
	j := &job{inputs: map[string][]int{}, tables: map[string]*table{}, stores: newStores(), permits: backend.New("store", backend.Limit(1000))}
	for i := range count {
		name := "p" + strconv.Itoa(i)
		for n := range length {
			j.inputs[name] = append(j.inputs[name], 1000*i+n)
		}
		j.tables[name] = &table{}
	}
	j.done.Add(count)
	return j
}

func (j *job) names() []string {
	var names []string
	for name := range j.inputs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (j *job) pipeline(ctx context.Context, p partitions.Partition) error {
	fn := asyncop.Blocking(func(ctx context.Context, v int) (int, error) {
		n := j.running.Add(1)
		defer j.running.Add(-1)
		for most := j.most.Load(); n > most && !j.most.CompareAndSwap(most, n); most = j.most.Load() {
		}
		select {
		case <-time.After(time.Duration(10+v%7) * time.Millisecond):
		case <-ctx.Done():
		}
		return 2 * v, ctx.Err()
	})
	source := checkpoint.NewSource(p.Coordinator, "source", checkpointtest.NewSliceInput(j.inputs[p.Name]))
	op := asyncop.OrderedWait(fn, time.Minute, 3, asyncop.WithName("double"), asyncop.WithCheckpoints(p.Coordinator),
		asyncop.WithContext(ctx), asyncop.WithLogger(quiet), asyncop.WithBackend(j.permits))
	sink := checkpoint.NewSink(p.Coordinator, "sink", j.tables[p.Name].output())
	if err := p.Coordinator.Start(); err != nil {
		return err
	}
	source.Via(op).To(sink)
	if err := p.Coordinator.Wait(); err != nil {
		return err
	}
	if last, _ := j.stores.kind(p.Name); last == checkpoint.Drain {
		if _, before := j.drained.LoadOrStore(p.Name, true); !before {
			j.done.Done()
		}
	}
	return op.Wait()
}

// kind returns the kind of the last checkpoint of a partition.
func (s *stores) kind(partition string) (checkpoint.Kind, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, _, err := checkpoint.Latest(context.Background(), s.newest[partition])
	if errors.Is(err, checkpoint.ErrClosed) {
		last, _, err = checkpoint.Latest(context.Background(), s.newest[partition].Reopen())
	}
	if err != nil {
		return 0, err
	}
	return last.Kind, nil
}

func (j *job) config(a partitions.Assigner) partitions.Config {
	return partitions.Config{
		Assigner: a, Stores: j.stores, Pipeline: j.pipeline, Logger: quiet,
		Checkpoints: []checkpoint.Option{checkpoint.WithInterval(100 * time.Millisecond), checkpoint.WithLogger(quiet)},
	}
}

func (j *job) check(t *testing.T) {
	t.Helper()
	for name, input := range j.inputs {
		want := make([]int, len(input))
		for i, v := range input {
			want[i] = 2 * v
		}
		assert.Equal(t, want, j.tables[name].rows, name)
	}
}

// A single worker runs all partitions to their ends.
func TestStatic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(3, 100)
		require.NoError(t, partitions.Run(t.Context(), j.config(partitions.Static(j.names()...))))
		j.check(t)
	})
}

// Permits limit the calls of all partitions together.
func TestPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(3, 100)
		j.permits.SetLimit(4)
		require.NoError(t, partitions.Run(t.Context(), j.config(partitions.Static(j.names()...))))
		j.check(t)
		require.EqualValues(t, 4, j.most.Load())
	})
}

// A worker that is stopped suspends its partitions, and another worker resumes them.
func TestStaticStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(3, 100)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			require.NoError(t, partitions.Run(ctx, j.config(partitions.Static(j.names()...))))
			cancel()
			for _, name := range j.names() {
				kind, err := j.stores.kind(name)
				require.NoError(t, err)
				require.Equal(t, checkpoint.Suspend, kind)
			}
		}
		require.NoError(t, partitions.Run(t.Context(), j.config(partitions.Static(j.names()...))))
		j.check(t)
	})
}

// trouble is a fault between a worker and the locks.
type trouble struct {
	lock.Locks
	mu sync.Mutex
	// "" has no effect; "error": each call fails; "deaf": it fails after it took effect;
	// "hang": it blocks until its context ends; "lie": Extend returns nil without an
	// effect.
	cut string
}

func (l *trouble) set(cut string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
}

func (l *trouble) call(ctx context.Context, extends bool, f func() error) error {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	switch {
	case cut == "hang":
		<-ctx.Done()
		return ctx.Err()
	case cut == "lie" && extends:
		return nil
	case cut == "deaf":
		return errors.Join(f(), errTrial)
	case cut != "":
		return errTrial
	}
	return f()
}

func (l *trouble) Acquire(ctx context.Context, name, owner string, lease time.Duration) (g lock.Grant, err error) {
	err = l.call(ctx, false, func() error { g, err = l.Locks.Acquire(ctx, name, owner, lease); return err })
	return g, err
}

func (l *trouble) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	return l.call(ctx, true, func() error { return l.Locks.Extend(ctx, g, d) })
}

func (l *trouble) Release(ctx context.Context, g lock.Grant) error {
	return l.call(ctx, false, func() error { return l.Locks.Release(ctx, g) })
}

func (l *trouble) Held(ctx context.Context, prefix string) (held []lock.Holding, err error) {
	err = l.call(ctx, false, func() error { held, err = l.Locks.Held(ctx, prefix); return err })
	return held, err
}

// owners checks law P1: a partition has one owner at a time, and epochs rise.
type owners struct {
	t      *testing.T
	mu     sync.Mutex
	of     map[string]string
	epochs map[string]uint64
}

// workerOf is the Handler of a worker.
type workerOf struct {
	*owners
	name string
	slow func() time.Duration
}

func (w workerOf) Assigned(_ context.Context, partition string, epoch uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	assert.Empty(w.t, w.of[partition], "%q is given to %q", partition, w.name)
	assert.Greater(w.t, epoch, w.epochs[partition])
	w.of[partition], w.epochs[partition] = w.name, epoch
	return nil
}

func (w workerOf) Revoked(_ context.Context, partition string) error {
	time.Sleep(w.slow())
	w.Lost(partition)
	return nil
}

func (w workerOf) Lost(partition string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of[partition] == w.name {
		delete(w.of, partition)
	}
}

// shares returns how many partitions each worker has, sorted.
func (o *owners) shares() (shares []int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	counts := map[string]int{}
	for _, w := range o.of {
		counts[w]++
	}
	for _, n := range counts {
		shares = append(shares, n)
	}
	slices.Sort(shares)
	return shares
}

// Law P1 under random joins, leaves and deaths. At the end all partitions are distributed
// evenly.
func TestLeasesAtRandom(t *testing.T) {
	cuts := []string{"error", "deaf", "hang"}
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			between := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}
			locks := memory.Open().Locks()
			o := &owners{t: t, of: map[string]string{}, epochs: map[string]uint64{}}
			var names []string
			for i := range 1 + between(12) {
				names = append(names, "p"+strconv.Itoa(i))
			}
			type worker struct {
				stop  context.CancelFunc
				locks *trouble
			}
			var all sync.WaitGroup
			var workers []worker
			start := func(i int) {
				ctx, stop := context.WithCancel(t.Context())
				w := worker{stop, &trouble{Locks: locks}}
				name := "w" + strconv.Itoa(i)
				all.Go(func() {
					l := &partitions.Leases{Locks: w.locks, Group: "g", Partitions: names, Worker: name, Lease: 9 * time.Second, Logger: quiet}
					slow := func() time.Duration { return time.Duration(between(15000)) * time.Millisecond }
					assert.NoError(t, l.Run(ctx, workerOf{o, name, slow}))
				})
				workers = append(workers, w)
			}
			for i := range 15 {
				n := len(workers)
				switch k := between(6); {
				case n == 0 || n < 5 && k < 3:
					start(i)
				case k == 3: // the worker leaves
					w := between(n)
					workers[w].stop()
					workers = slices.Delete(workers, w, w+1)
				case k == 4: // the worker is cut off from the locks for good
					w := between(n)
					workers[w].locks.set(cuts[between(len(cuts))])
					workers[w].stop()
					workers = slices.Delete(workers, w, w+1)
				default: // the worker is cut off for a while
					w := workers[between(n)].locks
					w.set(cuts[between(len(cuts))])
					time.AfterFunc(time.Duration(between(20000))*time.Millisecond, func() { w.set("") })
				}
				time.Sleep(time.Duration(between(15000)) * time.Millisecond)
			}
			if len(workers) == 0 {
				start(100)
			}
			time.Sleep(time.Minute)
			var want []int
			for i := range len(workers) {
				if n := (len(names) + i) / len(workers); n > 0 {
					want = append(want, n)
				}
			}
			assert.Equal(t, want, o.shares(), "%d workers, seed %d", len(workers), seed)
			for _, w := range workers {
				w.stop()
			}
			all.Wait()
			assert.Empty(t, o.of)
		})
	}
}

// handler is a Handler of functions.
type handler struct {
	assigned      func(ctx context.Context, partition string) error
	revoked, lost func(partition string)
}

func (h handler) Assigned(ctx context.Context, partition string, _ uint64) error {
	return h.assigned(ctx, partition)
}
func (h handler) Lost(partition string) { h.lost(partition) }

func (h handler) Revoked(_ context.Context, partition string) error {
	h.revoked(partition)
	return nil
}

// Law P1: if a lease ends before Assigned has returned, the partition is lost after that.
func TestLostWhileAssigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cut := &trouble{Locks: memory.Open().Locks()}
		l := &partitions.Leases{Locks: cut, Group: "g", Partitions: []string{"a"}, Logger: quiet}
		var runs atomic.Bool
		drop := func(string) { runs.Store(false) }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- l.Run(ctx, handler{func(context.Context, string) error {
				cut.set("error")
				time.Sleep(20 * time.Second) // longer than the lease, even if ctx ends
				runs.Store(true)
				return nil
			}, drop, drop})
		}()
		time.Sleep(21 * time.Second)
		require.False(t, runs.Load())
		stop()
		require.NoError(t, <-ended)
	})
}

// hangingLock blocks when partition a is acquired.
type hangingLock struct{ lock.Locks }

func (l hangingLock) Acquire(ctx context.Context, name, owner string, lease time.Duration) (lock.Grant, error) {
	if name == "g/partition/a" {
		<-ctx.Done()
		return lock.Grant{}, context.Cause(ctx)
	}
	return l.Locks.Acquire(ctx, name, owner, lease)
}

// If a partition cannot be acquired, because its lock or an earlier pipeline hangs, the
// worker keeps its other partitions.
func TestRun_PartitionThatCannotBeTaken(t *testing.T) {
	for name, hang := range map[string]bool{"lock": true, "handler": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var locks lock.Locks = memory.Open().Locks()
				if hang {
					locks = hangingLock{locks}
				}
				l := &partitions.Leases{Locks: locks, Group: "g", Partitions: []string{"a", "b"}, Logger: quiet}
				var assigned atomic.Int64
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() {
					ended <- l.Run(ctx, handler{func(ctx context.Context, partition string) error {
						if partition == "a" {
							<-ctx.Done()
							return context.Cause(ctx)
						}
						assigned.Add(1)
						return nil
					}, func(string) {}, func(partition string) { assert.Equal(t, "a", partition) }})
				}()
				time.Sleep(5 * time.Minute)
				require.EqualValues(t, 1, assigned.Load(), "b stays here")
				stop()
				require.NoError(t, <-ended)
			})
		})
	}
}

// A partition that is being given up is not acquired again before it has been released,
// even if its lease has ended. After that it is acquired, and stays.
func TestRun_NotTakenWhileRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := memory.Open().Locks()
		cut := &trouble{Locks: locks}
		names := []string{"a", "b"}
		var mu sync.Mutex
		events := map[string][]string{} // by partition
		note := func(p, event string) {
			mu.Lock()
			defer mu.Unlock()
			events[p] = append(events[p], event)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- (&partitions.Leases{Locks: cut, Group: "g", Partitions: names, Worker: "1", Logger: quiet}).Run(ctx, handler{
				func(_ context.Context, p string) error {
					note(p, "assigned")
					return nil
				},
				func(p string) {
					time.Sleep(time.Minute)
					note(p, "revoked")
				},
				func(p string) { note(p, "lost") },
			})
		}()
		synctest.Wait()
		other, leave := context.WithCancel(t.Context())
		go func() { // the first worker gives up b for this one
			w := &partitions.Leases{Locks: locks, Group: "g", Partitions: names, Worker: "2", Logger: quiet}
			nothing := func(string) {}
			ended <- w.Run(other, handler{func(context.Context, string) error { return nil }, nothing, nothing})
		}()
		time.Sleep(5 * time.Second)
		cut.set("error")
		time.Sleep(20 * time.Second) // the other worker has both by now
		leave()
		require.NoError(t, <-ended)
		cut.set("")
		time.Sleep(time.Hour)
		mu.Lock()
		require.Equal(t, map[string][]string{"a": {"assigned", "lost", "assigned"}, "b": {"assigned", "lost", "revoked", "assigned"}}, events)
		mu.Unlock()
		stop()
		require.NoError(t, <-ended)
	})
}

// How long partitions stay without an owner.
func TestLeasesAreQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := memory.Open().Locks()
		o := &owners{t: t, of: map[string]string{}, epochs: map[string]uint64{}}
		var all sync.WaitGroup
		start := func(name string) (*trouble, context.CancelFunc) {
			ctx, stop := context.WithCancel(t.Context())
			cut := &trouble{Locks: locks}
			all.Go(func() {
				l := &partitions.Leases{Locks: cut, Group: "g", Partitions: []string{"a", "b", "c", "d", "e", "f"}, Worker: name, Logger: quiet}
				assert.NoError(t, l.Run(ctx, workerOf{o, name, func() time.Duration { return 0 }}))
			})
			return cut, stop
		}
		_, stopA := start("a")
		synctest.Wait()
		require.Equal(t, []int{6}, o.shares(), "at once")
		_, stopB := start("b")
		time.Sleep(2100 * time.Millisecond)
		require.Equal(t, []int{3, 3}, o.shares(), "a worker that joins waits for two looks")
		stopB()
		time.Sleep(1100 * time.Millisecond)
		require.Equal(t, []int{6}, o.shares(), "what a worker leaves is free at the next look")
		cutC, stopC := start("c")
		time.Sleep(2100 * time.Millisecond)
		require.Equal(t, []int{3, 3}, o.shares())
		cutC.set("error")
		time.Sleep(15100 * time.Millisecond)
		require.Equal(t, []int{6}, o.shares(), "that of a dead one when its lease has ended")
		stopA()
		stopC()
		all.Wait()
	})
}

// Laws P1 and C1: workers join, leave, die, and lose leases without notice, and each
// output has each row once, in order.
func TestRunAtRandom(t *testing.T) {
	seeds := uint64(8)
	if suite.Race {
		seeds = 2
	}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			locks := memory.Open().Locks()
			j := newJob(6, 1000)
			finished := make(chan struct{})
			go func() { j.done.Wait(); close(finished) }()
			var all sync.WaitGroup
			defer all.Wait()
			for i := 0; ; i++ {
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				cut := &trouble{Locks: locks}
				all.Go(func() {
					err := partitions.Run(ctx, j.config(&partitions.Leases{
						Locks: cut, Group: "g", Partitions: j.names(), Worker: "w" + strconv.Itoa(i), Lease: 3 * time.Second, Logger: quiet,
					}))
					if err != nil {
						assert.ErrorIs(t, err, checkpoint.ErrFenced)
					}
				})
				end := time.Duration(random.IntN(10000)) * time.Millisecond
				switch random.IntN(4) {
				case 0:
					time.AfterFunc(end, stop)
				case 1:
					time.AfterFunc(end, func() { cut.set("error"); time.AfterFunc(5*time.Second, stop) })
				case 2:
					time.AfterFunc(end, func() { cut.set("hang"); time.AfterFunc(5*time.Second, stop) })
				case 3: // only the stores show the worker that it has lost its partitions
					time.AfterFunc(end, func() { cut.set("lie"); time.AfterFunc(20*time.Second, stop) })
				}
				select {
				case <-finished:
				case <-time.After(time.Duration(random.IntN(5000)) * time.Millisecond):
					continue
				}
				break
			}
			j.check(t)
		})
	}
}

// A pipeline that fails is restarted after a growing back-off, which a completed
// checkpoint resets. Other pipelines continue.
func TestPipelineThatFails(t *testing.T) {
	for how, fail := range map[string]func() error{
		"error":  func() error { return errTrial },
		"panic":  func() error { panic(errTrial) },
		"goexit": func() error { runtime.Goexit(); return nil },
		"early":  func() error { return nil },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(2, 10)
				began := time.Now()
				var starts []time.Duration
				c := j.config(partitions.Static("p0", "p1"))
				c.Pipeline = func(ctx context.Context, p partitions.Partition) error {
					if p.Name == "p1" {
						return j.pipeline(ctx, p)
					}
					starts = append(starts, time.Since(began))
					if n := len(starts); n != 3 && n < 11 {
						return fail()
					}
					if err := j.pipeline(ctx, p); err != nil || len(starts) == 11 {
						return err
					}
					return errTrial // the stream has ended, with a checkpoint
				}
				require.NoError(t, partitions.Run(t.Context(), c))
				for i, wait := range []time.Duration{1, 2, 1, 2, 4, 8, 16, 32, 60, 60} {
					if i != 2 { // whose pipeline takes time
						require.Equal(t, wait*time.Second, (starts[i+1] - starts[i]).Round(100*time.Millisecond), i)
					}
				}
				j.check(t)
			})
		})
	}
}

// A pipeline that does not end is abandoned, and the error names it.
func TestStuckPipeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(2, 10)
		release := make(chan struct{})
		c := j.config(partitions.Static("p0", "p1"))
		c.SuspendTimeout = 5 * time.Second
		c.Pipeline = func(_ context.Context, p partitions.Partition) error {
			if p.Name == "p0" {
				<-release
			} else {
				checkpoint.NewSource(p.Coordinator, "source", checkpointtest.NewChannelInput(make(chan int)))
				<-p.Coordinator.Ended() // without Start
			}
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- partitions.Run(ctx, c) }()
		synctest.Wait()
		cancel()
		began := time.Now()
		err := <-ended
		require.ErrorContains(t, err, `"p0": its pipeline does not end`)
		require.ErrorContains(t, err, `"p1": not suspended in time`)
		require.Equal(t, 20*time.Second, time.Since(began))
		close(release)
	})
}

// unclosable is a store whose Close fails.
type unclosable struct {
	checkpoint.Store
	closed *int
}

func (s unclosable) Close() error {
	*s.closed++
	return errors.Join(s.Store.Close(), errTrial)
}

type unclosableStores struct {
	*stores
	closed int
}

func (s *unclosableStores) Open(ctx context.Context, partition string, epoch uint64) (checkpoint.Store, error) {
	store, err := s.stores.Open(ctx, partition, epoch)
	return unclosable{store, &s.closed}, err
}

// A pipeline at its end is not restarted, even if its store could not be closed.
func TestStoreThatDoesNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 10)
		c := j.config(partitions.Static("p0"))
		s := &unclosableStores{stores: j.stores}
		c.Stores = s
		err := partitions.Run(t.Context(), c)
		require.ErrorIs(t, err, errTrial)
		require.ErrorContains(t, err, `"p0"`)
		require.Equal(t, 1, s.closed)
		j.check(t)
	})
}

// abortPatience begins when the context of a pipeline ends, so Run waits less long for a
// lost pipeline than for a pipeline that is being suspended.
func TestLostAndStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		c := newJob(1, 10).config(assigner(func(ctx context.Context, h partitions.Handler) error {
			require.NoError(t, h.Assigned(ctx, "p0", 1))
			synctest.Wait()
			h.Lost("p0")
			return errTrial
		}))
		c.Pipeline = func(context.Context, partitions.Partition) error { <-release; return nil }
		began := time.Now()
		err := partitions.Run(t.Context(), c)
		require.ErrorIs(t, err, errTrial)
		require.ErrorContains(t, err, `"p0": its pipeline does not end`)
		require.Equal(t, 15*time.Second, time.Since(began))
		close(release)
	})
}

// A lost partition is assigned to the same worker again only when its pipeline has ended.
func TestLostAndAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 10)
		running := 0
		c := j.config(nil)
		c.Pipeline = func(ctx context.Context, p partitions.Partition) error {
			running++
			assert.Equal(t, 1, running)
			<-ctx.Done()
			time.Sleep(time.Second)
			running--
			return fmt.Errorf("epoch %d has ended", p.Epoch)
		}
		c.Assigner = assigner(func(ctx context.Context, h partitions.Handler) error {
			require.NoError(t, h.Assigned(ctx, "p0", 1))
			require.ErrorContains(t, h.Assigned(ctx, "p0", 2), `"p0" is assigned already`)
			synctest.Wait()
			h.Lost("p0")
			began := time.Now()
			require.NoError(t, h.Assigned(ctx, "p0", 2))
			require.Equal(t, time.Second, time.Since(began))
			synctest.Wait()
			h.Lost("p0")
			within, cancel := context.WithTimeout(ctx, time.Millisecond)
			defer cancel()
			require.ErrorIs(t, h.Assigned(within, "p0", 3), context.DeadlineExceeded)
			require.NoError(t, h.Revoked(ctx, "p0"))
			require.NoError(t, h.Revoked(ctx, "p0"), "nothing is left")
			h.Lost("p0")
			return nil
		})
		require.NoError(t, partitions.Run(t.Context(), c))
		require.Zero(t, running)
	})
}

type assigner func(ctx context.Context, h partitions.Handler) error

func (a assigner) Run(ctx context.Context, h partitions.Handler) error { return a(ctx, h) }

// failingOutput is an output whose Commit fails.
type failingOutput struct {
	*rowoutput.Output
	fail func() error
}

func (o *failingOutput) Commit(ctx context.Context, state []byte) error {
	if err := o.fail(); err != nil {
		return err
	}
	return o.Output.Commit(ctx, state)
}

// failing is a pipeline with a failingOutput.
func (j *job) failing(fail func() error) func(context.Context, partitions.Partition) error {
	return func(_ context.Context, p partitions.Partition) error {
		source := checkpoint.NewSource(p.Coordinator, "source", checkpointtest.NewSliceInput(j.inputs[p.Name]))
		sink := checkpoint.NewSink(p.Coordinator, "sink", &failingOutput{j.tables[p.Name].output(), fail})
		if err := p.Coordinator.Start(); err != nil {
			return err
		}
		source.Via(flow.NewMap(func(v int) int { time.Sleep(10 * time.Millisecond); return 2 * v })).To(sink)
		return p.Coordinator.Wait()
	}
}

// An output that cannot publish delays the revocation at most by its limit.
func TestOutputThatCannotPublish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 100)
		c := j.config(partitions.Static("p0"))
		c.SuspendTimeout = 5 * time.Second
		c.Checkpoints = []checkpoint.Option{checkpoint.WithInterval(time.Hour), checkpoint.WithLogger(quiet)}
		ctx, cancel := context.WithCancel(t.Context())
		c.Pipeline = j.failing(func() error {
			if ctx.Err() != nil { // the last checkpoint
				return errTrial
			}
			return nil
		})
		ended := make(chan error)
		go func() { ended <- partitions.Run(ctx, c) }()
		time.Sleep(150 * time.Millisecond)
		cancel()
		began := time.Now()
		require.ErrorContains(t, <-ended, `"p0": not suspended in time`)
		require.LessOrEqual(t, time.Since(began), 15*time.Second)
	})
}

// If a stale owner fences the output but not the store, the owner continues.
func TestOutputTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 100)
		commits := 0
		c := j.config(assigner(func(ctx context.Context, h partitions.Handler) error { return h.Assigned(ctx, "p0", 7) }))
		c.Pipeline = j.failing(func() error {
			if commits++; commits == 2 {
				return checkpoint.ErrFenced
			}
			return nil
		})
		require.NoError(t, partitions.Run(t.Context(), c))
		require.Greater(t, commits, 2)
		j.check(t)
	})
}

// A partition ends if another worker has taken it over, even if the assigner has not
// noticed (law P1).
func TestTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(2, 100)
		ended := make(chan error, 2)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { ended <- partitions.Run(ctx, j.config(partitions.Static("p0", "p1"))) }()
		time.Sleep(150 * time.Millisecond)
		require.NoError(t, partitions.Run(ctx, j.config(partitions.Static("p0"))))
		err := <-ended
		require.ErrorIs(t, err, checkpoint.ErrFenced)
		require.ErrorContains(t, err, `"p0"`)
		require.NotContains(t, err.Error(), `"p1"`)
		j.check(t)
	})
}

func TestErrors(t *testing.T) {
	j := newJob(1, 1)
	locks := memory.Open().Locks()
	good := j.config(partitions.Static("p0"))
	for want, change := range map[string]func(c *partitions.Config){
		"Config.Assigner is nil":                func(c *partitions.Config) { c.Assigner = nil },
		"Config.Stores is nil":                  func(c *partitions.Config) { c.Stores = (*stores)(nil) },
		"Config.Pipeline is nil":                func(c *partitions.Config) { c.Pipeline = nil },
		"Config.Checkpoints has an option":      func(c *partitions.Config) { c.Checkpoints = []checkpoint.Option{nil} },
		"Config.SuspendTimeout -1s is negative": func(c *partitions.Config) { c.SuspendTimeout = -time.Second },
		"trial": func(c *partitions.Config) {
			c.Assigner = assigner(func(context.Context, partitions.Handler) error { return errTrial })
		},
		"panic": func(c *partitions.Config) {
			c.Assigner = assigner(func(context.Context, partitions.Handler) error { panic("x") })
		},
		`"p0" is assigned already`: func(c *partitions.Config) { c.Assigner = partitions.Static("p0", "p0") },
		"Leases.Locks is nil":      func(c *partitions.Config) { c.Assigner = &partitions.Leases{} },
		`Leases.Group "a/b"`:       func(c *partitions.Config) { c.Assigner = &partitions.Leases{Locks: locks, Group: "a/b"} },
		`Leases.Group "" is empty`: func(c *partitions.Config) { c.Assigner = &partitions.Leases{Locks: locks} },
		`has an empty or duplicate name: ["x" ""]`: func(c *partitions.Config) {
			c.Assigner = &partitions.Leases{Locks: locks, Group: "g", Partitions: []string{"x", ""}}
		},
		"Leases: Lease 0s or Poll -1ns is negative": func(c *partitions.Config) {
			c.Assigner = &partitions.Leases{Locks: locks, Group: "g", Partitions: []string{"x"}, Poll: -1}
		},
		"Leases.Partitions is empty": func(c *partitions.Config) { c.Assigner = &partitions.Leases{Locks: locks, Group: "g"} },
		`empty or duplicate name: ["x" "x"]`: func(c *partitions.Config) {
			c.Assigner = &partitions.Leases{Locks: locks, Group: "g", Partitions: []string{"x", "x"}}
		},
		"Leases: Lease -1ns or Poll 0s is negative": func(c *partitions.Config) {
			c.Assigner = &partitions.Leases{Locks: locks, Group: "g", Partitions: []string{"x"}, Lease: -1}
		},
	} {
		c := good
		change(&c)
		require.ErrorContains(t, partitions.Run(t.Context(), c), want)
	}
	require.NoError(t, partitions.Run(t.Context(), good), "Logger and Clock are optional")
}

// With directories, the next owner waits for the lock of the previous owner.
func TestDirs(t *testing.T) {
	dir := t.TempDir()
	dirs := partitions.Dirs(filepath.Join(dir, "checkpoints"))
	first, err := dirs.Open(t.Context(), "topic/3", 1)
	require.NoError(t, err)
	_, err = dirs.Open(t.Context(), "topic/3", 2)
	_, locked := errors.AsType[*files.LockedError](err)
	require.True(t, locked, "%v", err)
	other, err := dirs.Open(t.Context(), "topic", 2)
	require.NoError(t, err)
	require.NoError(t, errors.Join(first.Close(), other.Close()))
	again, err := dirs.Open(t.Context(), "topic/3", 2)
	require.NoError(t, err)
	require.NoError(t, again.Close())
	for _, name := range []string{"", ".", ".."} {
		_, err = dirs.Open(t.Context(), name, 1)
		require.ErrorContains(t, err, strconv.Quote(name))
	}
	matches, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Len(t, matches, 1)
}

// The cost of an idle partition.
func TestIdlePartitions(t *testing.T) {
	count := 1000
	if suite.Race {
		count = 100
	}
	var names []string
	for i := range count {
		names = append(names, "p"+strconv.Itoa(i))
	}
	s := newStores()
	var running sync.WaitGroup
	running.Add(count)
	c := partitions.Config{
		Assigner: partitions.Static(names...), Stores: s, Logger: quiet, Checkpoints: []checkpoint.Option{checkpoint.WithInterval(time.Hour)},
		Pipeline: func(ctx context.Context, p partitions.Partition) error {
			source := checkpoint.NewSource(p.Coordinator, "source", checkpointtest.NewChannelInput(make(chan int)))
			op := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, v int) (int, error) { return v, nil }), time.Minute, 100,
				asyncop.WithName("op"), asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx))
			sink := checkpoint.NewSink(p.Coordinator, "sink", (&table{}).output())
			if err := p.Coordinator.Start(); err != nil {
				return err
			}
			running.Done()
			source.Via(op).To(sink) // returns at the end of the stream
			return p.Coordinator.Wait()
		},
	}
	used := func() (goroutines int, bytes uint64) {
		for range 3 { // each collection halves the stacks
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc + m.StackInuse
	}
	before, bytesBefore := used()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- partitions.Run(ctx, c) }()
	running.Wait()
	var goroutines, kB float64
	for begun, last := time.Now(), 0.; time.Since(begun) < time.Minute; last = goroutines { // until the number is stable
		after, bytesAfter := used()
		goroutines, kB = float64(after-before)/float64(count), float64(bytesAfter-bytesBefore)/float64(count)/1e3
		if goroutines == last && (kB <= 54 || suite.Race) {
			break
		}
	}
	t.Logf("%.1f goroutines and %.1f kB a partition", goroutines, kB)
	assert.LessOrEqual(t, goroutines, 10.)
	if !suite.Race {
		assert.LessOrEqual(t, kB, 54.)
	}
	cancel()
	require.NoError(t, <-ended)
	for _, name := range names {
		kind, err := s.kind(name)
		require.NoError(t, err)
		require.Equal(t, checkpoint.Suspend, kind)
	}
}
