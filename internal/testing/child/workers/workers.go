// Package workers runs a program as several processes ([child.Process]), which a test
// kills and pauses.
package workers

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/child"
)

// Child runs a worker and exits if [Start] started this process under the name. TestMain
// must call it first. Child repeats open until it succeeds, because the server may be
// down. work must end with its context, which SIGTERM cancels.
func Child[E any](name string, open func(ctx context.Context, dsn string) (E, error), work func(ctx context.Context, e E) error) {
	child.Run(name, func(dsn string) error {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		fmt.Println("ready for signals")
		e, err := child.Again(ctx, func(ctx context.Context) (E, error) { return open(ctx, dsn) })
		if ctx.Err() != nil {
			return nil // ended before it began
		}
		if err != nil {
			return err
		}
		return work(ctx, e)
	})
}

// Workers are processes that do the same work. Only the test's goroutine may use them.
type Workers struct {
	t         *testing.T
	name, dsn string
	programs  []string
	patience  time.Duration
	all       []*child.Process

	Kills, Stops int // Stops is the number of pauses
}

// Start starts n workers, which end with the test at the latest. patience bounds each
// wait for a worker. The workers run the programs in turn. An empty name, or an empty
// list, selects the current program.
func Start(t *testing.T, name, dsn string, n int, patience time.Duration, programs ...string) *Workers {
	t.Helper()
	w := &Workers{t: t, name: name, dsn: dsn, programs: programs, patience: patience, all: make([]*child.Process, n)}
	t.Cleanup(func() {
		for _, p := range w.all {
			if p != nil {
				_ = p.Kill() // it may have ended
			}
		}
	})
	for i := range w.all {
		w.start(i)
	}
	return w
}

func (w *Workers) start(i int) {
	w.t.Helper()
	var err error
	w.all[i], err = child.Start(w.name, w.dsn, func(c *exec.Cmd) {
		if len(w.programs) > 0 && w.programs[i%len(w.programs)] != "" {
			c.Path = w.programs[i%len(w.programs)]
			c.Args[0] = c.Path
		}
	})
	require.NoError(w.t, err)
}

// Kill kills a random worker and restarts it.
func (w *Workers) Kill() {
	w.t.Helper()
	w.kill(rand.IntN(len(w.all)))
}

func (w *Workers) kill(i int) {
	w.t.Helper()
	require.NoError(w.t, w.all[i].Kill())
	w.start(i)
	w.Kills++
}

// Stop pauses a random worker, or kills it if the system cannot pause it.
func (w *Workers) Stop(d time.Duration) {
	w.t.Helper()
	i := rand.IntN(len(w.all))
	stopped, err := w.all[i].Pause(d)
	require.NoError(w.t, err)
	if !stopped {
		w.kill(i)
		return
	}
	w.Stops++
}

// MustRun fails the test if a worker has ended by itself.
func (w *Workers) MustRun() {
	w.t.Helper()
	for _, p := range w.all {
		select {
		case <-p.Ended():
			w.t.Fatalf("a worker has ended: %v", p.Output())
		default:
		}
	}
}

// End sends SIGTERM to each worker and waits until all have ended without an error.
func (w *Workers) End() {
	w.t.Helper()
	for _, p := range w.all {
		_, err := p.Line(w.patience) // a new worker does not handle the signal before its first line
		require.NoError(w.t, err)
		require.NoError(w.t, p.Signal(syscall.SIGTERM))
	}
	for _, p := range w.all {
		require.NoError(w.t, p.Wait(w.patience))
	}
}

// Output returns the output of each worker.
func (w *Workers) Output() (outputs []string) {
	for _, p := range w.all {
		outputs = append(outputs, p.Output())
	}
	return outputs
}
