package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
)

const (
	maxShown    = 64 << 10  // bytes of a payload
	maxIndented = 256 << 10 // bytes of a payload shown as JSON
	maxValue    = 8 << 10   // bytes of a message's field or header
	maxHeaders  = 100       // of a message
)

// payloadText returns the beginning of a payload as json, text or hex. An empty form
// selects the first that is possible.
//
// Indenting 18 KB of brackets would make 81 MB. So a payload may be json only if its
// indented text has at most maxIndented bytes.
func payloadText(b []byte, form string) (chosen, text string, more bool) {
	var pretty bytes.Buffer
	isJSON := len(b) <= maxShown && indentedSize(b, maxIndented) <= maxIndented && json.Indent(&pretty, b, "", indent) == nil
	if form != "text" && form != "hex" {
		switch {
		case isJSON:
			form = "json"
		case utf8.Valid(b):
			form = "text"
		default:
			form = "hex"
		}
	}
	switch form {
	case "json":
		return form, visible(pretty.String()), false
	case "text":
		shown := b[:min(len(b), maxShown)]
		return form, visible(string(shown)), len(shown) < len(b)
	}
	shown := b[:min(len(b), maxShown/8)]
	return form, hex.Dump(shown), len(shown) < len(b)
}

const indent = "  "

// indentedSize returns an upper bound of the bytes that json.Indent makes of b: each
// bracket and comma outside of strings may start a line. It stops counting above limit.
func indentedSize(b []byte, limit int) int {
	size, depth := len(b), 0
	inString, escaped := false, false
	for _, c := range b {
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped = c == '\\'
			inString = c != '"'
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
			size += 1 + len(indent)*depth
		case c == '}' || c == ']':
			depth = max(0, depth-1)
			size += 1 + len(indent)*depth
		case c == ',':
			size += 1 + len(indent)*depth
		case c == ':':
			size++
		}
		if size > limit {
			return size
		}
	}
	return size
}

// hasJSONCodec reports whether a message's codec is JSON, the default, so that a person
// can edit it.
func hasJSONCodec(e *store.Entry) bool { return string(e.Schema) == "json" }
