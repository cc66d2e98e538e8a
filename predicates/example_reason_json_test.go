package predicates_test

import (
	"encoding/json"
	"fmt"

	"github.com/weirflow/weir/predicates"
)

// Outside of the program a reason is its name. A reader compares it with the names of the
// reasons that it expects.
func ExampleReason_json() {
	out, _ := json.Marshal(map[string]any{"reason": busy, "before": predicates.ReasonSet{}.With(connLost).With(busy).With(connLost)})
	fmt.Println(string(out))

	var in struct{ Reason predicates.Reason }
	_ = json.Unmarshal(out, &in)
	fmt.Println(in.Reason, in.Reason == busy, in.Reason.AllowsNonIdempotentRetry())

	for _, known := range []predicates.Reason{connLost, busy} {
		if known.Name() == in.Reason.Name() {
			fmt.Println(known, known == busy, known.AllowsNonIdempotentRetry())
		}
	}
	// Output:
	// {"before":["BUSY","CONN_LOST"],"reason":"BUSY"}
	// BUSY false false
	// BUSY true true
}
