package guard

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Secrets of URLs are redacted here, for every text that weir writes or stores.
// Passwords, users without a password (tokens), queries and fragments are hidden; scheme,
// host, port and path are shown. docs/data-protection.md describes the rule to users.

// Text returns the text of an error without the secrets of URLs. The methods of err may
// panic.
func Text(err error) string {
	text := fmt.Sprint(err) // fmt recovers panics of users' errors
	address := addressOf(err)
	if address != "" && !strings.Contains(address, "://") { // otherwise WithoutSecrets finds it
		quoted := strconv.Quote(address)
		text = strings.ReplaceAll(text, quoted[1:len(quoted)-1], redact(address))
		text = strings.ReplaceAll(text, address, redact(address))
	}
	return WithoutSecrets(text)
}

// addressOf returns the URL of an error of package net/url or net/http, or "".
func addressOf(err error) (address string) {
	defer func() { _ = recover() }() // from a method of a user's error
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.URL
	}
	return ""
}

// URL returns the text of u without its secrets. It returns "" if u is nil.
func URL(u *url.URL) string {
	if u == nil {
		return ""
	}
	return redact(u.String())
}

// urls finds a URL in quotes, as package net/url writes it, up to the closing quote, and
// others up to a space or a quote.
var urls = regexp.MustCompile(`"[A-Za-z][A-Za-z0-9+.-]*://(?:[^"\\]|\\.)*|[A-Za-z][A-Za-z0-9+.-]*://[^\s"]+`)

// WithoutSecrets returns a text in which the secrets of URLs are hidden.
func WithoutSecrets(text string) string {
	if !strings.Contains(text, "://") {
		return text
	}
	return urls.ReplaceAllStringFunc(text, func(found string) string {
		address, isQuoted := strings.CutPrefix(found, `"`)
		if isQuoted {
			return `"` + redact(address)
		}
		return redact(address)
	})
}

// redact hides the secrets of a URL, perhaps without a scheme, or of a list of URLs with
// commas.
func redact(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	switch {
	case ok:
		scheme += "://"
	case strings.HasPrefix(address, "//"):
		scheme, rest = "//", address[2:]
	default: // a path, perhaps with a host
		return withoutQuery(address)
	}
	next := ""
	if i := nextURL(rest); i >= 0 {
		next = rest[i:]
		rest = rest[:i]
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	if _, port, ok := strings.Cut(rest[:end], ":"); ok && !strings.Contains(rest[:end], "@") && strings.Trim(port, "0123456789") != "" {
		end = len(rest) // an invalid port may be part of a password that contains a slash
	}
	if at := strings.LastIndex(rest[:end], "@"); at >= 0 {
		user, _, ok := strings.Cut(rest[:at], ":")
		if ok {
			user += ":" + hidden
		} else {
			user = hidden
		}
		rest = user + rest[at:]
	}
	rest = withoutQuery(rest)
	if next != "" {
		rest += "," + redact(next[1:])
	}
	return scheme + rest
}

// withoutQuery hides the query and the fragment.
func withoutQuery(s string) string {
	if i := strings.IndexAny(s, "?#"); i >= 0 && i < len(s)-1 {
		return s[:i+1] + hidden
	}
	return s
}

// listed finds the comma between two URLs of a list.
var listed = regexp.MustCompile(`,[A-Za-z][A-Za-z0-9+.-]*://`)

// nextURL returns the index of the comma before the next URL of a list, or -1. A comma in
// a query belongs to the query.
func nextURL(rest string) int {
	at := listed.FindStringIndex(rest)
	if at == nil || strings.ContainsAny(rest[:at[0]], "?#") {
		return -1
	}
	return at[0]
}

const hidden = "xxxxx"

// maxShown limits the bytes of an identifier in an error or a log line.
const maxShown = 100

// Shown returns an identifier for an error. Of a long one it is the beginning, since a
// user's text may be of any length.
func Shown(id string) string {
	if len(id) <= maxShown {
		return id
	}
	n := maxShown
	for n > maxShown-utf8.UTFMax && !utf8.RuneStart(id[n]) {
		n--
	}
	return id[:n] + "…"
}

// Visible escapes the characters of a text that are not printable or not UTF-8, as Go
// does in string literals, except for the characters of keep. So the text cannot hide
// characters, control a terminal, or change its direction (law J3).
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
