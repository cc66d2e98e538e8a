package failed_test

import (
	"context"
	"errors"
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

// Law X1: a visit leaves a request in doubt, and an earlier visit has left one, too. The
// next visit may repeat both only if their ids are known: Meta keeps one id, and the
// program makes its own ids again.
func TestRouter_RequestsInDoubt(t *testing.T) {
	request := exactlyonce.ID{Client: exactlyonce.NewClient(), Sequence: 1, Attempt: 3}
	again, other := request, request
	again.Attempt = 5
	other.Sequence = 2
	for name, tt := range map[string]struct {
		before, now string // ids; "" is the user's own
		want        string // Meta.Request
		isDead      bool
	}{
		"the same request":                  {before: request.String(), now: again.String(), want: again.String()},
		"the user's own id, twice":          {},
		"the user's own id, then a request": {now: request.String(), want: request.String()},
		"a request, then the user's own id": {before: request.String(), want: request.String(), isDead: true},
		"two requests":                      {before: request.String(), now: other.String(), want: request.String(), isDead: true},
		"an id of a later version":          {before: "v9:7", now: request.String(), want: "v9:7", isDead: true},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Date(2026, 11, 30, 9, 0, 0, 0, time.UTC)
			remembered := now.Add(2 * time.Hour)
			ctx := message.ContextWithMeta(t.Context(), message.Meta{ID: "a", Visit: 2, UnsafeToRepeat: true, Request: tt.before, Remembered: remembered})
			if tt.now != "" {
				ctx = context.WithValue(ctx, ctxkey.Tracked{}, doubtful{tracked{tt.now}})
			}
			r := failed.Router[int]{Layers: []failed.Layer{{Delay: time.Minute}, {Delay: time.Minute}}, Remembers: 10 * time.Hour}
			to, err := r.Route(ctx, asyncop.Failure[int]{Err: errors.New("no answer"), InDoubt: true, Deduplicated: true, FirstAttempt: now}, now)
			require.NoError(t, err)
			require.True(t, to.Meta.UnsafeToRepeat)
			require.Equal(t, tt.want, to.Meta.Request)
			if tt.isDead {
				require.Equal(t, store.UnsafeToRepeat, to.Cause)
				require.Zero(t, to.Meta.Remembered)
			} else {
				require.Empty(t, to.Cause)
				require.Equal(t, remembered, to.Meta.Remembered, "the first request is not remembered for longer")
			}
		})
	}
}

// doubtful is an element of a request tracker of which a request is in doubt.
type doubtful struct{ tracked }

func (doubtful) AllRefused() bool { return false }
