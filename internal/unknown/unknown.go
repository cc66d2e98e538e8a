// Package unknown keeps members of stored JSON objects that this version of weir does not
// know (law W4). It turns them into headers, which every engine passes on, and back into
// members when an object of the kind is written.
package unknown

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"
)

// Kind is a kind of object.
type Kind struct {
	Prefix string   // of the headers
	Known  []string // names of the known members; compared without case, as encoding/json does
}

func (k *Kind) knows(name string) bool {
	return slices.ContainsFunc(k.Known, func(known string) bool { return strings.EqualFold(known, name) })
}

// Unmarshal reads an object into v, and returns its unknown members as headers. It
// decodes the object a second time only if a member is unknown.
func (k *Kind) Unmarshal(object []byte, v any) (headers map[string]string, err error) {
	strict := json.NewDecoder(bytes.NewReader(object))
	strict.DisallowUnknownFields()
	if strict.Decode(v) == nil {
		if _, err := strict.Token(); err == io.EOF {
			return nil, nil
		}
	}
	if err := json.Unmarshal(object, v); err != nil {
		return nil, err
	}
	var members map[string]any
	lenient := json.NewDecoder(bytes.NewReader(object))
	lenient.UseNumber()
	if err := lenient.Decode(&members); err != nil {
		return nil, err
	}
	headers = map[string]string{}
	for name, value := range members {
		if k.knows(name) {
			continue
		}
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(value); err != nil {
			return nil, err
		}
		headers[k.Prefix+url.QueryEscape(name)] = string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	}
	return headers, nil
}

// Split returns the headers that hold members of an object of the kind, and the other
// headers.
func (k *Kind) Split(headers map[string]string) (members, others map[string]string) {
	for name, value := range headers {
		if _, ok := k.member(name, value); !ok {
			continue
		}
		if members == nil {
			members, others = map[string]string{}, maps.Clone(headers)
		}
		members[name] = value
		delete(others, name)
	}
	if members == nil {
		return nil, headers
	}
	return members, others
}

// member returns the name of the member that a header holds. ok is false if it does not
// hold a member.
func (k *Kind) member(header, value string) (name string, ok bool) {
	name, ok = strings.CutPrefix(header, k.Prefix)
	if !ok {
		return "", false
	}
	name, err := url.QueryUnescape(name)
	return name, err == nil && url.QueryEscape(name) == header[len(k.Prefix):] && !k.knows(name) && isLine(value)
}

// isLine reports whether a value is compact JSON that databases accept. A header of
// another program may have any value.
func isLine(value string) bool {
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(value)); err != nil || b.String() != value || !utf8.ValidString(value) {
		return false
	}
	escapes := strings.ToLower(value)
	return !strings.Contains(escapes, `\u0000`) && !strings.Contains(escapes, `\ud`) // NUL, surrogates
}

// Append adds members from [Kind.Split] to an object, in the order of their headers.
func (k *Kind) Append(object []byte, members map[string]string) []byte {
	if len(members) == 0 {
		return object
	}
	object = bytes.TrimSuffix(object, []byte("}"))
	for _, header := range slices.Sorted(maps.Keys(members)) {
		name, _ := k.member(header, members[header])
		quoted, _ := json.Marshal(name) // cannot fail for a string
		if len(object) > 1 {
			object = append(object, ',')
		}
		object = append(append(append(object, quoted...), ':'), members[header]...)
	}
	return append(object, '}')
}
