package partitions_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/partitions"
)

// Law P1: a store that is fenced when it is opened again ends the partition, even if it
// was opened before.
func TestTakenOverBetweenTwoPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 10)
		pipelines := 0
		c := j.config(assigner(func(ctx context.Context, h partitions.Handler) error { return h.Assigned(ctx, "p0", 7) }))
		c.Pipeline = func(context.Context, partitions.Partition) error {
			pipelines++
			j.stores.mu.Lock()
			defer j.stores.mu.Unlock()
			j.stores.epochs["p0"] = 8
			return errTrial
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		begun := time.Now()
		require.ErrorIs(t, partitions.Run(ctx, c), checkpoint.ErrFenced)
		require.Equal(t, 1, pipelines)
		require.Less(t, time.Since(begun), time.Minute)
	})
}

// openingStores block in Open until ctx ends.
type openingStores struct{}

func (openingStores) Open(ctx context.Context, _ string, _ uint64) (checkpoint.Store, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("open: %w", context.Cause(ctx))
}

// A partition that is revoked while its store is being opened counts as suspended, since
// its pipeline has not begun.
func TestRevokedWhileItsStoreIsOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newJob(1, 10).config(assigner(func(ctx context.Context, h partitions.Handler) error {
			err := h.Assigned(ctx, "p0", 1)
			synctest.Wait()
			return errors.Join(err, h.Revoked(ctx, "p0"))
		}))
		c.Stores = openingStores{}
		require.NoError(t, partitions.Run(t.Context(), c))
	})
}

// lateStores open stores after calling opens.
type lateStores struct {
	partitions.Stores
	opens  func(ctx context.Context) error // before the store is opened
	closed int
}

func (s *lateStores) Open(ctx context.Context, partition string, epoch uint64) (checkpoint.Store, error) {
	if err := s.opens(ctx); err != nil {
		return nil, err
	}
	store, err := s.Stores.Open(ctx, partition, epoch)
	return closing{store, &s.closed}, err
}

// closing is a store that counts its Close.
type closing struct {
	checkpoint.Store
	closed *int
}

func (s closing) Close() error {
	*s.closed++
	return s.Store.Close()
}

// If a partition is revoked while its store is being opened, the store is closed:
// otherwise the next owner would wait for its lock.
func TestStoreThatIsOpenedTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 10)
		s := &lateStores{Stores: j.stores, opens: func(ctx context.Context) error { <-ctx.Done(); return nil }}
		c := j.config(assigner(func(ctx context.Context, h partitions.Handler) error {
			err := h.Assigned(ctx, "p0", 1)
			synctest.Wait()
			return errors.Join(err, h.Revoked(ctx, "p0"))
		}))
		c.Stores = s
		c.Pipeline = func(context.Context, partitions.Partition) error { panic("it was revoked") }
		require.NoError(t, partitions.Run(t.Context(), c))
		require.Equal(t, 1, s.closed)
	})
}

// Opening a store is repeated after a back-off.
func TestStoreThatCannotBeOpenedYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 10)
		failures := 2
		c := j.config(partitions.Static("p0"))
		c.Stores = &lateStores{Stores: j.stores, opens: func(context.Context) error {
			if failures--; failures >= 0 {
				return errTrial
			}
			return nil
		}}
		began := time.Now()
		require.NoError(t, partitions.Run(t.Context(), c))
		require.Equal(t, 3*time.Second, time.Since(began).Truncate(time.Second))
		j.check(t)
	})
}

// The error of a pipeline during its suspension is the error of the revocation.
func TestPipelineThatFailsWhileItIsSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newJob(1, 10).config(assigner(func(ctx context.Context, h partitions.Handler) error {
			require.NoError(t, h.Assigned(ctx, "p0", 1))
			synctest.Wait()
			require.ErrorIs(t, h.Revoked(ctx, "p0"), errTrial)
			return nil
		}))
		c.Pipeline = func(_ context.Context, p partitions.Partition) error {
			require.NoError(t, p.Coordinator.Start())
			<-p.Coordinator.Ended()
			return errTrial
		}
		require.NoError(t, partitions.Run(t.Context(), c))
	})
}

