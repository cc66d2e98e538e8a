package bench

import (
	"strings"
	"testing"

	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every row does its work, small: each checks its own output.
func TestRows(t *testing.T) {
	for _, g := range Groups(Config{Short: true}) {
		t.Run(g.Name(), func(t *testing.T) {
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

// Rows and groups are found by name, in benchmarks and by the table command.
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

// A pipeline that is fast because it is broken is an error, not a number.
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

func TestOneInTenFails(t *testing.T) {
	for block := range 1000 {
		failing := 0
		for i := range 10 {
			if failsFirst(10*block + i) {
				failing++
			}
		}
		require.Equal(t, 1, failing, "block %d", block)
	}
}
