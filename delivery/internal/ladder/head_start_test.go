package ladder_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/settle"
	"github.com/weirflow/weir/message"
)

// Regression (laws D4, W2): the inputs of a source delivered a message that kills its
// process beside messages of the layers, in each process. Those became dead letters, too.
func TestSource_MessageThatKillsItsProcess(t *testing.T) {
	for name, blocked := range map[string]string{"any order": "", "order of keys": "blocked"} {
		t.Run(name, func(t *testing.T) { messageThatKillsItsProcess(t, blocked) })
	}
}

func messageThatKillsItsProcess(t *testing.T, blocked string) {
	synctest.Test(t, func(t *testing.T) {
		c, memory := config()
		c.Blocked = blocked
		noChange := func(*message.Meta) {}
		putRaw(t, memory, "new", noChange, "killer")
		putRaw(t, memory, "1m", func(m *message.Meta) { m.Visit = 1 }, "b", "c")
		putRaw(t, memory, "1h", func(m *message.Meta) { m.Visit = 2 }, "d")
		process := func() (wasKilled bool) {
			s := &mortal{Inspector: memory}
			c.Store = s
			source := build(t, c).Source(nil)
			ctx, end := context.WithTimeout(t.Context(), time.Minute)
			defer end()
			for ctx.Err() == nil {
				ms, err := source.Receive(ctx, 10)
				if err != nil {
					break
				}
				for _, m := range ms {
					if m.Meta().ID == "killer" {
						time.AfterFunc(10*time.Millisecond, func() {
							s.kill()
							end()
						})
					} else {
						time.AfterFunc(50*time.Millisecond, m.Ack)
					}
				}
			}
			closing, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := source.Close(closing)
			if !s.wasKilled() {
				require.NoError(t, err)
			}
			return s.wasKilled()
		}
		deaths := 0
		for process() {
			deaths++
			time.Sleep(time.Minute) // the leases end
		}
		require.Equal(t, settle.MaxLapses, deaths)
		letters := dead(t, memory)
		require.Len(t, letters, 1)
		require.Equal(t, "killer", letters[0].Meta.ID)
		require.Equal(t, store.Lapsed, letters[0].Cause)
		queues, err := memory.Queues(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"dead"}, queues)
	})
}
