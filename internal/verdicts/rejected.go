package verdicts

import (
	"errors"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/internal/decoder"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/panics"
)

// Rejected notes in the history of a message why it was rejected (law D6), and says whether it could not be read.
func Rejected(meta *delivery.Meta, err error, now time.Time) (unreadable bool) {
	if _, unreadable = errors.AsType[*decoder.Error](err); unreadable {
		meta.Visit-- // there was none
	} else {
		meta.LastFailure = now
		if meta.FirstFailure.IsZero() {
			meta.FirstFailure = now
		}
	}
	if err != nil {
		meta.LastError = text(err)
	}
	return unreadable
}

// text returns the message of an error of user code.
func text(err error) (s string) {
	broken := guard.Call(func() error {
		s = err.Error()
		return nil
	}, func(recovered any) error { return panics.New("delivery", recovered) })
	if broken != nil {
		return broken.Error()
	}
	return s
}