// The log shows how partitions end, except partitions that reach the end of their input.
func TestLogOfAPartition(t *testing.T) {
	for want, change := range map[string]func(c *partitions.Config, j *job){
		"": func(*partitions.Config, *job) {},
		`level=ERROR msg="the store of a partition whose pipeline has ended could not be closed" partition=p0 epoch=0 error=trial`: func(c *partitions.Config, j *job) {
			c.Stores = &unclosableStores{stores: j.stores}
		},
		`level=ERROR msg="pipeline of a partition failed and will be restarted" partition=p0 epoch=0 error=trial after=1s`: func(c *partitions.Config, j *job) {
			failed := false
			c.Pipeline = func(ctx context.Context, p partitions.Partition) error {
				if !failed {
					failed = true
					return errTrial
				}
				return j.pipeline(ctx, p)
			}
		},
		`level=ERROR msg="partition ended: another run has its store or output" partition=p0 epoch=0 error=`: func(_ *partitions.Config, j *job) {
			j.stores.epochs["p0"] = 1
		},
		`level=WARN msg="partition revoked, but not suspended" partition=p0 error=trial`: func(c *partitions.Config, _ *job) {
			c.Assigner = assigner(func(ctx context.Context, h partitions.Handler) error {
				require.NoError(t, h.Assigned(ctx, "p0", 0))
				synctest.Wait()
				require.Error(t, h.Revoked(ctx, "p0"))
				return nil
			})
			c.Pipeline = func(_ context.Context, p partitions.Partition) error {
				require.NoError(t, p.Coordinator.Start())
				<-p.Coordinator.Ended()
				return errTrial
			}
		},
		`level=WARN msg="partition lost" partition=p0 epoch=3`: func(c *partitions.Config, _ *job) {
			c.Assigner = assigner(func(ctx context.Context, h partitions.Handler) error {
				require.NoError(t, h.Assigned(ctx, "p0", 3))
				synctest.Wait()
				h.Lost("p0")
				return nil
			})
		},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(1, 10)
				var book bytes.Buffer
				c := j.config(partitions.Static("p0"))
				c.Logger = slog.New(slog.NewTextHandler(&book, &slog.HandlerOptions{Level: slog.LevelWarn}))
				change(&c, j)
				_ = partitions.Run(t.Context(), c) // the test checks the log
				require.Contains(t, book.String(), want)
				if want == "" {
					require.Empty(t, book.String())
				}
			})
		})
	}
}

// counting counts how often leases are extended.
type counting struct {
	lock.Locks
	extended atomic.Int64
}

func (c *counting) Extend(ctx context.Context, g lock.Grant, d time.Duration) error {
	c.extended.Add(1)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.Locks.Extend(ctx, g, d)
}

// A lease is extended three times within its length, independent of the polls.
func TestLeasesAreExtendedThreeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &counting{Locks: memory.Open().Locks()}
		l := &partitions.Leases{Locks: locks, Group: "g", Partitions: []string{"a"}, Lease: 9 * time.Second, Poll: 100 * time.Millisecond, Logger: quiet}
		ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
		defer stop()
		lost := func(string) { t.Error("lost") }
		require.NoError(t, l.Run(ctx, handler{func(context.Context, string) error { return nil }, func(string) {}, lost}))
		require.InDelta(t, 2*30, locks.extended.Load(), 4, "the worker's and the partition's")
	})
}

// book is a log that is read while it is written.
type book struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *book) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *book) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Law P1: the loss of a lock is detected when its lease is extended, not when the lease
// ends. The worker acquires its own lock again, and the partition when it is free. Errors
// of the locks are logged, except ErrHeld.
func TestLocksThatAreTakenAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &trouble{Locks: memory.Open().Locks()}
		var book book
		l := &partitions.Leases{
			Locks: locks, Group: "g", Partitions: []string{"a", "b"}, Worker: "w", Lease: 9 * time.Second, Logger: slog.New(slog.NewTextHandler(&book, nil)),
		}
		var assigned, lost []string
		began := time.Now()
		at := func(partition string) string { return fmt.Sprintf("%s@%d", partition, time.Since(began)/time.Second) }
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		var mu sync.Mutex
		go func() {
			ended <- l.Run(ctx, handler{
				assigned: func(_ context.Context, partition string) error {
					mu.Lock()
					defer mu.Unlock()
					assigned = append(assigned, at(partition))
					return nil
				},
				revoked: func(string) {},
				lost: func(partition string) {
					mu.Lock()
					defer mu.Unlock()
					lost = append(lost, at(partition))
				},
			})
		}()
		time.Sleep(500 * time.Millisecond)
		held, err := locks.Held(ctx, "g/")
		require.NoError(t, err)
		require.Len(t, held, 3)
		for _, h := range held[:2] { // of a, and of b
			require.NoError(t, locks.Release(ctx, h.Grant))
		}
		require.NoError(t, locks.Release(ctx, held[2].Grant)) // the worker's
		another, err := locks.Acquire(ctx, "g/partition/a", "another", time.Hour)
		require.NoError(t, err)
		time.Sleep(9 * time.Second)
		mu.Lock()
		require.Equal(t, []string{"a@3", "b@3"}, slices.Sorted(slices.Values(lost)))
		mu.Unlock()
		held, err = locks.Held(ctx, "g/worker/")
		require.NoError(t, err)
		require.Len(t, held, 1)
		require.NoError(t, locks.Release(ctx, another))
		time.Sleep(2 * time.Second)
		mu.Lock()
		require.Len(t, assigned, 4, "each of them again: %v", assigned)
		mu.Unlock()
		require.Empty(t, book.String(), "locks of others are no trouble")
		locks.set("error")
		time.Sleep(20 * time.Second)
		for _, what := range []string{`msg="partitions: polling" lock=g/ error=trial`, `msg="partitions: extending" lock=g/partition/a error=trial`, `msg="partitions: acquiring" lock=g/worker/w error=trial`} {
			require.Contains(t, book.String(), what)
		}
		stop()
		require.NoError(t, <-ended)
	})
}

