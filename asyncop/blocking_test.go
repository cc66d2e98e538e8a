package asyncop

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Outside an operator, a blocking function runs on its own goroutine.
func TestBlockingOutsideAnOperator(t *testing.T) {
	fn := Blocking(func(_ context.Context, in int) (int, error) { return 2 * in, nil })
	result := make(chan int)
	assert.NoError(t, fn.AsyncInvoke(t.Context(), 21, resultFunc[int](func(results []int, err error) {
		assert.NoError(t, err)
		result <- results[0]
	})))
	assert.Equal(t, 42, <-result)
}

// resultFunc is a ResultFuture made of a function.
type resultFunc[OUT any] func(results []OUT, err error)

func (f resultFunc[OUT]) Complete(results ...OUT)         { f(results, nil) }
func (f resultFunc[OUT]) CompleteExceptionally(err error) { f(nil, err) }
