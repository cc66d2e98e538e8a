package metered

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	wasChild, err := RunChild()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if wasChild {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The counts of each scenario, in virtual time.
func TestScenarios(t *testing.T) {
	all := newTable(scenarios)
	for i := range scenarios {
		s := &scenarios[i]
		for j, c := range clients {
			t.Run(s.name+"/"+c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, err := s.run(t.Context(), c)
					require.NoError(t, err)
					all.results[i][j] = r
					if s.budget > 0 {
						require.GreaterOrEqual(t, r.answered, int(s.budget))
						require.LessOrEqual(t, r.answered, int(s.budget)+2*int(limit*s.latency.Seconds()))
						return
					}
					require.Equal(t, s.rows, r.answered)
				})
			})
		}
	}
	of := func(name string, client int) *result {
		for i := range scenarios {
			if strings.HasPrefix(scenarios[i].name, name) {
				return &all.results[i][client]
			}
		}
		t.Fatalf("no scenario %q", name)
		return nil
	}
	const weir, loop = 0, 1
	require.Zero(t, of("calm", weir).throttled)
	require.LessOrEqual(t, throttledShareOf(of("limit", weir)), 0.02)
	require.LessOrEqual(t, of("outage", weir).refused, 100)
	require.Less(t, of("overloads", weir).refused, of("overloads", loop).refused)
	require.LessOrEqual(t, of("overloads", weir).took.Seconds(), 1.1*of("overloads", loop).took.Seconds())
	t.Log("in virtual time:\n" + all.String())
}

// The counts of clients that are killed once.
func TestRunKills(t *testing.T) {
	for _, c := range clients {
		for _, hasKeys := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, "/", hasKeys), func(t *testing.T) {
				t.Parallel()
				r, err := runKills(t.Context(), c.name, 200, 1, hasKeys)
				require.NoError(t, err)
				require.Equal(t, 1, r.kills)
				require.Zero(t, r.lost)
				require.Zero(t, r.doubled)
				if hasKeys {
					require.Zero(t, r.paidTwice)
				}
				if c.name == "weir" {
					require.LessOrEqual(t, r.paidTwice, killCalls)
					require.Zero(t, r.outOfOrder)
				}
			})
		}
	}
}

// The table fits a terminal of 80 columns.
func TestTable_Width(t *testing.T) {
	all := newTable(scenarios)
	for i := range all.results {
		for j := range clients {
			all.results[i][j] = result{counts: counts{answered: 123_456, throttled: 123_456, refused: 123_456}, took: 1}
		}
	}
	for i := range all.kills {
		all.kills[i] = make([]killResult, len(clients))
	}
	for line := range strings.Lines(all.String()) {
		require.LessOrEqual(t, len(line), 81, line)
	}
}
