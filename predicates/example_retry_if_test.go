package predicates_test

import (
	"fmt"

	"github.com/weirflow/weir/predicates"
)

// A strategy of your own returns such a pair from its RetryPredicate method.
func ExampleRetryIf() {
	pair := predicates.RetryIf(predicates.EmptyResult[string], predicates.ErrorAs[*httpError]())

	fmt.Println(pair.ResultPredicate()(nil))
	fmt.Println(pair.ExceptionPredicate()(&httpError{Status: 500}))
	// Output:
	// true
	// true
}
