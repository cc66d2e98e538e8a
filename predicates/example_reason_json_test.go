package predicates_test

import (
	"encoding/json"
	"fmt"

	"github.com/weirflow/weir/predicates"
)

// A reason is its name outside the program. Who reads it back looks the name up
// among the reasons it expects.
func ExampleReasonByName() {
	out, _ := json.Marshal(map[string]any{"reason": busy, "before": predicates.NewReasonSet(connLost, busy, connLost)})
	fmt.Println(string(out))

	var in struct{ Reason predicates.Reason }
	_ = json.Unmarshal(out, &in)
	fmt.Println(in.Reason, in.Reason == busy, in.Reason.AllowsNonIdempotentRetry())

	known, ok := predicates.ReasonByName(in.Reason.Name(), busy, connLost, wrongNode)
	fmt.Println(known, known == busy, known.AllowsNonIdempotentRetry(), ok)
	// Output:
	// {"before":["BUSY","CONN_LOST"],"reason":"BUSY"}
	// BUSY false false
	// BUSY true true true
}
