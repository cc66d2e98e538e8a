package core

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/queue"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/timers"
)

// The core compiles, and passes the tests of this file, with every feature deleted.
func TestTheCoreStandsAlone(t *testing.T) {
	if os.Getenv("WEIR_CORE_ALONE") != "" {
		t.Skip("this is it")
	}
	dir, err := os.Getwd()
	require.NoError(t, err)
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	deleted := map[string]string{}
	features := 0
	for _, f := range files {
		isFeature := strings.HasPrefix(f, "feature_")
		if isFeature {
			features++
		}
		if isFeature || strings.HasSuffix(f, "_test.go") && f != "alone_test.go" && f != "main_test.go" {
			deleted[filepath.Join(dir, f)] = ""
		}
	}
	require.Greater(t, features, 5)
	overlay, err := json.Marshal(map[string]any{"Replace": deleted})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "overlay.json")
	require.NoError(t, os.WriteFile(path, overlay, 0o600))
	cmd := exec.Command("go", "test", "-count=1", "-overlay", path, ".")
	cmd.Env = append(os.Environ(), "WEIR_CORE_ALONE=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

var errAlone = errors.New("broken")

// alone is a core without features, and the calls that it has made, by their elements.
type alone struct {
	*Machine[string, string]
	t     *testing.T
	clock *clock.Mock
	calls map[string]*call.Attempt[string]
}

func newAlone(t *testing.T, change func(c *Config[string, string])) *alone {
	t.Helper()
	a := &alone{t: t, clock: clock.NewMock(), calls: make(map[string]*call.Attempt[string])}
	host := &call.Host{
		User: t.Context(), Values: context.Background(), Sleeper: call.NewSleeper(),
	}
	host.Life, host.Cancel = context.WithCancelCause(t.Context())
	c := Config[string, string]{
		Queue: queue.NewOrdered[*Slot[string, string]](4), Host: host,
		Timers: timers.NewService[*Slot[string, string]](a.clock, func() {}),
		Invoke: func(_ context.Context, in string, attempt *call.Attempt[string]) error {
			if in == "panics" {
				panic("broken")
			}
			a.calls[in] = attempt
			return nil
		},
		Policy: strategies.PolicyOf(strategies.FixedDelay[string](1, time.Second).RetryIfException(predicates.HasException)).Steps(),
		Limits: Limits{Timeout: time.Minute},
		Hooks: Hooks[string]{
			TimedOut:  func(Report[string], TimedOut) error { return context.DeadlineExceeded },
			Undecided: func(decision.Decision) error { return errAlone },
			RunFailed: func(r Report[string]) error { return r.Err },
			GivenUp:   func(Report[string], observe.EndKind) {},
		},
	}
	if change != nil {
		change(&c)
	}
	host.Clock = c.Timers
	a.Machine = New(c)
	return a
}

func (a *alone) accept(elements ...string) {
	for _, in := range elements {
		accepted := false
		a.Run(func() {
			if !accepted {
				accepted = true
				a.Accept(in)
			}
		})
	}
}

// turn takes a turn and returns what leaves.
func (a *alone) turn() (all []string) {
	a.Run(a.Turn)
	for results, control := a.Head(); results != nil || control != nil; results, control = a.Head() {
		if all = append(all, results...); control != nil {
			all = append(all, control.(string))
		}
		a.Left(observe.Emitted)
	}
	return all
}

func (a *alone) pass(d time.Duration) {
	a.clock.Add(d)
	a.Away(true)
}

// Results leave in input order (law Q1), and nothing is accepted beyond the slots (law Q2).
func TestAloneOrder(t *testing.T) {
	a := newAlone(t, nil)
	a.accept("a", "b")
	a.Restore(Item[string, string]{Kind: Control, Rest: "|"}, 0)
	a.accept("c")
	require.Zero(t, a.State().Room)
	a.calls["c"].Complete("C")
	a.calls["b"].Complete("B")
	require.Empty(t, a.turn())
	a.calls["a"].Complete("A")
	require.Equal(t, []string{"A", "B", "|", "C"}, a.turn())
	require.Equal(t, Never, a.Next())
}

// An error is retried after its back-off; a completion of an earlier attempt counts no more (law A2).
func TestAloneRetry(t *testing.T) {
	a := newAlone(t, nil)
	a.accept("a")
	first := a.calls["a"]
	first.CompleteExceptionally(errAlone)
	require.Empty(t, a.turn())
	require.Equal(t, time.Second, a.Next())
	a.pass(time.Second)
	require.Empty(t, a.turn())
	require.NotSame(t, first, a.calls["a"])
	first.Complete("late")
	a.calls["a"].Complete("A")
	require.Equal(t, []string{"A"}, a.turn())
	c := a.State().Counts()
	require.EqualValues(t, 2, c.Attempts)
	require.EqualValues(t, 1, c.RetriesOnError)
}

// The total timeout is final (law A3); a panic is an outcome (law A6).
func TestAloneFailures(t *testing.T) {
	a := newAlone(t, func(c *Config[string, string]) { c.MaxCalls = 1 })
	a.accept("a", "b", "panics")
	require.Equal(t, 1, a.State().Running)
	a.pass(time.Minute)
	require.Empty(t, a.turn())
	c := a.State().Counts()
	require.EqualValues(t, 3, c.Timeouts)
	require.EqualValues(t, 3, c.Dropped)
	require.Zero(t, a.State().Len)
	a.accept("panics")
	a.pass(time.Second)
	require.Empty(t, a.turn())
	c = a.State().Counts()
	require.EqualValues(t, 4, c.Dropped)

	a = newAlone(t, func(c *Config[string, string]) { c.FailsRun = true })
	a.accept("a")
	a.calls["a"].CompleteExceptionally(errAlone)
	a.turn()
	a.EndRetries() // law A5: one more attempt
	a.turn()
	a.calls["a"].CompleteExceptionally(errAlone)
	a.turn()
	require.Equal(t, ByElement, a.State().Cause)
	require.ErrorIs(t, a.State().Failure, errAlone)
}

// A checkpoint holds what has not left (law C1), with the rest of a back-off (law C3).
func TestAloneSnapshot(t *testing.T) {
	a := newAlone(t, nil)
	a.accept("a", "b", "c")
	a.calls["a"].CompleteExceptionally(errAlone)
	a.calls["b"].Complete("B")
	a.turn()
	a.pass(400 * time.Millisecond)
	items := a.Items(nil, true)
	require.Len(t, items, 3)
	require.Equal(t, 600*time.Millisecond, items[0].Wait)
	require.Equal(t, []string{"B"}, items[1].Results())

	b := newAlone(t, nil)
	b.Run(func() {
		for _, it := range items {
			b.Restore(it, 0)
		}
		items = nil
	})
	require.Empty(t, b.turn())
	b.calls["c"].Complete("C")
	b.pass(600 * time.Millisecond)
	b.turn()
	b.calls["a"].Complete("A")
	require.Equal(t, []string{"A", "B", "C"}, b.turn())
}

// What is in flight at the end is returned once, in input order (law A1).
func TestAloneAbandon(t *testing.T) {
	a := newAlone(t, nil)
	a.accept("a", "b")
	a.calls["a"].CompleteExceptionally(errAlone)
	a.turn()
	a.End(errAlone)
	var cut []string
	for _, s := range a.Abandon() {
		cut = append(cut, a.report(s).Element)
		a.Ended(s, observe.Abandoned)
	}
	require.Equal(t, []string{"a", "b"}, cut)
	a.calls["b"].Complete("late")
	c := a.State().Counts()
	require.EqualValues(t, 2, c.Abandoned)
	require.Zero(t, c.InFlight)
}
