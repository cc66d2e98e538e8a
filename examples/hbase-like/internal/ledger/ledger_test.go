package ledger_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

var (
	atl = flights.Airport{IATA: "ATL", Name: "Atlanta"}
	dtw = flights.Airport{IATA: "DTW", Name: "Detroit"}
)

func open(ordered bool, n int) (*ledger.Ledger, []flights.Flight) {
	l := ledger.New(ordered, []flights.Airport{atl, dtw})
	all := make([]flights.Flight, n)
	for i := range all {
		all[i] = flights.Flight{Seq: i, Line: i + 2, Origin: atl, Destination: dtw}
		l.Read(all[i])
	}
	return l, all
}

func TestBooksThatBalance(t *testing.T) {
	l, f := open(true, 4)
	l.Attempt(f[0], 1)
	l.Enriched(f[0])
	lost := f[1]
	lost.Destination = flights.Airport{IATA: "XQQ"}
	l.GivenUp(lost, errors.New("nowhere"))
	l.Enriched(f[3]) // in order, because flight 2 was not enriched
	l.Abandoned(f[2])
	read, ended := l.Progress()
	assert.Equal(t, []int{4, 4}, []int{read, ended})
	b := l.Balance()
	require.NoError(t, b.Prove(0))
	assert.Equal(t, []int{4, 2, 1, 1, 0, 4}, []int{b.Read, b.Enriched, b.GivenUp, b.Abandoned, b.Missing, b.Ended()})
	assert.Equal(t, []ledger.Loss{{Airport: "XQQ", Why: "nowhere", Flights: 1, Lines: []int{3}}}, b.Losses)
}

func TestBooksThatDoNot(t *testing.T) {
	for name, c := range map[string]struct {
		run  func(l *ledger.Ledger, f []flights.Flight)
		want string
	}{
		"twice":                 {func(l *ledger.Ledger, f []flights.Flight) { l.Enriched(f[1]) }, "line 3: enriched, and enriched before"},
		"given up and enriched": {func(l *ledger.Ledger, f []flights.Flight) { l.GivenUp(f[1], errors.New("")) }, "line 3: given up, and enriched before"},
		"never read": {
			func(l *ledger.Ledger, _ []flights.Flight) { l.Abandoned(flights.Flight{Seq: 3, Line: 5}) },
			"line 5: abandoned, but never read",
		},
		"looked up from nowhere": {
			func(l *ledger.Ledger, _ []flights.Flight) { l.Attempt(flights.Flight{Seq: 3, Line: 5}, 1) },
			"line 5: looked up, but never read",
		},
		"misnumbered": {
			func(l *ledger.Ledger, _ []flights.Flight) { l.Read(flights.Flight{Seq: 7}) },
			"flight 7 was read as number 3",
		},
		"missing": {
			func(l *ledger.Ledger, _ []flights.Flight) { l.Read(flights.Flight{Seq: 3}) },
			"1 flights did not come out, 0 expected",
		},
		"wrong airport": {
			func(l *ledger.Ledger, _ []flights.Flight) {
				l.Read(flights.Flight{Seq: 3, Line: 5})
				l.Enriched(flights.Flight{Seq: 3, Line: 5, Origin: flights.Airport{IATA: "ATL", Name: "Detroit"}, Destination: dtw})
			},
			`line 5: airport "ATL" carries wrong data`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, f := open(true, 3)
			for _, flight := range f {
				l.Enriched(flight)
			}
			require.NoError(t, l.Balance().Prove(0))
			c.run(l, f)
			assert.ErrorContains(t, l.Balance().Prove(0), "the books do not balance:\n  "+c.want)
		})
	}
}

func TestOrder(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		l, f := open(ordered, 3)
		l.Enriched(f[2])
		l.Enriched(f[0])
		l.Enriched(f[1])
		err := l.Balance().Prove(0)
		if ordered {
			assert.ErrorContains(t, err, "line 2: came after a later one")
			assert.ErrorContains(t, err, "line 3: came after a later one")
		} else {
			assert.NoError(t, err)
		}
	}
}

