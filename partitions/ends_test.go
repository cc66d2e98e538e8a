package partitions_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/lock"
	"github.com/weirflow/weir/partitions"
)

// Law P1: a store that is fenced when it is opened again ends the partition, also if it was opened before.
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

// openingStores open a store for as long as they may.
type openingStores struct{}

func (openingStores) Open(ctx context.Context, _ string, _ uint64) (checkpoint.Store, error) {
	<-ctx.Done()
	return nil, fmt.Errorf("open: %w", context.Cause(ctx))
}

// A partition that is revoked while its store is being opened has been suspended: nothing of it has begun.
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

// lateStores open stores as they are asked to.
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

// A store that is opened although its partition was revoked meanwhile is closed, or the next owner would wait for its lock.
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

// A store that cannot be opened is opened again, after a back-off.
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

// What a pipeline returns while it is suspended is the error of the revocation.
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

// The log says what becomes of a partition, and nothing of one that comes to its end.
func TestLogOfAPartition(t *testing.T) {
	for want, change := range map[string]func(c *partitions.Config, j *job){
		"": func(*partitions.Config, *job) {},
		`level=ERROR msg="the store of a partition whose pipeline has ended is not closed" partition=p0 epoch=0 error=trial`: func(c *partitions.Config, j *job) {
			c.Stores = &unclosableStores{stores: j.stores}
		},
		`level=ERROR msg="pipeline of a partition failed and will be started again" partition=p0 epoch=0 error=trial after=1s`: func(c *partitions.Config, j *job) {
			failed := false
			c.Pipeline = func(ctx context.Context, p partitions.Partition) error {
				if !failed {
					failed = true
					return errTrial
				}
				return j.pipeline(ctx, p)
			}
		},
		`level=ERROR msg="partition ended: another worker has taken it over" partition=p0 epoch=0 error=`: func(_ *partitions.Config, j *job) {
			j.stores.epochs["p0"] = 1
		},
		`level=WARN msg="partition revoked, and not suspended" partition=p0 error=trial`: func(c *partitions.Config, _ *job) {
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
				_ = partitions.Run(t.Context(), c) // the log is asked
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
	return c.Locks.Extend(ctx, g, d)
}

// A lease is extended three times within its time, however often the worker looks.
func TestLeasesAreExtendedThreeTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := &counting{Locks: lock.NewMemory(clock.New())}
		l := &partitions.Leases{Locks: locks, Group: "g", Partitions: []string{"a"}, Lease: 9 * time.Second, Poll: 100 * time.Millisecond, Logger: quiet}
		ctx, stop := context.WithTimeout(t.Context(), 90*time.Second)
		defer stop()
		nothing := func(string) {}
		require.NoError(t, l.Run(ctx, handler{func(context.Context, string) error { return nil }, nothing, nothing}))
		require.InDelta(t, 2*30, locks.extended.Load(), 4, "the worker's and the partition's")
	})
}

// Leases that are shorter than the time between two looks are extended in time.
func TestShortLeases(t *testing.T) {
	for _, lease := range []time.Duration{time.Millisecond, time.Second, 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			l := &partitions.Leases{Locks: lock.NewMemory(clock.New()), Group: "g", Partitions: []string{"a"}, Lease: lease, Logger: quiet}
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

// A partition that the handler does not take is given back, and taken again later.
func TestAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &partitions.Leases{Locks: lock.NewMemory(clock.New()), Group: "g", Partitions: []string{"a"}, Logger: quiet}
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

// A revocation that ends late does not forget the next assignment of its partition (law P1).
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
					_ = h.Revoked(ctx, "p0") // it is lost meanwhile
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
