package failed_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/message"
)

// The stored text of an error has no secrets of URLs, because more people read histories
// than messages.
func TestHistory_NoSecrets(t *testing.T) {
	meta := failed.History(t.Context(), asyncop.Failure[int]{Err: errors.New("https://ann:s3cret@pay is down")}, time.Now())
	require.Equal(t, "https://ann:xxxxx@pay is down", meta.LastError)
}

// A client cannot make its dead letter look like a pointer, which a merge leaves.
func TestHistory_PointerHeaderOfAClient(t *testing.T) {
	ctx := message.ContextWithMeta(t.Context(), message.Meta{ID: "a", Headers: map[string]string{store.HeaderPointsTo: "nowhere", "tenant": "blue"}})
	after := failed.History(ctx, asyncop.Failure[int]{Err: errors.New("down")}, time.Now())
	require.Equal(t, map[string]string{"tenant": "blue"}, after.Headers)
}

// A server that sends a point in time where seconds are meant does not put a message away
// for decades.
func TestDemanded_OneDayAtMost(t *testing.T) {
	for demanded, want := range map[time.Duration]time.Duration{
		0: 0, time.Hour: time.Hour, 24 * time.Hour: 24 * time.Hour, 25 * time.Hour: 24 * time.Hour, math.MaxInt64: 24 * time.Hour,
	} {
		require.Equal(t, want, failed.Demand(asyncop.Failure[int]{Demanded: demanded}), demanded)
	}
}

// tracked is an element of a request tracker whose requests were all refused.
type tracked struct{ carried string }

func (t tracked) Carried() string  { return t.carried }
func (tracked) NoteRefused(string) {}
func (tracked) NoteOthers()        {}
func (tracked) AllRefused() bool   { return true }

// Law X1: only the refusal of the request that the message carries ends the doubt about
// an earlier visit. The element in the context may be an element of an operator around
// this operator, or lack the id of its message.
func TestHistory_RefusedRequest(t *testing.T) {
	request := exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1, Attempt: 3}
	later, next, other := request, request, request
	later.Attempt, later.Step = 5, "charge"
	next.Sequence = 2
	other.Client = exactlyonce.NewClient()
	for name, tt := range map[string]struct {
		carried string
		want    bool // it stays in doubt
	}{
		"the request":                  {later.String(), false},
		"the next request":             {next.String(), true},
		"a request of another element": {other.String(), true},
		"an element without an id":     {"", true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := message.ContextWithMeta(t.Context(), message.Meta{
				ID: "a", Visit: 2, UnsafeToRepeat: true, Request: request.String(), Remembered: time.Now().Add(time.Hour),
			})
			ctx = context.WithValue(ctx, ctxkey.Tracked{}, tracked{tt.carried})
			meta := failed.History(ctx, asyncop.Failure[int]{Err: errors.New("402")}, time.Now())
			require.Equal(t, tt.want, meta.UnsafeToRepeat)
			require.Equal(t, tt.want, meta.Request != "")
			require.Equal(t, tt.want, !meta.Remembered.IsZero())
		})
	}
}
