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
// order of their names, and without a charset of UTF-8. Other content is returned as it is.
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
	return mime.FormatMediaType(name, params), appendValue(nil, d)
}

// appendValue appends the next value of d, which is valid and not nested deeper than json.Valid allows. Members of the same name stay,
// in their order.
func appendValue(b []byte, d *json.Decoder) []byte {
	token, _ := d.Token()
	switch token {
	case json.Delim('['):
		b = append(b, '[')
		for d.More() {
			b = append(appendValue(b, d), ',')
		}
		_, _ = d.Token()
		return append(b, ']')
	case json.Delim('{'):
		type member struct {
			name  string
			value []byte
		}
		var members []member
		for d.More() {
			name, _ := d.Token()
			members = append(members, member{name.(string), appendValue(nil, d)})
		}
		_, _ = d.Token()
		slices.SortStableFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
		b = append(b, '{')
		for _, m := range members {
			name, _ := json.Marshal(m.name)
			b = append(append(append(append(b, name...), ':'), m.value...), ',')
		}
		return append(b, '}')
	}
	scalar, _ := json.Marshal(token)
	return append(b, scalar...)
}
