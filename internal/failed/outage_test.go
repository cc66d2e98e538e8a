package failed_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/internal/failed"
	"github.com/weirflow/weir/message"
)

// A message that goes to a layer because of an outage is noted, unless its service has
// demanded the whole delay, or it has returned early before.
func TestRouter_NotesOutage(t *testing.T) {
	at := time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		backend   string
		visit     int           // of the message as received
		merges    int           // of the message as received
		since     time.Duration // its first failure
		demanded  time.Duration
		unleased  bool // the engine does not have leases
		withoutIt bool // the queue does not have layers
		want      string
	}{
		"first visit":                {backend: "pay", visit: 1, want: "1;1m0s;pay"},
		"no outage":                  {visit: 1, want: ""},
		"a part was demanded":        {backend: "pay", visit: 1, demanded: 20 * time.Second, want: "1;40s;pay"},
		"all was demanded":           {backend: "pay", visit: 1, demanded: time.Hour, want: ""},
		"waited before":              {backend: "pay", visit: 2, since: time.Minute, want: "2;10m0s;pay"},
		"returned early before":      {backend: "pay", visit: 2, since: 59 * time.Second, want: ""},
		"last layer":                 {backend: "pay", visit: 3, since: 11 * time.Minute, want: "3;10m0s;pay"},
		"last layer, early before":   {backend: "pay", visit: 3, since: 11*time.Minute - 1, want: ""},
		"merged, first visit":        {backend: "pay", visit: 1, merges: 1, since: 24 * time.Hour, want: "1;1m0s;pay"},
		"merged, second visit":       {backend: "pay", visit: 2, merges: 1, since: 24 * time.Hour, want: ""},
		"a name that has semicolons": {backend: "a;b", visit: 1, want: "1;1m0s;a;b"},
		"a name that is too long":    {backend: strings.Repeat("x", 1100), visit: 1, want: ""},
		"an engine without leases":   {backend: "pay", visit: 1, unleased: true, want: ""},
		"the queue of a new message": {backend: "pay", visit: 1, withoutIt: true, want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := failed.Router[int]{Layers: []failed.Layer{{Delay: time.Minute}, {Delay: 10 * time.Minute}}, HasLeases: !tt.unleased}
			if tt.withoutIt {
				r.Layers = nil
			}
			meta := message.Meta{ID: "a", Visit: tt.visit, Merges: tt.merges, Outage: "7;1s;old"}
			if tt.since > 0 {
				meta.FirstFailure = at.Add(-tt.since)
			}
			ctx := message.ContextWithMeta(t.Context(), meta)
			if tt.backend != "" {
				ctx = context.WithValue(ctx, ctxkey.Outage{}, tt.backend)
			}
			to, err := r.Route(ctx, asyncop.Failure[int]{Err: errors.New("down"), Demanded: tt.demanded, BackendDown: true}, at)
			require.NoError(t, err)
			require.Empty(t, to.Cause)
			require.Equal(t, tt.want, to.Meta.Outage)
			if tt.want == "" {
				return
			}
			read, ok := failed.ReadOutage(tt.want)
			require.True(t, ok)
			require.Equal(t, tt.backend, read.Backend)
			require.Equal(t, tt.visit, read.Visit)
			require.Equal(t, to.Delay-tt.demanded, read.Early)
		})
	}
}
