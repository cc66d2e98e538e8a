package tally

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
)

// The groups with the most failures are kept, whichever came first.
func TestTopGroups(t *testing.T) {
	var tally Tally
	run := func(done <-chan struct{}, groups ...observe.Group) {
		tally.Attach(func() asyncop.Stats { return asyncop.Stats{} }, done)
		tally.AttachGroups(func() []observe.Group { return groups })
	}
	ended := make(chan struct{})
	close(ended)
	var rare []observe.Group
	for i := range maxFailed {
		rare = append(rare, observe.Group{Error: fmt.Sprint("rare ", i), Count: 1})
	}
	run(ended, rare...)
	run(ended, observe.Group{Error: "the disk is full", Count: 900})
	run(ended, observe.Group{Error: "no route", Count: 5}, observe.Group{Rest: true, Count: 1000})
	run(nil, observe.Group{Error: "no answer", Count: 70}, observe.Group{Error: "the disk is full", Count: 1})
	for range 2 {
		top := tally.topGroups()
		require.Len(t, top, topFailed)
		require.EqualValues(t, 901, top[Failed{Error: "the disk is full"}])
		require.EqualValues(t, 70, top[Failed{Error: "no answer"}])
		require.EqualValues(t, 5, top[Failed{Error: "no route"}])
	}
	require.Len(t, tally.failed, maxFailed)
}

// Several operators with one name: their elements are added, and the latest error of a
// running operator counts.
func TestTally_SeveralOperators(t *testing.T) {
	var counts Tally
	ended := make(chan struct{})
	close(ended)
	attach := func(done chan struct{}, s asyncop.Stats) { counts.Attach(func() asyncop.Stats { return s }, done) }
	attach(make(chan struct{}), asyncop.Stats{WaitingToLeave: 2})
	require.Zero(t, counts.Read().Stats.LastErrorAge)
	attach(make(chan struct{}), asyncop.Stats{WaitingToLeave: 3, LastErrorAge: time.Minute})
	attach(make(chan struct{}), asyncop.Stats{LastErrorAge: time.Hour})
	attach(ended, asyncop.Stats{LastErrorAge: time.Second})
	now := counts.Read().Stats
	require.EqualValues(t, 5, now.WaitingToLeave)
	require.Equal(t, time.Minute, now.LastErrorAge)
}

func TestTally_CallOutlivesOperator(t *testing.T) {
	var counts Tally
	begun, release, returned := make(chan struct{}), make(chan struct{}), make(chan struct{})
	call := asyncop.Blocking(func(context.Context, int) (int, error) {
		defer close(returned)
		close(begun)
		<-release
		return 1, nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	op := asyncop.OrderedWait(call, 0, 4, asyncop.WithContext(ctx), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	counts.Attach(op.Stats, op.Done())
	op.In() <- 7
	<-begun
	cancel()
	<-op.Done()
	stats := counts.Read().Stats
	require.EqualValues(t, []int64{1, 0, 1}, []int64{stats.Running, stats.Capacity, stats.Accepted})

	close(release)
	<-returned
	require.Eventually(t, func() bool { return counts.Read().Stats.Running == 0 }, time.Minute, time.Millisecond)
	require.Empty(t, counts.operators)
	stats = counts.Read().Stats
	require.EqualValues(t, []int64{1, 1}, []int64{stats.LateCompletions, stats.Accepted})
}
