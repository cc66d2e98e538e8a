// Package permanent marks errors that no repetition makes go away, such as that of a table which does not exist.
package permanent

import "errors"

type mark struct{ error }

func (m mark) Unwrap() error { return m.error }

// Mark returns err, marked. Its text stays. It returns nil if err is nil.
func Mark(err error) error {
	if err == nil {
		return nil
	}
	return mark{err}
}

// Is reports whether err, or one that it wraps, is marked. It may be of the user's code: one that panics is not.
func Is(err error) (is bool) {
	defer func() { _ = recover() }()
	_, is = errors.AsType[mark](err)
	return is
}
