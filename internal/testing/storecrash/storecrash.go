// Package storecrash tests that a store of delivery/store is consistent after a kill. A
// child with the test binary kills itself at each step of a scenario.
package storecrash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/memory"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

const (
	envDSN  = "WEIR_STORECRASH_DSN"
	envStep = "WEIR_STORECRASH_STEP"
)

// Open opens the store at a DSN. It must call step before and after each statement.
type Open func(ctx context.Context, dsn string, step func()) (store.Inspector, error)

// Child runs the scenario, and does not return, if this process is a child. TestMain must
// call it first.
func Child(open Open) {
	dsn := os.Getenv(envDSN)
	if dsn == "" {
		return
	}
	last, err := strconv.Atoi(os.Getenv(envStep))
	if err != nil {
		panic(err)
	}
	steps := 0
	ctx := context.Background()
	s, err := open(ctx, dsn, func() {
		if steps++; steps == last {
			if self, err := os.FindProcess(os.Getpid()); err == nil {
				_ = self.Kill()
			}
			select {}
		}
	})
	if err == nil {
		_, err = scenario(ctx, s, func(n int) { fmt.Println("returned", n) })
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(2)
	}
	os.Exit(0)
}

// Run kills a child at each step, each time with a new store, and checks the store's
// state. A call that returned has taken effect. The interrupted call has taken effect
// completely or not at all, and later calls have not begun.
func Run(t *testing.T, newDSN func(t *testing.T) string, open Open) {
	t.Helper()
	states, err := scenario(t.Context(), memory.Open(), func(int) {})
	require.NoError(t, err)
	for step := 1; ; step++ {
		dsn := newDSN(t)
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), envDSN+"="+dsn, envStep+"="+strconv.Itoa(step))
		out, err := cmd.Output()
		exit, failed := errors.AsType[*exec.ExitError](err)
		if failed && exit.ExitCode() != -1 {
			t.Fatalf("step %d: %v: %s", step, err, out)
		}
		s, openErr := open(t.Context(), dsn, func() {})
		require.NoError(t, openErr)
		returned := strings.Count(string(out), "returned")
		if err == nil { // the scenario has no further steps
			require.Greater(t, step, 2*len(states), "there are too few steps")
			require.Equal(t, states[len(states)-1], state(t.Context(), s))
			require.NoError(t, s.Close())
			return
		}
		got := state(t.Context(), s)
		require.NoError(t, s.Close())
		if got != states[returned] && (returned+1 == len(states) || got != states[returned+1]) {
			t.Fatalf("step %d, after %d calls: the store has\n%swant\n%sor\n%s", step, returned, got, states[returned], states[min(returned+1, len(states)-1)])
		}
	}
}

// scenario calls each writing method, and returns the states before and after each call.
func scenario(ctx context.Context, s store.Inspector, returned func(n int)) (states []string, err error) {
	messages := []store.Message{}
	for _, id := range []string{"a", "b", "c", "d"} {
		messages = append(messages, store.Message{Meta: message.Meta{ID: id}, Payload: []byte(id)})
	}
	var taken, claimed []store.Leased
	const long = time.Hour
	for n, call := range []func() error{
		func() error { return s.Put(ctx, "q", messages...) },
		func() error { taken, err = s.Take(ctx, "q", 3, long); return err },
		func() error { return s.Done(ctx, taken[0].Lease) },
		func() error { return s.Extend(ctx, 2*long, taken[1].Lease, taken[2].Lease) },
		func() error { return s.Release(ctx, long, taken[1].Lease, taken[2].Lease) },
		func() error {
			claimed, err = s.Claim(ctx, "q", store.Filter{}, store.Page{Max: 2}, long)
			return err
		},
		func() error {
			return s.Move(ctx, store.Move{Lease: claimed[0].Lease, Queue: "dead", Message: messages[1]},
				store.Move{Lease: claimed[1].Lease, Queue: "dead", Message: messages[2]})
		},
		func() error { _, err := s.Purge(ctx, "dead", store.Filter{IDs: []string{"b"}}); return err },
	} {
		states = append(states, state(ctx, s))
		if err := call(); err != nil {
			return nil, fmt.Errorf("call %d: %w", n+1, err)
		}
		returned(n + 1)
	}
	return append(states, state(ctx, s)), nil
}

func state(ctx context.Context, s store.Inspector) string {
	var b strings.Builder
	for _, queue := range []string{"q", "dead"} {
		entries, err := s.List(ctx, queue, store.Filter{}, store.Page{Max: 100})
		if err != nil {
			return err.Error()
		}
		for _, e := range entries {
			fmt.Fprintf(&b, "%s: %s %q, fence %d, leased %v, for more than an hour %v, delay %v\n", queue, e.Meta.ID, e.Payload, e.Fence,
				!e.LeasedUntil.IsZero(), e.LeasedUntil.Sub(e.Arrived) > 90*time.Minute, e.Meta.Due.Sub(e.Arrived).Round(time.Hour))
		}
	}
	return b.String()
}
