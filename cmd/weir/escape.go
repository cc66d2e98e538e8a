package main

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"

	"github.com/weirflow/weir/internal/guard"
)

// escaped returns a text in one line in which nothing controls the terminal.
func escaped(s string) string { return guard.Visible(s, "") }

// escapedLines is escaped for a text with lines and tabs.
func escapedLines(s string) string { return guard.Visible(s, "\n\t") }

// escapedJSON returns the same JSON with what is not printable written as \u202e: JSON
// itself escapes only the first 32 characters.
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

// oneLine returns a text of several lines, such as that of joined errors, in one.
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
