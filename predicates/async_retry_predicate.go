package predicates

// AsyncRetryPredicate is the pair of predicates of a retry strategy. Either may be nil; with both nil, retries never happen.
// An operator reads the pair once, when it is built, so the methods must always return the same.
type AsyncRetryPredicate[OUT any] interface {
	// ResultPredicate judges attempts that ended with results. Nil: results are never retried.
	ResultPredicate() ResultPredicate[OUT]

	// ExceptionPredicate judges attempts that ended with an error. Nil: errors are never retried.
	ExceptionPredicate() ExceptionPredicate
}

// RetryIf returns the pair of result and exception, for those who write a
// strategy of their own. Either may be nil, which means never.
func RetryIf[OUT any](result ResultPredicate[OUT], exception ExceptionPredicate) AsyncRetryPredicate[OUT] {
	return retryIf[OUT]{result: result, exception: exception}
}

type retryIf[OUT any] struct {
	result    ResultPredicate[OUT]
	exception ExceptionPredicate
}

func (r retryIf[OUT]) ResultPredicate() ResultPredicate[OUT]  { return r.result }
func (r retryIf[OUT]) ExceptionPredicate() ExceptionPredicate { return r.exception }
