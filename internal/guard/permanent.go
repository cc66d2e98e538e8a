package guard

import "errors"

type mark struct{ error }

func (m mark) Unwrap() error { return m.error }

// MarkPermanent returns err, marked. Its text stays. It returns nil if err is nil.
func MarkPermanent(err error) error {
	if err == nil {
		return nil
	}
	return mark{err}
}

// IsPermanent reports whether err, or one that it wraps, is marked. It may be of the user's code: one that panics is not.
func IsPermanent(err error) (is bool) {
	defer func() { _ = recover() }()
	_, is = errors.AsType[mark](err)
	return is
}