func TestCutShort(t *testing.T) {
	l, f := open(true, 5)
	l.Enriched(f[0])
	l.Abandoned(f[1])
	l.Unread(f[4])
	b := l.Balance()
	assert.Equal(t, 4, b.Read)
	require.NoError(t, b.Prove(2))
	assert.Error(t, b.Prove(0))
	assert.Error(t, b.Prove(3))
}

func TestLossesAndProblemsAreBounded(t *testing.T) {
	l, f := open(true, 100)
	for i, flight := range f {
		flight.Origin = flights.Airport{IATA: "XQQ"}
		why := errors.New("gone")
		if i >= 90 {
			why = errors.New("moved")
		}
		l.GivenUp(flight, why)
		l.GivenUp(flight, why) // each repetition is a problem
	}
	b := l.Balance()
	require.Len(t, b.Losses, 2)
	assert.Equal(t, []int{2, 3, 4, 5, 6}, b.Losses[0].Lines)
	assert.ErrorContains(t, b.Prove(0), "and 90 more problems")
}

func TestLedger_ManyLossesAreSummedUp(t *testing.T) {
	l, f := open(true, 50)
	for _, flight := range f {
		l.GivenUp(flight, fmt.Errorf("flight %d", flight.Seq))
	}
	losses := l.Balance().Losses
	require.Len(t, losses, 20)
	assert.Equal(t, ledger.Loss{Airport: "others", Why: "various reasons", Flights: 31, Lines: []int{21, 22, 23, 24, 25}}, losses[0], "the largest first")
}

// A restored flight counts as given up until it is looked up again.
func TestRestored(t *testing.T) {
	l, f := open(true, 3)
	lost := func(flight flights.Flight) ledger.Lost {
		return ledger.Lost{Seq: flight.Seq, Line: flight.Line, Airport: "XQQ", Why: "nowhere"}
	}
	unread := flights.Flight{Seq: 3, Line: 5, Origin: atl, Destination: dtw}
	assert.Equal(t, 3, l.Restore([]ledger.Lost{lost(f[0]), lost(f[1]), lost(f[2]), lost(unread), {Seq: -1}}))
	assert.Equal(t, []ledger.Lost{lost(f[0]), lost(f[1]), lost(f[2])}, l.Lost())

	l.Attempt(f[1], 1)
	assert.Equal(t, []ledger.Lost{lost(f[0]), lost(f[2])}, l.Lost())
	l.GivenUp(f[2], errors.New("timed out")) // before its first attempt
	l.Enriched(f[1])
	l.Read(unread)
	l.Enriched(unread)
	b := l.Balance()
	require.NoError(t, b.Prove(0))
	assert.Equal(t, []int{4, 2, 2}, []int{b.Read, b.Enriched, b.GivenUp})
	assert.Equal(t, "timed out", l.Lost()[1].Why)

	l.GivenUp(f[2], errors.New("again"))
	assert.ErrorContains(t, l.Balance().Prove(0), "line 4: given up, and given up before")
}

func TestQuantiles(t *testing.T) {
	l, f := open(true, 200)
	for i, flight := range f {
		for n := range i + 1 { // flight i has i retries
			l.Attempt(flight, n+1)
		}
		l.Enriched(flight)
	}
	b := l.Balance()
	assert.Equal(t, 199, b.Retried)
	assert.Equal(t, ledger.Quantiles[int32]{P50: 100, P99: 198, Max: 199}, b.Retries)
	for _, q := range []ledger.Quantiles[time.Duration]{b.Latency, b.LatencyRetried} {
		assert.Positive(t, q.P50)
		assert.LessOrEqual(t, q.P50, q.P99)
		assert.LessOrEqual(t, q.P99, q.Max)
	}
	empty, _ := open(true, 0)
	assert.Zero(t, empty.Balance().Latency)
}

func TestLedger_ManyGoroutines(t *testing.T) {
	l, f := open(false, 1000)
	var all sync.WaitGroup
	for _, flight := range f {
		all.Go(func() {
			l.Attempt(flight, 1)
			l.Attempt(flight, 2)
			l.Enriched(flight)
			l.Balance()
		})
	}
	all.Wait()
	b := l.Balance()
	require.NoError(t, b.Prove(0))
	assert.Equal(t, 1000, b.Retried)
}
