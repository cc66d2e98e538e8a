package guard

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text returns what an error says, without the secrets of URLs. Its methods may panic.
func Text(err error) string { return WithoutSecrets(fmt.Sprint(err)) } // fmt recovers panics of users' errors

var urls = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>` + "`" + `]+`)

// WithoutSecrets returns a text in which passwords, tokens in place of a user, and queries of URLs are hidden.
func WithoutSecrets(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return urls.ReplaceAllStringFunc(text, func(url string) string {
		scheme, rest, _ := strings.Cut(url, "://")
		end := strings.IndexAny(rest, "/?#")
		if end < 0 {
			end = len(rest)
		}
		if _, port, ok := strings.Cut(rest[:end], ":"); ok && !strings.Contains(rest[:end], "@") && strings.Trim(port, "0123456789") != "" {
			end = len(rest) // a password with a slash, which is not valid: the error says so
		}
		if at := strings.LastIndex(rest[:end], "@"); at >= 0 {
			user, _, ok := strings.Cut(rest[:at], ":")
			if !ok {
				user = hidden
			} else {
				user += ":" + hidden
			}
			rest = user + rest[at:]
		}
		if i := strings.IndexAny(rest, "?#"); i >= 0 {
			rest = rest[:i+1] + hidden
		}
		return scheme + "://" + rest
	})
}

const hidden = "xxxxx"

// Visible returns a text in which nothing is hidden, and nothing controls a terminal or the direction of text: what is not printable, or not
// UTF-8, is written as in Go, except for the characters of keep (law J3).
func Visible(s, keep string) string {
	plain := func(r rune) bool { return strconv.IsPrint(r) && r != utf8.RuneError || strings.ContainsRune(keep, r) }
	if !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	var b strings.Builder
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case plain(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		s = s[n:]
	}
	return b.String()
}
