package core

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/message"
)

// settled returns a message whose settlement is passed to settle.
func settled(settle func(v message.Settlement)) call.Message {
	return message.New(struct{}{}, nil, settle)
}

// Law D2: if the element of a message was dropped or handed over, the settlement has the
// error with which it failed.
func TestMessages_SettlementsOfFailures(t *testing.T) {
	for _, policy := range []onFailure{drop, toSink} {
		var settlements []message.Settlement
		r := newRig(t, nil, func(c *setup) {
			c.OnFailure, c.Sink = policy, func(context.Context, Report[string]) error { return nil }
		})
		r.Accept("a", settled(func(v message.Settlement) { settlements = append(settlements, v) }))
		r.fail("a#1")
		r.step()
		r.work()
		r.step()
		require.Empty(t, settlements)
		require.Equal(t, Now, r.Next())
		r.SettleMessages()
		require.Equal(t, []message.Settlement{{Kind: message.HandedOver, Err: errBroken}}, settlements)
		r.end()
	}
}

// Law A6: a source that breaks is logged, and the others are still called.
func TestBrokenSource(t *testing.T) {
	for name, breaks := range map[string]func(){"panic": func() { panic("broken source") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var broke []error
			r := newRig(t, nil, func(c *setup) {
				c.SourceBroke = func(err error) { broke = append(broke, err) }
			})
			others := 0
			r.Accept("a", settled(func(message.Settlement) { breaks() }))
			r.Accept("b", settled(func(message.Settlement) { others++ }))
			r.fail("a#1 b#1")
			r.step()
			onGoroutine(r.SettleMessages)
			r.SettleMessages()
			require.Equal(t, 1, others)
			if name == "goexit" {
				r.exitedBy("a source of messages")
				return
			}
			require.Len(t, broke, 1)
			r.end()
		})
	}
}
