package verdicts

import (
	"errors"
	"fmt"

	"github.com/weirflow/weir/message"
)

const shortError = 256 // bytes

// Bury puts a dead letter that may not fit (law W2): with its bytes as received and all that is known of it, else with a shorter history,
// else as a pointer, without its bytes, that says where the message stays. whole is false after that: the caller leaves the message there,
// and takes it no more.
func Bury(meta message.Meta, where string, put func(meta message.Meta, whole bool) error) (whole bool, err error) {
	if err = put(meta, true); !errors.Is(err, message.ErrRefused) {
		return true, err
	}
	short := meta
	short.LastError, short.Reasons, short.Timeline = cut(meta.LastError), nil, nil
	if err = put(short, true); !errors.Is(err, message.ErrRefused) {
		return true, err
	}
	short.LastError = fmt.Sprintf("%s; the message does not fit among the dead letters and stays in %s: %s", cut(meta.LastError), where, cut(text(err)))
	short.Headers = nil
	return false, put(short, false)
}

func cut(s string) string {
	if len(s) <= shortError {
		return s
	}
	return s[:shortError] + "…"
}
