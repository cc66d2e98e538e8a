package oncewire

import (
	"bytes"
	"encoding/json"
	"mime"
	"slices"
	"strings"
	"unicode/utf8"
)

// Content returns a media type and a body in a form that is equal for equal content: JSON without white space, with members in the
// order of their names, and without a charset of UTF-8. Other content is returned as it is, and so is what is nested deeper than 64 levels.
func Content(contentType string, body []byte) (string, []byte) {
	name, params, err := mime.ParseMediaType(contentType)
	if err != nil || name != "application/json" && !strings.HasSuffix(name, "+json") || !utf8.Valid(body) || !json.Valid(body) {
		return contentType, body
	}
	if strings.EqualFold(params["charset"], "utf-8") {
		delete(params, "charset")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	return mime.FormatMediaType(name, params), appendValue(nil, d, maxLevels)
}

// maxLevels bounds the levels whose members are sorted, since sorting a level may copy what is in it. What is nested deeper stays as it is.
const maxLevels = 64

// appendValue appends the next value of d, which is valid and not nested deeper than json.Valid allows. Members of the same name stay,
// in their order.
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
