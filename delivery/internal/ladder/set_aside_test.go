package ladder_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/message"
)

// A message that is rejected and does not fit among the dead letters stays in its queue
// for good. Later messages of its key do not wait for it, whether it stays in a layer or
// in Blocked, and also after a restart.
func TestConfigBlocked_MessageSetAsideForGood(t *testing.T) {
	large := func(id string) string { return id + strings.Repeat("x", 20) }
	for name, ids := range map[string][]string{
		"in a layer": {large("a1"), "a2", "a3"},
		"in Blocked": {"a1", large("a2"), "a3"},
	} {
		for _, isRestarted := range []bool{false, true} {
			if isRestarted {
				name += ", after a restart"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					_, memory := config()
					c := blocking(small{memory, "dead"})
					l := build(t, c)
					putRaw(t, memory, "new", func(*message.Meta) {}, ids...)
					source := l.Source(nil)
					take(t, l, one(t, source)) // to a layer
					m := one(t, source)
					if m.Value == "a1" {
						m.Ack()
						m = one(t, source)
					}
					require.Greater(t, len(m.Value), 20)
					m.Reject(errors.New("no such account"))
					time.Sleep(2 * time.Second) // to record the settlement
					letters := dead(t, memory)
					require.Len(t, letters, 1)
					require.Empty(t, letters[0].Payload, "a pointer")
					if isRestarted {
						require.NoError(t, source.Close(context.Background()))
						source = build(t, c).Source(nil)
					}
					defer func() { require.NoError(t, source.Close(context.Background())) }()
					wants := ids[1:]
					if ids[0] == "a1" {
						wants = ids[2:]
					}
					for _, want := range wants {
						ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
						defer cancel()
						ms, err := source.Receive(ctx, 1)
						require.NoError(t, err)
						require.Equal(t, want, ms[0].Value)
						ms[0].Ack()
					}
					nothing(t, source)
				})
			})
		}
	}
}
