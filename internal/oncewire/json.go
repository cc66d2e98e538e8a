package oncewire

import (
	"bytes"
	"encoding/json"
	"mime"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// Content returns a media type and a body in a form that is equal for equal content: JSON
// without white space, sorted by names, and without a charset of UTF-8. This form's media
// type begins with [JSONMark]. Other content is unchanged: values nested deeper than 64
// levels, and bodies that encoding/json would change, because they are not valid UTF-8 or
// escape half of a surrogate pair.
func Content(contentType string, body []byte) (string, []byte) {
	name, params, err := mime.ParseMediaType(contentType)
	if err != nil || name != "application/json" && !strings.HasSuffix(name, "+json") {
		return contentType, body
	}
	if !utf8.Valid(body) || !json.Valid(body) || hasHalfPair(body) {
		return contentType, body
	}
	if strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	mediaType := mime.FormatMediaType(name, params)
	if mediaType == "" { // not a valid media type
		return contentType, body
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return JSONMark + mediaType, appendValue(nil, d, maxLevels)
}

// JSONMark is in no media type that a client can send, so JSON in the form of [Content]
// never equals a body that is compared byte by byte.
const JSONMark = "\x00"

// hasHalfPair reports whether valid JSON escapes half of a surrogate pair, as "\ud800"
// does. encoding/json reads every half as U+FFFD, so different strings would be equal.
func hasHalfPair(body []byte) bool {
	for {
		i := bytes.IndexByte(body, '\\')
		if i < 0 {
			return false
		}
		body = body[i:]
		first := escapedRune(body)
		if !utf16.IsSurrogate(first) {
			body = body[2:] // skip the escaped character, perhaps a backslash
			continue
		}
		second := escapedRune(body[len(`\ud800`):])
		if utf16.DecodeRune(first, second) == utf8.RuneError {
			return true
		}
		body = body[2*len(`\ud800`):]
	}
}

// escapedRune returns the code unit of an escape such as "\ud800" at the start of b, or
// -1.
func escapedRune(b []byte) rune {
	if len(b) < len(`\ud800`) || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(n)
}

// maxLevels limits the levels that are sorted, since sorting a level may copy all its
// content.
const maxLevels = 64

// appendValue appends the next value of d in the form of [Content], with levels sorted.
// The JSON must be valid. Members with the same name keep their order.
func appendValue(b []byte, d *json.Decoder, levels int) []byte {
	if levels == 0 {
		var value json.RawMessage
		_ = d.Decode(&value)
		return append(b, value...)
	}
	token, _ := d.Token()
	switch token {
	case json.Delim('['):
		b = append(b, '[')
		for d.More() {
			b = append(appendValue(b, d, levels-1), ',')
		}
		_, _ = d.Token()
		return append(b, ']')
	case json.Delim('{'):
		type member struct {
			name     string
			from, to int
		}
		var members []member
		b = append(b, '{')
		begin := len(b)
		for d.More() {
			token, _ := d.Token()
			m := member{name: token.(string), from: len(b) - begin}
			name, _ := json.Marshal(m.name)
			b = append(appendValue(append(append(b, name...), ':'), d, levels-1), ',')
			m.to = len(b) - begin
			members = append(members, m)
		}
		_, _ = d.Token()
		byName := func(a, b member) int { return strings.Compare(a.name, b.name) }
		if !slices.IsSortedFunc(members, byName) {
			slices.SortStableFunc(members, byName)
			unsorted := bytes.Clone(b[begin:])
			b = b[:begin]
			for _, m := range members {
				b = append(b, unsorted[m.from:m.to]...)
			}
		}
		return append(b, '}')
	}
	scalar, _ := json.Marshal(token)
	return append(b, scalar...)
}
