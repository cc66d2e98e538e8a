package participant

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/internal/nils"
)

// CanPass returns an error for a flow or sink that is known not to let a [Barrier] pass: those of go-streams assert the
// type of their elements, and would panic on one or write it out. What it does not know it lets through; if such a flow
// swallows barriers, checkpoints time out and name who did not report.
func CanPass(next any) error {
	t := reflect.TypeOf(next)
	if t == nil {
		return nil
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name, _, _ := strings.Cut(t.Name(), "[")
	switch t.PkgPath() {
	case "github.com/reugn/go-streams/flow":
		if name == "PassThrough" || name == "Throttler" && !discards(next) {
			return nil
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

// discards reports whether a Throttler drops elements, and barriers with them, when they come too fast. It does not say, so
// this looks; one of a later go-streams that cannot be looked into counts as discarding.
func discards(throttler any) bool {
	if nils.Is(throttler) {
		return false // To and Via will refuse it
	}
	mode := reflect.Indirect(reflect.ValueOf(throttler)).FieldByName("mode")
	return !mode.IsValid() || !mode.CanInt() && !mode.CanUint() || mode.Convert(reflect.TypeFor[int]()).Int() != int64(flow.Backpressure)
}
