// Package unknown keeps the members of stored JSON objects that this version does not know (law W4): it makes headers of them, which
// every engine passes on, and members again where an object of that kind is written.
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
	Known  []string // members; encoding/json takes them in any case
}

func (k *Kind) knows(name string) bool {
	return slices.ContainsFunc(k.Known, func(known string) bool { return strings.EqualFold(known, name) })
}

// Unmarshal reads an object into v, and returns what it does not know as headers, by their names. It costs more only if there is something.
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

// Split returns the headers that are members of such an object, and the others.
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

// member returns the name of the member that a header stands for.
func (k *Kind) member(header, value string) (name string, ok bool) {
	if name, ok = strings.CutPrefix(header, k.Prefix); !ok {
		return "", false
	}
	name, err := url.QueryUnescape(name)
	return name, err == nil && url.QueryEscape(name) == header[len(k.Prefix):] && !k.knows(name) && isLine(value)
}

// isLine says whether a value is JSON in one line that databases take, which one of a header of another program need not be.
func isLine(value string) bool {
	var b bytes.Buffer
	if err := json.Compact(&b, []byte(value)); err != nil || b.String() != value || !utf8.ValidString(value) {
		return false
	}
	escapes := strings.ToLower(value)
	return !strings.Contains(escapes, `\u0000`) && !strings.Contains(escapes, `\ud`) // NUL, and halves of characters
}

// Append adds the members that [Kind.Split] has returned to an object, in the order of their names.
func (k *Kind) Append(object []byte, members map[string]string) []byte {
	if len(members) == 0 {
		return object
	}
	object = bytes.TrimSuffix(object, []byte("}"))
	for _, header := range slices.Sorted(maps.Keys(members)) {
		name, _ := k.member(header, members[header])
		quoted, _ := json.Marshal(name) // strings cannot fail
		if len(object) > 1 {
			object = append(object, ',')
		}
		object = append(append(append(object, quoted...), ':'), members[header]...)
	}
	return append(object, '}')
}
