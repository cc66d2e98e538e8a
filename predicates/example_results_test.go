package predicates_test

import (
	"fmt"

	"github.com/weirflow/weir/predicates"
)

// A flight is looked up until the radar has both seen and confirmed it.
func Example_results() {
	type flight struct {
		Callsign  string
		Confirmed bool
	}
	retry := predicates.AnyOf(
		predicates.EmptyResult,
		predicates.AnyResult(func(f flight) bool { return !f.Confirmed }),
	)

	fmt.Println(retry(nil))
	fmt.Println(retry([]flight{{Callsign: "DLH4AB"}}))
	fmt.Println(retry([]flight{{Callsign: "DLH4AB", Confirmed: true}}))
	// Output:
	// true
	// true
	// false
}
