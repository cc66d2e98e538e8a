package settle

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/message"
)

const shortError = 256 // bytes

// Bury puts a dead letter that the store may refuse (law W2). It tries three forms, until
// one is accepted:
//
//   - the message with its bytes as received and its whole history
//   - the message with its bytes and a short history in plain ASCII
//   - a pointer in plain ASCII: the message without its bytes, with the place where it
//     stays ([store.HeaderPointsTo])
//
// put puts the message with or without its bytes. where names the place of the message,
// for the pointer. isWhole is false if only the pointer was put. Then the caller leaves
// the message where it is, and does not deliver it again. The error matches
// [message.ErrRefused] if the store has refused all three forms.
func Bury(meta message.Meta, where string, put func(meta message.Meta, withBytes bool) error) (isWhole bool, err error) {
	DropPointsTo(&meta)
	err = put(meta, true)
	if !errors.Is(err, message.ErrRefused) {
		return true, err
	}
	short := meta
	short.LastError = plain(meta.LastError)
	short.Reasons = nil
	short.Timeline = nil
	err = put(short, true)
	if !errors.Is(err, message.ErrRefused) {
		return true, err
	}
	pointer := short
	pointer.LastError = fmt.Sprintf("%s; the message cannot be stored among the dead letters and stays in %s: %s",
		short.LastError, plain(where), plain(guard.Text(err)))
	pointer.Headers = map[string]string{store.HeaderPointsTo: plain(where)}
	return false, put(pointer, false)
}

// plain returns the beginning of s as printable ASCII, with other characters as in a Go
// string: not every database can store all characters.
func plain(s string) string {
	var b strings.Builder
	for i, r := range s {
		if b.Len() >= shortError {
			b.WriteString("...")
			break
		}
		switch {
		case ' ' <= r && r <= '~':
			b.WriteRune(r)
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
	}
	return b.String()
}
