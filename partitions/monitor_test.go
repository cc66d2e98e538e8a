package partitions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/delivery/jobs"
	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/partitions"
)

// endlessInput is an input with a lag but without elements.
type endlessInput struct{ lag int64 }

func (endlessInput) Next() (int, error)             { panic("it waits") }
func (endlessInput) Position() []byte               { return nil }
func (endlessInput) Seek([]byte) error              { return nil }
func (endlessInput) Close() error                   { return nil }
func (endlessInput) Wait(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
func (i endlessInput) Lag() int64                   { return i.lag }

// plain is the pipeline of a partition with a lag. The pipeline of "bad" fails, and the
// lag of "dark" is unknown.
func plain(ctx context.Context, p partitions.Partition) error {
	lag := int64(7)
	switch p.Name {
	case "bad":
		return fmt.Errorf("no right to https://ann:s3cret@files/bad")
	case "dark":
		lag = -1
	}
	source := checkpoint.NewSource(p.Coordinator, "source", endlessInput{lag})
	sink := checkpoint.NewSink(p.Coordinator, "sink", (&table{}).output())
	if err := p.Coordinator.Start(); err != nil {
		return err
	}
	source.Via(flow.NewMap(func(v int) int { return v })).To(sink)
	return p.Coordinator.Wait()
}

// A monitor and the engine report the partitions of a worker, their states and lag, and
// the partitions without an owner.
func TestMonitorStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		cut := &trouble{Locks: engine.Locks()}
		names := []string{"a", "bad", "dark", "z"}
		m := &partitions.Monitor{}
		require.Equal(t, partitions.Status{Unowned: -1}, m.Status())
		c := newJob(1, 1).config(&partitions.Leases{Locks: cut, Group: "g", Partitions: names, Worker: "1", Logger: quiet})
		c.Pipeline, c.Stores, c.Monitor, c.Engine, c.Name = plain, newStores(), m, engine, "flights"
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- partitions.Run(ctx, c) }()
		synctest.Wait()
		of := func(name, state string, lag int64) jobs.Partition {
			p := jobs.Partition{Pipeline: "flights", Name: name, State: state, Lag: lag}
			for _, has := range m.Status().Partitions {
				if has.Name == name {
					p.Epoch, p.Why = has.Epoch, has.Why
				}
			}
			return p
		}
		require.Equal(t, partitions.Status{Partitions: []jobs.Partition{
			of("a", "running", 7), of("bad", "failing", -1), of("dark", "running", -1), of("z", "running", 7),
		}}, m.Status())
		require.Equal(t, "no right to https://ann:xxxxx@files/bad", m.Status().Partitions[1].Why)
		require.Positive(t, m.Status().Partitions[0].Epoch)
		require.Panics(t, func() { _ = partitions.Run(ctx, c) }, "another Run has the monitor")

		j, err := jobs.New(engine, jobs.Config{})
		require.NoError(t, err)
		time.Sleep(21 * time.Second)
		workers, err := j.Workers(t.Context())
		require.NoError(t, err)
		require.Len(t, workers, 1)
		require.Equal(t, m.Status().Partitions, workers[0].Partitions)
		require.Len(t, workers[0].Checkpoints, 3, "the pipeline that fails has none")
		var stored struct {
			Completed uint64
			LastError string
		}
		require.NoError(t, json.Unmarshal(workers[0].Checkpoints["flights/a"], &stored))
		require.Positive(t, stored.Completed)
		require.Empty(t, stored.LastError)

		cut.set("error") // calls of the locks fail
		time.Sleep(30 * time.Second)
		s := m.Status()
		require.Equal(t, 4, s.Unowned)
		require.Equal(t, 4, s.Lost)
		require.Equal(t, jobs.Partition{Pipeline: "flights", Name: "a", State: jobs.Unowned, Lag: -1}, s.Partitions[0])
		time.Sleep(20 * time.Second)
		workers, err = j.Workers(t.Context())
		require.NoError(t, err)
		require.Equal(t, s.Partitions, workers[0].Partitions)
		cut.set("")
		time.Sleep(time.Minute)
		require.Zero(t, m.Status().Unowned)
		stop()
		require.NoError(t, <-ended)
		require.Equal(t, partitions.Status{Unowned: -1, Lost: 4}, m.Status())
		workers, err = j.Workers(t.Context())
		require.NoError(t, err)
		require.Empty(t, workers)
	})
}

// A partition of another worker has an owner. When that worker dies, the partition is
// unowned until another worker acquires it.
func TestMonitorStatus_TwoWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := memory.Open()
		var monitors [2]partitions.Monitor
		cut := &trouble{Locks: engine.Locks()}
		var stops [2]context.CancelFunc
		ended := make(chan error, 2)
		for i, name := range []string{"1", "2"} {
			l := &partitions.Leases{Locks: engine.Locks(), Group: "g", Partitions: []string{"a", "b"}, Worker: name, Logger: quiet}
			if i == 1 {
				l.Locks = cut
			}
			c := newJob(1, 1).config(l)
			c.Pipeline, c.Stores, c.Monitor = plain, newStores(), &monitors[i]
			var ctx context.Context
			ctx, stops[i] = context.WithCancel(t.Context())
			go func() { ended <- partitions.Run(ctx, c) }()
			time.Sleep(10 * time.Second)
		}
		for i := range monitors {
			s := monitors[i].Status()
			require.Len(t, s.Partitions, 1)
			require.Zero(t, s.Unowned)
		}
		cut.set("hang")
		waited := false
		for range 40 {
			time.Sleep(time.Second)
			waited = waited || monitors[0].Status().Unowned == 1
		}
		require.False(t, waited, "the first worker takes it at the look that finds it free")
		require.Len(t, monitors[0].Status().Partitions, 2)
		s := monitors[1].Status()
		require.Equal(t, 2, s.Unowned, "as far as it knows")
		require.Equal(t, 1, s.Lost)
		cut.set("")
		for i := range stops {
			stops[i]()
			require.NoError(t, <-ended)
		}
	})
}

// A pipeline that has completed a checkpoint since its failure is running again. A
// pipeline at the end of its input has ended.
func TestMonitorOfAPipelineThatRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJob(1, 100)
		m := &partitions.Monitor{}
		c := j.config(partitions.Static("p0"))
		failed := false
		c.Monitor = m
		c.Pipeline = func(ctx context.Context, p partitions.Partition) error {
			if !failed {
				failed = true
				return errTrial
			}
			err := j.pipeline(ctx, p)
			time.Sleep(time.Second)
			return err
		}
		ended := make(chan error, 1)
		go func() { ended <- partitions.Run(t.Context(), c) }()
		var states []string
		for range 100 {
			for _, p := range m.Status().Partitions {
				if len(states) == 0 || states[len(states)-1] != p.State {
					states = append(states, p.State)
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		require.NoError(t, <-ended)
		require.Equal(t, []string{"failing", "running"}, states)
	})
}
