package participant

import (
	"fmt"
	"reflect"
	"strings"
)

// Passer is a flow or sink that declares whether barriers pass it, which [CanPass] trusts. It is for flows whose type does not show it, such as
// a Throttler of go-streams that is known not to discard:
//
//	type throttler struct{ *flow.Throttler }
//
//	func (throttler) PassesBarriers() bool { return true }
type Passer interface {
	// PassesBarriers reports whether each [Barrier] is passed on downstream, or is understood by a sink, and keeps its place.
	PassesBarriers() bool
}

// CanPass returns an error for a flow or sink that is known not to let a [Barrier] pass. A [Passer] is asked. The types of go-streams that
// assert the type of their elements would panic on a barrier or write it out, and a Throttler may discard it. CanPass accepts types that it does
// not know; if such a flow swallows barriers, checkpoints time out and name the participants that did not report.
func CanPass(next any) error {
	t := reflect.TypeOf(next)
	if t == nil {
		return nil
	}
	if p, ok := next.(Passer); ok {
		if p.PassesBarriers() {
			return nil
		}
		return fmt.Errorf("a %v does not pass checkpoint barriers: it says so", t)
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
