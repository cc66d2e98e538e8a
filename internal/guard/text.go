package guard

import (
	"fmt"
	"regexp"
	"strings"
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
