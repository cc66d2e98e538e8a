package predicates_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates"
)

func TestRetryIf(t *testing.T) {
	both := predicates.RetryIf(predicates.EmptyResult[row], predicates.HasException)
	assert.True(t, both.ResultPredicate()(nil))
	assert.False(t, both.ResultPredicate()([]row{{}}))
	assert.True(t, both.ExceptionPredicate()(errBusy))

	results := predicates.RetryIf(predicates.AnyResult(row.isPending), nil)
	assert.True(t, results.ResultPredicate()([]row{{pending: true}}))
	assert.Nil(t, results.ExceptionPredicate())

	errs := predicates.RetryIf[row](nil, predicates.HasException)
	assert.Nil(t, errs.ResultPredicate())
	assert.True(t, errs.ExceptionPredicate()(errBusy))
}
