package deadfile

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/crashfs"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

var errGone = errors.New("gone")

// What operators give up becomes dead letters, with the cause.
func TestTake(t *testing.T) {
	refused := predicates.NewRejection("refused")
	busy := predicates.NewReason("busy", true, false)
	lost := predicates.NewReason("lost", false, false)
	for name, c := range map[string]struct {
		failure func(t *testing.T) asyncop.Failure[string]
		want    store.Cause
	}{
		"in doubt": {func(t *testing.T) asyncop.Failure[string] {
			return failureOf(t, errGone, strategies.ReasonAware(predicates.ByException[string](predicates.HasException, lost), nil))
		}, store.UnsafeToRepeat},
		"in doubt, and a predicate asked for more": {func(t *testing.T) asyncop.Failure[string] {
			return failureOf(t, errGone, strategies.FixedDelay[string](3, 0).RetryIfException(predicates.HasException))
		}, store.Exhausted},
		"in doubt, and no predicate asked": {func(t *testing.T) asyncop.Failure[string] {
			return failureOf(t, errGone, strategies.FixedDelay[string](3, 0).RetryIfException(func(error) bool { return false }))
		}, store.UnsafeToRepeat},
		"not sent": {func(t *testing.T) asyncop.Failure[string] { // the error has no reason
			err := &predicates.StageError{Stage: predicates.ClientDispatch, Err: errGone}
			return failureOf(t, err, strategies.ReasonAware(predicates.Classifiers[string](), strategies.BestEffort[string]()))
		}, store.Exhausted},
		"in doubt, and may happen twice": {func(t *testing.T) asyncop.Failure[string] { // nobody knows that the error is permanent
			return failureOf(t, errGone, strategies.PolicyOf(strategies.NoRetry[string]()).Idempotent())
		}, store.Exhausted},
		"a rejection that may happen twice": {func(t *testing.T) asyncop.Failure[string] {
			return failureOf(t, predicates.WithReason(errGone, refused), strategies.PolicyOf(strategies.NoRetry[string]()).Idempotent())
		}, store.Permanent},
		"no reason": {func(*testing.T) asyncop.Failure[string] {
			return asyncop.Failure[string]{Err: errGone}
		}, store.Exhausted},
		"exhausted": {func(*testing.T) asyncop.Failure[string] {
			return asyncop.Failure[string]{Err: errGone, NoRetryReason: strategies.Refused}
		}, store.Exhausted},
		"timed out": {func(*testing.T) asyncop.Failure[string] {
			return asyncop.Failure[string]{Err: &asyncop.TimeoutError{}}
		}, store.Exhausted},
		"rejected": {func(*testing.T) asyncop.Failure[string] {
			return asyncop.Failure[string]{Err: errGone, NoRetryReason: strategies.Refused, Reason: refused}
		}, store.Permanent},
		"busy": {func(*testing.T) asyncop.Failure[string] {
			return asyncop.Failure[string]{Err: errGone, NoRetryReason: strategies.Refused, Reason: busy}
		}, store.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			fsys := crashfs.New()
			f, err := openWith("/dead", codec.JSON[string](), onFS(fsys))
			require.NoError(t, err)
			require.NoError(t, f.Take(t.Context(), c.failure(t)))
			require.NoError(t, f.Close())
			require.Equal(t, c.want, lines(t, fsys)[0].Cause)
		})
	}
}

// failureOf runs an operator that gives an element up.
func failureOf(t *testing.T, failed error, s strategies.Retry[string]) asyncop.Failure[string] {
	t.Helper()
	var got []asyncop.Failure[string]
	call := asyncop.Blocking(func(context.Context, string) (string, error) { return "", failed })
	op := asyncop.OrderedWaitWithRetry(call, time.Minute, 1, s, asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[string]) error {
		got = append(got, f)
		return nil
	}))
	for _, err := range op.Results(slices.Values([]string{"a"})) {
		require.NoError(t, err)
	}
	require.Len(t, got, 1)
	return got[0]
}

func lines(t *testing.T, fsys *crashfs.FS) (all []line) {
	t.Helper()
	file, err := fsys.OpenFile("/dead/dead.jsonl", 0, 0)
	require.NoError(t, err)
	require.NoError(t, chunks(file, func(c chunk) error {
		l, err := parseLine(c.raw)
		all = append(all, l)
		return err
	}))
	return all
}

// D6: the history goes on.
func TestTakeKeepsHistory(t *testing.T) {
	mock := clock.NewMock()
	mock.Set(time.Unix(100, 0))
	fsys := crashfs.New()
	f, err := openWith("/dead", codec.JSON[string](), onFS(fsys), byClock(mock))
	require.NoError(t, err)
	old := message.Meta{
		ID: "1", Visit: 3, Attempts: 7, FirstFailure: time.Unix(50, 0), LastFailure: time.Unix(60, 0), LastError: "before", Reasons: []string{"slow", "busy"},
	}
	failure := asyncop.Failure[string]{
		Element: "a", Err: errGone, Attempts: 2, NoRetryReason: strategies.Refused,
		Reason: predicates.NewReason("late", true, false), Reasons: predicates.ReasonSet{}.With(predicates.NewReason("busy", true, false)),
	}
	require.NoError(t, f.Take(message.ContextWithMeta(t.Context(), old), failure))
	failure.InDoubt = true
	require.NoError(t, f.Take(t.Context(), failure))
	failure.Abandoned = true
	require.ErrorIs(t, f.Take(t.Context(), failure), errGone)
	require.NoError(t, f.Close())

	got := lines(t, fsys)
	require.Len(t, got, 2)
	require.Equal(t, message.Meta{
		ID: "1", Visit: 3, Attempts: 9, FirstFailure: time.Unix(50, 0).UTC(), LastFailure: time.Unix(100, 0).UTC(),
		LastError: "gone", Reasons: []string{"slow", "busy", "late"},
	}, got[0].Meta)
	require.Equal(t, []string{"slow", "busy"}, old.Reasons)
	require.Equal(t, 1, got[1].Meta.Visit)
	require.Equal(t, time.Unix(100, 0).UTC(), got[1].Meta.FirstFailure)
	require.Equal(t, `"a"`, string(got[0].Payload))
}

// An element that is no message gets its id from the context that the user gives.
func TestTakeWithID(t *testing.T) {
	f, err := Open(t.TempDir(), codec.JSON[string]())
	require.NoError(t, err)
	op := asyncop.OrderedWait(asyncop.Blocking(func(context.Context, string) (string, error) { return "", errGone }), time.Second, 1,
		asyncop.WithFailureSink(func(ctx context.Context, failure asyncop.Failure[string]) error {
			return f.Take(message.ContextWithMeta(ctx, message.Meta{ID: "order " + failure.Element}), failure)
		}))
	for range op.Results(slices.Values([]string{"7"})) {
		t.Error("a result")
	}
	replay, err := f.replay()
	require.NoError(t, err)
	ms, err := replay.Receive(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, "order 7", ms[0].Meta().ID)
	require.Equal(t, 1, ms[0].Meta().Merges)
	ms[0].Ack()
	require.NoError(t, replay.Close(t.Context()))
	require.NoError(t, f.Close())
}