// Leases that are shorter than the interval between polls are extended in time.
func TestShortLeases(t *testing.T) {
	for _, lease := range []time.Duration{100 * time.Millisecond, time.Second, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := &partitions.Leases{Locks: memory.Open().Locks(), Group: "g", Partitions: []string{"a"}, Lease: lease, Logger: quiet}
			var assigned, lost atomic.Int64
			ctx, stop := context.WithTimeout(t.Context(), 3*time.Second)
			defer stop()
			require.NoError(t, l.Run(ctx, handler{
				assigned: func(context.Context, string) error { assigned.Add(1); return nil },
				revoked:  func(string) {},
				lost:     func(string) { lost.Add(1) },
			}))
			require.EqualValues(t, 1, assigned.Load())
			require.Zero(t, lost.Load())
		})
	}
}

// A partition is released if Assigned returns an error, and acquired again later.
func TestAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &partitions.Leases{Locks: memory.Open().Locks(), Group: "g", Partitions: []string{"a"}, Logger: quiet}
		var calls, revoked atomic.Int64
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- l.Run(ctx, handler{func(context.Context, string) error {
				if calls.Add(1) == 1 {
					return errTrial
				}
				return nil
			}, func(string) { revoked.Add(1) }, func(string) { t.Error("lost") }})
		}()
		time.Sleep(time.Minute)
		require.EqualValues(t, 2, calls.Load())
		require.EqualValues(t, 1, revoked.Load())
		stop()
		require.NoError(t, <-ended)
		require.EqualValues(t, 2, revoked.Load())
	})
}

// A revocation that ends late does not remove the next assignment of its partition (law
// P1).
func TestRevokedLostAndAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		c := newJob(1, 10).config(assigner(func(ctx context.Context, h partitions.Handler) error {
			require.NoError(t, h.Assigned(ctx, "p0", 1))
			for epoch := uint64(2); epoch < 30; epoch++ {
				synctest.Wait()
				require.EqualValues(t, 1, running.Load())
				revoked := make(chan struct{})
				go func() {
					defer close(revoked)
					_ = h.Revoked(ctx, "p0") // the partition is lost meanwhile
				}()
				synctest.Wait()
				h.Lost("p0")
				require.NoError(t, h.Assigned(ctx, "p0", epoch))
				<-revoked
			}
			synctest.Wait()
			h.Lost("p0")
			return nil
		}))
		c.Pipeline = func(ctx context.Context, _ partitions.Partition) error {
			running.Add(1)
			defer running.Add(-1)
			<-ctx.Done()
			time.Sleep(time.Second)
			return context.Cause(ctx)
		}
		within, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_ = partitions.Run(within, c)
		require.Zero(t, running.Load())
	})
}

// gatedHandler is a user's slog.Handler that blocks at one message.
type gatedHandler struct {
	slog.Handler
	message string
	gate    chan struct{}
}

func (h gatedHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h gatedHandler) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		<-h.gate
	}
	return nil
}

// Law P1: partitions whose leases have ended are aborted even if the user's logger
// blocks.
func TestLostWhileTheLoggerWaits(t *testing.T) {
	for _, message := range []string{"partition lost", "partition assigned"} {
		t.Run(message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				locks := &trouble{Locks: memory.Open().Locks()}
				j := newJob(2, 1)
				gate := make(chan struct{})
				logger := slog.New(gatedHandler{slog.DiscardHandler, message, gate})
				c := j.config(&partitions.Leases{Locks: locks, Group: "g", Partitions: j.names(), Logger: logger})
				c.Logger = logger
				var began, aborted atomic.Int64
				c.Pipeline = func(ctx context.Context, p partitions.Partition) error {
					began.Add(1)
					<-ctx.Done()
					aborted.Add(1)
					return p.Coordinator.Err()
				}
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- partitions.Run(ctx, c) }()
				time.Sleep(time.Second)
				locks.set("error")
				time.Sleep(time.Minute)
				require.EqualValues(t, 2, began.Load())
				require.EqualValues(t, 2, aborted.Load())
				stop()
				close(gate)
				require.NoError(t, <-ended)
			})
		})
	}
}

// A6: partitions run even if a user's logger panics.
func TestLoggerThatBreaks(t *testing.T) {
	for name, breaks := range map[string]func(){"panics": func() { panic("boom") }, "ends its goroutine": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJob(2, 100)
				locks := &trouble{Locks: memory.Open().Locks()}
				logger := slog.New(brokenHandler{slog.DiscardHandler, breaks})
				c := j.config(&partitions.Leases{Locks: locks, Group: "g", Partitions: j.names(), Logger: logger})
				c.Logger = logger
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- partitions.Run(ctx, c) }()
				time.Sleep(100 * time.Millisecond)
				locks.set("error")
				time.Sleep(time.Minute)
				locks.set("")
				j.done.Wait()
				stop()
				require.NoError(t, <-ended)
				j.check(t)
			})
		})
	}
}

// brokenHandler is a slog.Handler that panics.
type brokenHandler struct {
	slog.Handler
	breaks func()
}

func (h brokenHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (h brokenHandler) Handle(context.Context, slog.Record) error { h.breaks(); return nil }
