package decision_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weirflow/weir/internal/decision"
)

type coded struct {
	code int
	err  error
}

func (e *coded) Error() string { return fmt.Sprint(e.code) }
func (e *coded) Unwrap() error { return e.err }

// posing presents itself as a *coded only through its As method.
type posing struct {
	code int
	err  error
}

func (e posing) Error() string { return "posing" }
func (e posing) Unwrap() error { return e.err }

func (e posing) As(target any) bool {
	c, ok := target.(**coded)
	if ok {
		*c = &coded{code: e.code}
	}
	return ok
}

func texts(err error) (all []string) {
	for _, branch := range decision.Branches(err) {
		all = append(all, branch.Error())
	}
	return all
}

// both is a wrapper that joins errors and is an error itself.
type both struct {
	coded
	all []error
}

func (e *both) Unwrap() []error { return e.all }
func (e *both) As(target any) bool {
	c, ok := target.(**coded)
	if ok {
		*c = &e.coded
	}
	return ok
}

func TestBranches(t *testing.T) {
	one, two, three := errors.New("one"), errors.New("two"), errors.New("three")
	assert.Equal(t, []string{"one"}, texts(one))
	assert.Equal(t, []string{"x: one"}, texts(fmt.Errorf("x: %w", one)))
	assert.Equal(t, []string{"one", "two"}, texts(errors.Join(one, nil, two)))
	assert.Equal(t, []string{"one", "two", "x: three"},
		texts(fmt.Errorf("a: %w", fmt.Errorf("%w, %w", one, errors.Join(two, fmt.Errorf("x: %w", three))))))
	assert.Equal(t, []string{"one"}, texts(fmt.Errorf("x: %w", errors.Join(nil, one))))
	assert.Equal(t, []string{"5"}, texts(&both{coded: coded{code: 5}}), "it joins nothing")
	assert.Equal(t, []string{"x: 5"}, texts(fmt.Errorf("x: %w", &coded{5, nil})))

	assert.Same(t, one, decision.Branches(errors.Join(one, two))[0], "text is no wrapper")
	for _, err := range []error{one, fmt.Errorf("x: %w", one), &coded{1, one}} {
		assert.Same(t, err, decision.Branches(err)[0])
	}
}

// A wrapper applies to all errors that it wraps, and a branch only to itself.
func TestBranchesAndTheirWrappers(t *testing.T) {
	one, two := &coded{code: 1}, errors.New("two")
	for name, err := range map[string]error{
		"around":  &coded{7, errors.Join(fmt.Errorf("x: %w", one), two)},
		"joining": &both{coded{code: 7}, []error{one, two}},
		"posing":  posing{7, fmt.Errorf("%w: %w", one, two)},
	} {
		all := decision.Branches(err)
		assert.Len(t, all, 2, name)
		for i, branch := range all {
			assert.False(t, decision.Joins(branch), name)
			var c *coded
			assert.ErrorAs(t, branch, &c, name)
			assert.Equal(t, 7, c.code, name)
			assert.Equal(t, i == 0, errors.Is(branch, one), name)
			assert.Equal(t, i == 1, errors.Is(branch, two), name)
			assert.NotErrorIs(t, branch, errors.ErrUnsupported, name)
			_, ok := decision.AsBranch[interface{ Code() int }](branch)
			assert.False(t, ok, name)
		}
	}
	sentinel := &coded{3, errors.Join(one, two)}
	for _, branch := range decision.Branches(sentinel) {
		assert.ErrorIs(t, branch, sentinel)
	}
	timeout := decision.Branches(&notComparable{[]error{one, two}})[1]
	assert.NotErrorIs(t, timeout, notComparable{[]error{one}}) // must not panic either
}

type notComparable struct{ all []error }

func (e notComparable) Error() string   { return "not comparable" }
func (e notComparable) Unwrap() []error { return e.all }

func TestJoins(t *testing.T) {
	plain := errors.New("plain")
	assert.False(t, decision.Joins(nil))
	assert.False(t, decision.Joins(fmt.Errorf("x: %w", plain)))
	assert.True(t, decision.Joins(fmt.Errorf("x: %w", errors.Join(plain))))
}
