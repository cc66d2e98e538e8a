package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/weirflow/weir/internal/guard"
)

// escaped makes one line of a text, without control characters.
func escaped(s string) string { return guard.Visible(s, "") }

// escapedLines is escaped for text with line breaks and tabs.
func escapedLines(s string) string { return guard.Visible(s, "\n\t") }

// escapedJSON escapes the unprintable characters of JSON, such as \u202e. JSON itself
// requires only the first 32.
func escapedJSON(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case strconv.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// oneLine joins the lines of a text.
func oneLine(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		line = strings.TrimSpace(line)
		switch before := b.String(); {
		case line == "":
			continue
		case strings.HasSuffix(before, ":"):
			b.WriteString(" ")
		case before != "":
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}
