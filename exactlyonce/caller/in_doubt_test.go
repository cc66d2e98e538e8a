package caller

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/ctxkey"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/predicates"
)

// stage is an attempt that accepts reports.
type stage struct{}

func (stage) ReportStage(predicates.Stage) {}
func (stage) ReportSent(bool) bool         { return true }
func (stage) ReportRefused(bool)           {}

// Law X1: a refusal ends the doubt about an element only if its request is the only one
// that may have taken effect.
func TestElement_RequestsInDoubt(t *testing.T) {
	charges := NewTracker(Config{Name: "charges", Secret: []byte("0123456789abcdef")})
	id := clientOf(charges.config.Secret, "charges", "a").String()
	earlier := func(request string) message.Meta {
		return message.Meta{ID: "a", Visit: 2, UnsafeToRepeat: true, Request: request, Remembered: time.Now().Add(time.Hour)}
	}
	forgotten := earlier(`"` + id + `";seq=1;attempt=2;step="charge";only=1`)
	forgotten.Remembered = time.Time{}
	for name, tt := range map[string]struct {
		meta    message.Meta
		asks    []string // steps
		others  bool     // a request with another server's id is deduplicated, too
		refused []string
		want    bool   // all requests are refused
		carried string // end of the carried id
	}{
		"a request":           {asks: []string{""}, carried: ";seq=1;attempt=2;only=1"},
		"a refused request":   {asks: []string{""}, refused: []string{""}, want: true, carried: ";seq=1;attempt=2"},
		"a repeated request":  {asks: []string{"charge", "charge"}, refused: []string{"charge"}, want: true, carried: ";seq=1;attempt=3"},
		"another step":        {asks: []string{"charge"}, refused: []string{"reserve"}, carried: `;seq=1;attempt=2;step="charge";only=1`},
		"two steps":           {asks: []string{"reserve", "charge"}, refused: []string{"charge"}, carried: ";seq=1;attempt=3"},
		"another server's id": {asks: []string{""}, others: true, refused: []string{""}, carried: ";seq=1;attempt=2"},

		"a request of an earlier visit": {
			meta: earlier(`"` + id + `";seq=1;attempt=2;step="charge";only=1`), asks: []string{"charge"}, refused: []string{"charge"},
			want: true, carried: ";seq=1;attempt=3",
		},
		"another request than in an earlier visit": {
			meta: earlier(`"` + id + `";seq=1;attempt=2;step="charge";only=1`), asks: []string{"reserve"}, refused: []string{"reserve"},
			carried: ";seq=1;attempt=3",
		},
		"an id of a predecessor": {
			meta: earlier(`"` + id + `";seq=1;attempt=2`), asks: []string{""}, refused: []string{""}, carried: ";seq=1;attempt=3",
		},
		"a doubt without a time": {meta: forgotten, asks: []string{"charge"}, refused: []string{"charge"}, carried: ";seq=1;attempt=3"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.meta.ID = "a"
			ctx := accepted(t, charges, tt.meta)
			e, ok := ctx.Value(ctxkey.Tracked{}).(ctxkey.TrackedElement)
			require.True(t, ok)
			ctx = context.WithValue(charges.AttemptStarted(ctx, 1), ctxkey.Stage{}, stage{})
			for _, step := range tt.asks {
				mustID(t, WithStep(ctx, step))
			}
			if tt.others {
				predicates.WithDeduplicated(ctx)
			}
			for _, step := range tt.refused {
				e.NoteRefused(step)
			}
			require.Equal(t, tt.want, e.AllRefused())
			require.Equal(t, `"`+id+`"`+tt.carried, e.Carried())
			_, err := parseID(e.Carried())
			require.NoError(t, err)
		})
	}
}
