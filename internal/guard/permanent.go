package guard

import "errors"

type mark struct{ error }

func (m mark) Unwrap() error { return m.error }

// MarkPermanent marks err as permanent for [IsPermanent], with the same text. It returns
// nil if err is nil.
func MarkPermanent(err error) error {
	if err == nil {
		return nil
	}
	return mark{err}
}

// IsPermanent reports whether err, or an error that it wraps, is marked. It returns false
// if a method of err panics.
func IsPermanent(err error) (is bool) {
	defer func() { _ = recover() }()
	_, is = errors.AsType[mark](err)
	return is
}
