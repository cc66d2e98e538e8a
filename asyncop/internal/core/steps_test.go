package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/queue"
)

// Law A2: a completion that was posted after the mailbox was taken, and whose attempt
// then timed out in the same step, does not complete the next attempt.
func TestLetterOfAnEarlierGeneration(t *testing.T) {
	var r *rig
	r = newRig(t, retries(5, 0), func(c *setup) {
		c.AttemptTimeout = time.Second
		c.IsControl = func(v any) bool {
			if v == "b#1" {
				r.complete("a#1")
			}
			return false
		}
	})
	r.feed("a b")
	r.complete("b#1")
	r.clock.at = r.clock.at.Add(time.Second)
	r.NoteSlept()
	r.step() // completes b, and a after the mailbox was taken; then a#1 times out
	require.Equal(t, "(a#1 (b#1 (a#2", r.took())
	r.step()
	require.Empty(t, r.took(), "a#2 runs")
	require.EqualValues(t, 1, r.Host.Late())
	r.complete("a#2")
	r.step()
	require.Equal(t, "a#2 b#1", r.took())
	r.end()
}

// Law A2: nor does it complete an element that waits for its next attempt.
func TestLetterDuringBackOff(t *testing.T) {
	var r *rig
	r = newRig(t, retries(5, time.Second), func(c *setup) {
		c.AttemptTimeout = time.Second
		c.IsControl = func(v any) bool {
			if v == "b#1" {
				r.complete("a#1")
			}
			return false
		}
	})
	r.feed("a b")
	r.complete("b#1")
	r.clock.at = r.clock.at.Add(time.Second)
	r.NoteSlept()
	r.step()
	r.step()
	require.Equal(t, "(a#1 (b#1", r.took())
	r.pass(time.Second)
	require.Equal(t, "(a#2", r.took())
	r.complete("a#2")
	r.step()
	require.Equal(t, "a#2 b#1", r.took())
	r.end()
}

// Law A2: the same holds when all elements have left and their memory was released,
// because generations do not repeat.
func TestLetterFromBeforeABurstWasOver(t *testing.T) {
	const burst = keepSlots + 1
	var r *rig
	r = newRig(t, nil, func(c *setup) {
		c.Queue = queue.NewOrdered[*Slot[string, string]](burst)
		c.Timeout = time.Second
		c.IsControl = func(v any) bool {
			if v == "1#1" {
				r.complete("0#1")
			}
			return false
		}
	})
	for i := range burst {
		r.feed(fmt.Sprint(i))
	}
	for i := 1; i < burst; i++ {
		r.complete(fmt.Sprintf("%d#1", i))
	}
	r.took()
	r.clock.at = r.clock.at.Add(time.Second)
	r.NoteSlept()
	r.step() // completes 0 after the mailbox was taken; then it times out
	require.Zero(t, r.Len())
	require.Contains(t, r.took(), "!0")
	r.feed("new")
	r.step()
	require.Equal(t, 1, r.Len(), "its call runs")
	r.complete("new#1")
	r.step()
	require.Equal(t, "(new#1 new#1", r.took())
	r.end()
}
