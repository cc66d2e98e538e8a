package caller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/strategies"
)

// In an operator each element has its own number, the same in all attempts. The number is
// released however the element ends (O1), and the input waits while the window is full.
func TestTrackerInAnOperator(t *testing.T) {
	const n, window = 60, 5
	p := newPeer(t, nil)
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprintf("ordered=%t", ordered), func(t *testing.T) {
			tracker := NewTracker(Config{Window: window})
			var mu sync.Mutex
			ids := map[int][]exactlyonce.ID{}
			var running, most atomic.Int32
			call := asyncop.Blocking(func(ctx context.Context, in int) (int, error) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				id, err := NextID(WithStep(ctx, "look"))
				if err != nil {
					return 0, err
				}
				mu.Lock()
				ids[in] = append(ids[in], id)
				mu.Unlock()
				switch attempt := asyncop.AttemptFromContext(ctx); {
				case in%10 == 9:
					panic("boom")
				case in%4 == 3 && attempt == 1:
					return 0, errors.New("again")
				case in%7 == 6:
					return 0, asyncop.ErrNoResult
				}
				return in, post(ctx, &http.Client{Transport: Transport(base, p.URL+"/charges")}, p.URL+"/charges")
			})
			build := asyncop.UnorderedWaitWithRetry[int, int]
			if ordered {
				build = asyncop.OrderedWaitWithRetry[int, int]
			}
			op := build(call, time.Minute, 20, strategies.FixedDelay[int](1, 0).RetryIfException(func(err error) bool { return err.Error() == "again" }),
				asyncop.WithObserver(tracker), asyncop.WithDropOnFailure(), asyncop.WithDrainRetries(), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
			inputs := make([]int, n)
			for i := range inputs {
				inputs[i] = i
			}
			for _, err := range op.Results(slices.Values(inputs)) {
				require.NoError(t, err)
			}
			require.NoError(t, op.Wait())
			require.Empty(t, checkList(t, tracker), "all have ended")
			require.Len(t, ids, n)
			require.LessOrEqual(t, int(most.Load()), window)
			for in, sent := range ids {
				for _, id := range sent {
					require.EqualValues(t, in+1, id.Sequence, "in the order of the input")
					require.LessOrEqual(t, id.First, id.Sequence)
				}
				if in%4 == 3 && in%10 != 9 {
					require.Len(t, sent, 2)
				}
			}
		})
	}
	require.NotContains(t, fmt.Sprint(p.requests()), "none")
}

// Under the context of a call for many elements a request has no id and is not sent.
// Under a member's context it has the id of that element, even in an operator that runs
// inside a call of another element.
func TestCallsForManyElements(t *testing.T) {
	p := newPeer(t, nil)
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: Transport(base, p.URL+"/charges")}
	outer := NewTracker(Config{})
	for name, ctx := range map[string]context.Context{
		"alone":             context.Background(),
		"inside of another": outer.AttemptStarted(outer.Accepted(context.Background(), "around", false), 1),
	} {
		t.Run(name, func(t *testing.T) {
			tracker := NewTracker(Config{})
			var mu sync.Mutex
			var sequences []int64
			call := asyncop.Batched(func(ctx context.Context, ins []int) ([]asyncop.Result[int], error) {
				if err := post(ctx, client, p.URL+"/charges"); !errors.Is(err, ErrNoID) {
					return nil, fmt.Errorf("under the context of all: %w", err)
				}
				if _, err := NextID(WithStep(ctx, "step")); !errors.Is(err, ErrNoID) {
					return nil, fmt.Errorf("with a step: %w", err)
				}
				results := make([]asyncop.Result[int], len(ins))
				for i, of := range asyncop.MemberContexts(ctx) {
					id, err := NextID(WithStep(of, "look"))
					if err != nil {
						return nil, err
					}
					mu.Lock()
					sequences = append(sequences, id.Sequence)
					mu.Unlock()
					results[i].Err = post(of, client, p.URL+"/charges")
				}
				return results, nil
			}, 3, time.Millisecond)
			op := asyncop.OrderedWait(call, time.Minute, 3, asyncop.WithObserver(tracker), asyncop.WithContext(ctx))
			n := 0
			for _, err := range op.Results(slices.Values([]int{1, 2, 3})) {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, 3, n)
			require.Equal(t, []int64{1, 2, 3}, sequences)
			require.Empty(t, checkList(t, tracker))
		})
	}
	require.NotContains(t, fmt.Sprint(p.requests()), "none")
	require.Len(t, p.requests(), 6)
}

// A timeout handler can make requests for its element if it names them.
func TestTimeoutHandlersHaveIDs(t *testing.T) {
	tracker := NewTracker(Config{Clock: clock.NewMock()})
	var ids []exactlyonce.ID
	call := asyncop.HandleFailure(asyncop.Func(func(ctx context.Context, _ string, _ asyncop.ResultFuture[string]) error {
		id, err := NextID(ctx)
		ids = append(ids, id)
		return err
	}), func(ctx context.Context, f asyncop.Failure[string]) ([]string, error) {
		_, err := NextID(ctx)
		if !errors.Is(err, ErrNoID) {
			return nil, fmt.Errorf("without a name: %w", err)
		}
		id, err := NextID(WithStep(ctx, "cancel"))
		ids = append(ids, id)
		return []string{f.Element}, err
	})
	op := asyncop.OrderedWait(call, 20*time.Millisecond, 1, asyncop.WithObserver(tracker))
	var out []string
	for v, err := range op.Results(slices.Values([]string{"a"})) {
		require.NoError(t, err)
		out = append(out, v)
	}
	require.NoError(t, op.Wait())
	require.Equal(t, []string{"a"}, out)
	c := tracker.Client()
	require.Equal(t, []exactlyonce.ID{
		{Client: c, Sequence: 1, Attempt: 1, First: 1}, {Client: c, Sequence: 1, Step: "cancel", Attempt: 2, First: 1},
	}, ids)
	require.Empty(t, checkList(t, tracker))
}

// A restored element had a number, so it must not be called under another one (X1).
func TestRestoredElementsWithoutTheirNumbers(t *testing.T) {
	for _, tracker := range []*Tracker{NewTracker(Config{}), NewTracker(Config{Refuse: true}), fresh(t, 0)} {
		ctx := tracker.Accepted(t.Context(), nil, true)
		_, err := NextID(tracker.AttemptStarted(ctx, 1))
		require.ErrorIs(t, err, ErrNoID)
		require.ErrorContains(t, err, "restored from a checkpoint that does not hold its number")
		require.EqualValues(t, -1, tracker.Number(ctx))
		tracker.Ended(ctx, observe.Ending{})
	}
}

// Elements that the final checkpoint keeps for the next run are not complete.
func TestTrackerEnded_KeptElements(t *testing.T) {
	tracker := fresh(t, 0)
	tracker.Snapshot(1)
	tracker.Completed(1)
	a, b := tracker.Accepted(t.Context(), nil, false), tracker.Accepted(t.Context(), nil, false)
	state := tracker.Snapshot(2)
	tracker.Ended(a, observe.Ending{How: observe.Kept})
	tracker.Ended(b, observe.Ending{How: observe.Kept})
	tracker.Completed(2)
	require.Equal(t, []int64{1, 2}, checkList(t, tracker))
	again := restored(t, state, 1, 2)
	require.EqualValues(t, 2, again.Number(again.Restored(t.Context(), nil, 2)))

	plain := NewTracker(Config{})
	plain.Ended(plain.Accepted(t.Context(), nil, false), observe.Ending{How: observe.Kept})
	require.Empty(t, checkList(t, plain))
}
