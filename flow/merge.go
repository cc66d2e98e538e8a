package flow

import (
	"fmt"
	"reflect"
	"sync"

	"github.com/reugn/go-streams"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/wiring"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/queue"
)

// Outlet is an input of [Merge]: a source or a flow.
type Outlet interface {
	streams.Outlet
	Via(next streams.Flow) streams.Flow
}

// Merge returns a flow that emits the elements of all inputs, as they come. The elements
// of an input keep their order.
//
//	in 1 -- 1 -- W5 ------ 2 ---------- W9 ------
//	in 2 ------------ a ------ W7 -- b ------ W8 --
//	out  -- 1 ------- a -- 2 - W5 -- b - W7 -- W8 --
//
// It emits the lowest watermark of its inputs, as Flink does. An input without watermarks
// holds all watermarks back until it ends.
//
// A failed input fails the merged flow, and a later failure ends all inputs of weir.
// Merge refuses barriers: see Topologies in package checkpoint.
//
// It panics if there are no inputs or one is nil. It calls Via of each input, so other
// steps must not take their elements.
func Merge(inputs ...Outlet) *Flow {
	if len(inputs) == 0 {
		panic("flow: Merge: no inputs")
	}
	for _, input := range inputs {
		guard.RefuseNil("flow: Merge", "input", input)
	}
	f := makeFlow("Merge", nil, commonType(inputs), nil)
	f.node.Refuses = fmt.Errorf("flow.Merge joins branches: %w", wiring.ErrBranchesMeet)
	ports := make([]*mergeInput, len(inputs))
	for i, input := range inputs {
		ports[i] = &mergeInput{f.linked, f, make(chan any)}
		if node := wiring.NodeOf(input); node != nil {
			node.MustTake("flow: Merge", ports[i]) // before goroutines start
		}
	}
	m := &merging{Flow: f, last: make([]queue.Watermark, len(inputs)), has: make([]bool, len(inputs)), ended: make([]bool, len(inputs))}
	go f.run(m.all, func() func() { return message.Message[struct{}]{}.Release })
	var open sync.WaitGroup
	for i, input := range inputs {
		open.Go(func() { ports[i].forward(i) })
		input.Via(ports[i])
	}
	go func() { // ends with the inputs
		open.Wait()
		close(f.in)
	}()
	return f
}

// commonType returns the known element type of all inputs, or nil.
func commonType(inputs []Outlet) (common reflect.Type) {
	for _, input := range inputs {
		node := wiring.NodeOf(input)
		if node == nil {
			return nil
		}
		out := node.Out
		if common != nil && out != common {
			return nil
		}
		common = out
	}
	return common
}

// mergeInput is the flow to which an outlet is connected.
type mergeInput struct {
	linked // to the node of the merged flow
	merged *Flow
	in     chan any // the outlet sends and closes
}

var _ streams.Flow = (*mergeInput)(nil)

func (p *mergeInput) In() chan<- any { return p.in }

// The merged flow takes the elements, so Out, Via and To are not called.
func (p *mergeInput) Out() <-chan any               { return p.merged.out }
func (p *mergeInput) Via(streams.Flow) streams.Flow { panic("flow: Merge: Via of an input") }
func (p *mergeInput) To(streams.Sink)               { panic("flow: Merge: To of an input") }

// forward sends the elements of input i to the merged flow. It marks watermarks with i.
func (p *mergeInput) forward(i int) {
	for v := range p.in {
		if w, ok := v.(queue.Watermark); ok {
			v = inputMark{i, w}
		}
		p.merged.in <- v
	}
	p.merged.in <- inputEnd(i)
}

type (
	inputMark struct { // a watermark of an input
		input int
		mark  queue.Watermark
	}
	inputEnd int // index of an input that has ended
)

// merging is owned by a merged flow's goroutine.
type merging struct {
	*Flow
	last    []queue.Watermark // last watermark of each input
	has     []bool            // the input has sent a watermark
	ended   []bool            // the input has ended
	emitted queue.Watermark
	any     bool // emitted is set
}

func (m *merging) all() error {
	for v := range m.in {
		if m.err.Load() != nil { // ended from outside
			m.discard(v)
			return nil
		}
		switch v := v.(type) {
		case inputMark:
			m.last[v.input], m.has[v.input] = v.mark, true
			m.emitLowest()
		case inputEnd:
			m.ended[v] = true
			m.emitLowest()
		case wiring.Failure: // ends at once, because the other inputs may be endless
			err := guard.Wrap("flow: Merge: upstream", v.Err)
			m.end(err)
			m.node.FailUpstream(err)
			return nil
		case participant.Barrier:
			m.mu.Lock()
			m.Flow.last = v // so that its run fails
			m.mu.Unlock()
			return m.node.Refuses
		default:
			m.out <- v
		}
	}
	return nil
}

// emitLowest emits the lowest watermark of the open inputs, if it has changed.
func (m *merging) emitLowest() {
	lowest := -1
	for i, w := range m.last {
		switch {
		case m.ended[i]:
			continue
		case !m.has[i]:
			return
		case lowest < 0 || w.Timestamp.Before(m.last[lowest].Timestamp):
			lowest = i
		}
	}
	if lowest < 0 || m.any && !m.last[lowest].Timestamp.After(m.emitted.Timestamp) {
		return
	}
	m.emitted, m.any = m.last[lowest], true
	m.out <- m.emitted
}
