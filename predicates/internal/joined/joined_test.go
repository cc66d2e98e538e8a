package joined_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/predicates/internal/joined"
)

type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return fmt.Sprint(e.code) }
func (e *coded) Unwrap() error { return e.err }

// posing is a *coded by its own account only.
type posing struct{ code int }

func (e posing) Error() string { return "posing" }

func (e posing) As(target any) bool {
	c, ok := target.(**coded)
	if ok {
		*c = &coded{code: e.code}
	}
	return ok
}

func codes(err error) (all []int) {
	for e := range joined.All[*coded](err) {
		all = append(all, e.code)
	}
	return all
}

func TestOutermostOfEveryBranch(t *testing.T) {
	plain := errors.New("plain")
	one, two := &coded{code: 1}, &coded{code: 2}
	assert.Empty(t, codes(nil))
	assert.Empty(t, codes(plain))
	assert.Equal(t, []int{1}, codes(fmt.Errorf("x: %w", one)))
	assert.Equal(t, []int{3}, codes(&coded{3, errors.Join(one, two)}), "the outermost of a chain")
	assert.Equal(t, []int{1, 2}, codes(errors.Join(plain, one, two)))
	assert.Equal(t, []int{1, 3, 7}, codes(fmt.Errorf("%w, %w: %w", plain, errors.Join(one, &coded{3, two}), posing{7})))
	assert.Empty(t, codes(errors.Join(nil, plain)))
}

func TestOutermostMayBeBrokenOff(t *testing.T) {
	err := errors.Join(&coded{code: 1}, errors.Join(&coded{code: 2}, &coded{code: 3}), &coded{code: 4})
	for n := range 4 {
		var got []int
		for e := range joined.All[*coded](err) {
			if got = append(got, e.code); len(got) > n {
				break
			}
		}
		assert.Equal(t, []int{1, 2, 3, 4}[:n+1], got)
	}
	assert.Len(t, slices.Collect(joined.Outermost(err, func(error) bool { return true })), 1)
}
