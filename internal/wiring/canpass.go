package wiring

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/reugn/go-streams"
)

// Passer is participant.Passer, which this package cannot import.
type Passer interface{ PassesBarriers() bool }

// CanPass is participant.CanPass.
func CanPass(next any) error {
	if c, ok := next.(checkedFlow); ok {
		next = c.Flow
	}
	t := reflect.TypeOf(next)
	if t == nil {
		return nil
	}
	if p, ok := next.(Passer); ok {
		if p.PassesBarriers() {
			return nil
		}
		return fmt.Errorf("a %v does not pass checkpoint barriers: its method PassesBarriers returns false", t)
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(t.Name(), "[")
	switch t.PkgPath() {
	case "github.com/reugn/go-streams/flow":
		switch name {
		case "PassThrough":
			return nil
		case "Throttler":
			return fmt.Errorf("a %v may discard checkpoint barriers: use asyncop.WithBackend, or wrap it with a method PassesBarriers "+
				"if its mode is Backpressure (see participant.Passer)", reflect.PointerTo(t))
		}
		return fmt.Errorf("a %v cannot pass checkpoint barriers; package weir/flow has flows that can", reflect.PointerTo(t))
	case "github.com/reugn/go-streams/extension":
		if name == "ChanSink" || name == "IgnoreSink" {
			return nil
		}
		return fmt.Errorf("a %v takes checkpoint barriers for elements; package checkpoint has sinks that do not", reflect.PointerTo(t))
	}
	return nil
}

// mustPass panics with err, the reason why a next step cannot pass barriers, unless err
// is nil.
func mustPass(method string, err error) {
	if err != nil {
		panic(fmt.Sprintf("%s: %v", method, err))
	}
}

// Next returns the result of Via(next) of step n: next itself or, in a stream with
// checkpoints, for a step of another library a flow that checks the step after it.
func (n *Node) Next(next streams.Flow) streams.Flow {
	if NodeOf(next) != nil || !n.isCheckpointed() {
		return next
	}
	return checkedFlow{next}
}

// checkedFlow is a flow of another library in a stream with checkpoints. Its Via and To
// panic if the next step cannot pass barriers.
type checkedFlow struct{ streams.Flow }

func (c checkedFlow) Via(next streams.Flow) streams.Flow {
	mustPass("weir: Via of a flow in a stream with checkpoints", c.check(next))
	c.Flow.Via(next)
	if NodeOf(next) != nil {
		return next
	}
	return checkedFlow{next}
}

func (c checkedFlow) To(sink streams.Sink) {
	mustPass("weir: To of a flow in a stream with checkpoints", c.check(sink))
	c.Flow.To(sink)
}

// check returns an error if next, or a step behind it, cannot pass barriers.
func (c checkedFlow) check(next any) error {
	if err := CanPass(next); err != nil {
		return err
	}
	if to := NodeOf(next); to != nil {
		return to.MarkCheckpointed()
	}
	return nil
}
