package bench

import (
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
)

func TestMain(m *testing.M) {
	clustertest.Child() // runs a server of W14
	goleak.VerifyTestMain(m)
}

// Each row runs with few elements and checks its own output.
func TestRows(t *testing.T) {
	for _, g := range Groups(Config{Short: true}) {
		t.Run(g.Name(), func(t *testing.T) {
			if g.Workload == "W14" || g.Workload == "W15" {
				t.Parallel() // they wait for servers
			}
			for _, r := range g.Rows {
				t.Run(r.Impl, func(t *testing.T) {
					s, err := RunRow(g, r)
					require.NoError(t, err)
					require.Contains(t, s, NsPerElem)
				})
			}
		})
	}
}

// Names of rows and groups are unique, because benchmarks and the table command use them.
func TestNames(t *testing.T) {
	groups := make(map[string]bool)
	for _, g := range Groups(Config{}) {
		require.False(t, groups[g.Name()], "two groups %s", g.Name())
		groups[g.Name()] = true
		rows := make(map[string]bool)
		for _, r := range g.Rows {
			require.False(t, rows[r.Impl], "%s: two rows %s", g.Name(), r.Impl)
			rows[r.Impl] = true
			require.False(t, strings.ContainsAny(r.Impl, " /="), "%s: %q", g.Name(), r.Impl)
		}
		for _, a := range g.Aims {
			require.True(t, rows[a.Impl], "%s: aim of %s", g.Name(), a.Impl)
			require.True(t, a.Against == "" || a.Against == BestPeer || rows[a.Against], "%s: aim against %s", g.Name(), a.Against)
		}
	}
}

// A pipeline that is fast because it is broken returns an error, not a number.
func TestBrokenPipelines(t *testing.T) {
	broken := map[string]func(in <-chan any, out chan<- any) error{
		"loses one": func(in <-chan any, out chan<- any) error {
			<-in
			for e := range in {
				out <- e
			}
			return nil
		},
		"doubles one": func(in <-chan any, out chan<- any) error {
			first := <-in
			out <- first
			for e := range in {
				out <- e
			}
			out <- first
			return nil
		},
		"makes one up": func(in <-chan any, out chan<- any) error {
			for range in {
				out <- &Item{Seq: -1}
			}
			return nil
		},
	}
	for name, run := range broken {
		for _, ordered := range []bool{true, false} {
			p := pipeline{elems: 10, ordered: ordered}
			require.Error(t, p.measure(&Meter{elems: 10}, func() stages { return newChanFlow(1, run).stages() }),
				"%s, ordered %v", name, ordered)
		}
	}
}

// W9 runs its workers without the channels of a pipeline, so it has a separate check.
func TestBrokenDirectWorkers(t *testing.T) {
	for _, many := range []bool{true, false} {
		for name, run := range map[string]runner{
			"0 of 10 elements came out": func(Config, call, int, iter.Seq[*Item], func(*Item)) error { return nil },
			"element 0 came twice": func(_ Config, _ call, _ int, in iter.Seq[*Item], out func(*Item)) error {
				for it := range in {
					out(it)
					out(it)
				}
				return nil
			},
			"not ready yet": func(_ Config, _ call, _ int, in iter.Seq[*Item], out func(*Item)) error {
				for it := range in {
					out(it)
				}
				return errUnavailable
			},
		} {
			p := pipeline{elems: 10}
			p.prepare()
			require.ErrorContains(t, direct(Config{}, worker{run: run, many: many}, &p, 1, nil), name)
		}
	}
}

// An element that waits for its retry holds no permit, in the rows that promise this: 10
// elements with one permit take the time of one back-off.
func TestPermitsComeBackDuringBackoff(t *testing.T) {
	const n, delay = 10, 50 * time.Millisecond
	for name, wrap := range map[string]func(fn call, permits int, delay time.Duration) call{
		"by hand": releasing, "failsafe": withFailsafeBulkhead,
	} {
		synctest.Test(t, func(t *testing.T) {
			fn := wrap(func(it *Item) (*Item, error) {
				if it.Calls++; it.Calls == 1 {
					return nil, errUnavailable
				}
				return it, nil
			}, 1, delay)
			p := pipeline{elems: n, calls: func(int) int32 { return 2 }}
			p.prepare()
			began := time.Now()
			require.NoError(t, direct(Config{}, worker{run: runGoroutines, many: true}, &p, n, fn), name)
			require.NoError(t, p.checkCalls(), name)
			require.Equal(t, delay, time.Since(began), name)
		})
	}
}

func TestOrderIsChecked(t *testing.T) {
	swap := func(in <-chan any, out chan<- any) error {
		for a := range in {
			out <- <-in
			out <- a
		}
		return nil
	}
	for _, ordered := range []bool{true, false} {
		p := pipeline{elems: 10, ordered: ordered}
		err := p.measure(&Meter{elems: 10}, func() stages { return newChanFlow(1, swap).stages() })
		if ordered {
			require.ErrorContains(t, err, "element 1 came as number 0")
		} else {
			require.NoError(t, err)
		}
	}
}

func TestCallsAreChecked(t *testing.T) {
	p := pipeline{elems: 10, ordered: true, calls: once}
	require.ErrorContains(t, p.measure(&Meter{elems: 10}, func() stages { return oneStage(flow.NewPassThrough()) }),
		"element 0: 0 calls, want 1")
}

func TestRows_OneInTenFails(t *testing.T) {
	for block := range 1000 {
		failing := 0
		for i := range 10 {
			if FailsFirst(10*block + i) {
				failing++
			}
		}
		require.Equal(t, 1, failing, "block %d", block)
	}
}
