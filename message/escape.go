package message

import (
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// appendEscaped appends s as printable text without a space at either end, for headers,
// JSON and tables: unprintable characters, percent signs and the special characters
// become %XX, byte by byte.
func appendEscaped(dst []byte, s, special string) []byte {
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		edge := r == ' ' && (i == 0 || i == len(s)-1)
		if r == utf8.RuneError && n == 1 || !unicode.IsPrint(r) || r == '%' || edge || strings.ContainsRune(special, r) {
			for _, b := range []byte(s[i : i+n]) {
				dst = append(dst, '%', "0123456789ABCDEF"[b>>4], "0123456789ABCDEF"[b&15])
			}
		} else {
			dst = append(dst, s[i:i+n]...)
		}
		i += n
	}
	return dst
}

// escape returns s escaped: s itself if all characters are ASCII, printable, and neither
// spaces, percent signs nor special.
func escape(s, special string) string {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || c == '%' || strings.IndexByte(special, c) >= 0 {
			return string(appendEscaped(nil, s, special))
		}
	}
	return s
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for {
		before, rest, found := strings.Cut(s, "%")
		b = append(b, before...)
		if !found {
			return string(b), nil
		}
		if len(rest) < 2 {
			return "", fmt.Errorf("%q ends in the middle of an escape", s)
		}
		var err error
		b, err = hex.AppendDecode(b, []byte(rest[:2]))
		if err != nil {
			return "", fmt.Errorf("%q is not an escape", "%"+rest[:2])
		}
		s = rest[2:]
	}
}
