package wiring_test

import (
	"testing"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/wiring"
)

// outlet reports who reads it.
type outlet struct {
	streams.Flow
	out  chan any
	read chan error
}

func newOutlet() *outlet { return &outlet{out: make(chan any), read: make(chan error, 9)} }

func (o *outlet) Out() <-chan any {
	o.read <- wiring.Reader()
	return o.out
}

// C2: functions of go-streams that split or join streams are recognised, the others are
// not.
func TestReader(t *testing.T) {
	for name, read := range map[string]func(o *outlet){
		"Merge":      func(o *outlet) { flow.Merge(o) },
		"RoundRobin": func(o *outlet) { flow.RoundRobin(o, 1) },
		"Split":      func(o *outlet) { flow.Split(o, func(string) bool { return true }) },
		"ZipWith":    func(o *outlet) { flow.ZipWith(func([]int) int { return 0 }, o, o) },
	} {
		o := newOutlet()
		read(o)
		require.ErrorContains(t, <-o.read, "flow."+name+" reads its output, and barriers would overtake elements")
		close(o.out)
	}
	for _, read := range []func(o *outlet){
		func(o *outlet) { flow.FanOut(o, 2) },
		func(o *outlet) { flow.DoStream(o, flow.NewPassThrough()) },
		func(o *outlet) { o.Out() },
		func(o *outlet) { var s streams.Outlet = o; go s.Out() },
	} {
		o := newOutlet()
		read(o)
		require.NoError(t, <-o.read)
		close(o.out)
	}
}

// C2: each barrier comes once, in order, and the marker once; that may come between any
// of them.
func TestBarriers(t *testing.T) {
	var b wiring.Barriers
	require.NoError(t, b.Add(2, false))
	require.NoError(t, b.Add(4, false))
	require.NoError(t, b.Add(3, true))
	require.ErrorContains(t, b.Add(4, false), "barrier 4 has come after barrier 4")
	require.ErrorContains(t, b.Add(1, false), "barrier 1 has come after barrier 4")
	require.ErrorContains(t, b.Add(3, true), "has come twice")
	require.NoError(t, b.Add(5, false))
}
