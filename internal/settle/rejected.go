package settle

import (
	"errors"
	"time"

	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

// Rejected notes in the history of a message why it was rejected (law D6), and returns the cause: one of package store.
func Rejected(meta *message.Meta, v message.Settlement, now time.Time) (cause string) {
	_, unreadable := errors.AsType[*decoder.Error](v.Err)
	meta.UnsafeToRepeat = meta.UnsafeToRepeat || v.UnsafeToRepeat
	if v.Err != nil {
		meta.LastError = text(v.Err)
	}
	if unreadable {
		meta.Visit-- // there was none
		return "undecodable"
	}
	meta.LastFailure = now
	if meta.FirstFailure.IsZero() {
		meta.FirstFailure = now
	}
	_, lapsed := errors.AsType[LapsedError](v.Err)
	switch {
	case lapsed:
		return "lapsed"
	case v.UnsafeToRepeat:
		return "outcome unknown" // the stored name of store.UnsafeToRepeat
	case isRefused(v.Err):
		return "refused"
	default:
		return "permanent"
	}
}

// isRefused looks into an error of user code, which may panic.
func isRefused(err error) (is bool) {
	_ = guard.Call(func() error {
		is = errors.Is(err, message.ErrRefused)
		return nil
	}, func(any) error { return nil })
	return is
}

// text returns the message of an error of user code, without the secrets of URLs.
func text(err error) (s string) {
	broken := guard.Call(func() error {
		s = err.Error()
		return nil
	}, func(recovered any) error { return guard.Recovered("delivery", recovered) })
	if broken != nil {
		return broken.Error()
	}
	return guard.WithoutSecrets(s)
}
