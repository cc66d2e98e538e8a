package codec

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Default returns [JSON] for values that must be decoded exactly, such as the elements of
// a checkpoint. It refuses types and values that JSON would change silently.
//
// Default panics with a *[Error] for
//   - unexported fields, interfaces, and fields that share a name: tag a field with
//     `json:"-"` to leave it out;
//   - a pointer to another pointer, to a slice or to a map;
//   - keys of a map that are not strings, integers or types with MarshalText;
//   - types that JSON cannot express: functions, channels, complex numbers;
//   - a type with MarshalJSON or MarshalText but without the method that reads it, or the
//     other way round, or whose method is not called: see [JSON];
//   - tags with a name that encoding/json does not accept, and the option string of a
//     string.
//
// Append refuses values that JSON cannot express: NaN, infinite numbers, cycles of
// pointers, values nested more than 10,000 deep, strings that are not UTF-8 (use []byte).
// Such strings are not noticed in a part of T that has its own MarshalJSON.
//
// Not kept are:
//   - which pointers, slices and maps share memory, and capacities;
//   - a time's monotonic reading, the name of its location, and the seconds of its
//     offset, if any (which makes it another time);
//   - spaces in a json.RawMessage; nil, which becomes null; and "" as a json.Number,
//     which becomes 0;
//   - values that the tags omitempty and omitzero leave out: an empty slice is decoded as
//     nil.
//
// Fields are matched by name, or, without an exact match, ignoring case. An added field
// is zero, and a removed field is skipped. Decode fails for a changed type that JSON
// cannot read. JSON can decode the output of Default, and the other way round.
func Default[T any]() Codec[T] {
	w := walk{exact: true, seen: map[visit]bool{}}
	if found := w.find(reflect.TypeFor[T](), true, ""); found != nil {
		found.Type = reflect.TypeFor[T]()
		panic(found)
	}
	return jsonCodec[T]{text: !w.raw, nests: w.nests}
}

// walk finds parts of a type that encoding/json loses silently. It visits types as
// encoding/json does.
type walk struct {
	exact     bool           // looks for all losses, not only for methods that are not called
	documents bool           // allows an any in maps and slices
	raw       bool           // a type writes its JSON itself
	nests     bool           // a type contains itself
	seen      map[visit]bool // true while the walk is inside it
}

// visit is a visited type, whose methods depend on whether it is addressable.
type visit struct {
	t           reflect.Type
	addressable bool
}

var (
	jsonMarshaler   = reflect.TypeFor[json.Marshaler]()
	textMarshaler   = reflect.TypeFor[encoding.TextMarshaler]()
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (w *walk) find(t reflect.Type, addressable bool, path string) *Error {
	v := visit{t, addressable}
	if inside, seen := w.seen[v]; seen {
		w.nests = w.nests || inside
		return nil
	}
	w.seen[v] = true
	defer func() { w.seen[v] = false }()
	if w.exact && t.Kind() == reflect.Interface {
		return &Error{Path: path, Reason: "JSON does not keep which type an interface holds"}
	}
	if writes, err := w.methods(t, addressable, path); writes || err != nil {
		if name := promoting(t); err == nil && w.exact && name != "" {
			return &Error{Path: path + "." + name, Reason: "the embedded type has methods for JSON, which would write the whole: name the field"}
		}
		return err
	}
	switch t.Kind() {
	case reflect.Pointer:
		switch t.Elem().Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			if w.exact {
				return &Error{Path: path, Reason: "in JSON, a pointer to nil is nil itself"}
			}
		default:
		}
		return w.find(t.Elem(), true, path)
	case reflect.Slice:
		if w.isDocument(t.Elem()) {
			return nil
		}
		return w.find(t.Elem(), true, path+"[]")
	case reflect.Array:
		return w.find(t.Elem(), addressable, path+"[]")
	case reflect.Map:
		if err := w.key(t.Key(), path+"[key]"); err != nil {
			return err
		}
		if t.Key().Kind() == reflect.String && w.isDocument(t.Elem()) {
			return nil
		}
		return w.find(t.Elem(), false, path+"[]")
	case reflect.Struct:
		return w.fields(t, addressable, path, map[string]bool{})
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		if w.exact {
			return &Error{Path: path, Reason: "JSON has no form for " + t.String()}
		}
	default:
	}
	return nil
}

// isDocument reports whether t is the any of a map[string]any or a []any.
func (w *walk) isDocument(t reflect.Type) bool {
	return w.documents && t == reflect.TypeFor[any]()
}

func (w *walk) methods(t reflect.Type, addressable bool, path string) (writes bool, err *Error) {
	for marshaler, unmarshaler := range map[reflect.Type]reflect.Type{jsonMarshaler: jsonUnmarshaler, textMarshaler: textUnmarshaler} {
		if marshaler == textMarshaler && reflect.PointerTo(t).Implements(jsonMarshaler) {
			continue // not used
		}
		if !t.Implements(marshaler) {
			if !reflect.PointerTo(t).Implements(marshaler) {
				if w.exact && reflect.PointerTo(t).Implements(unmarshaler) {
					return true, unpaired(t, path, unmarshaler, marshaler)
				}
				continue
			}
			if !addressable {
				return true, notCalled(t, marshaler, path, "let the map hold pointers")
			}
		}
		if w.exact && !t.Implements(unmarshaler) && !reflect.PointerTo(t).Implements(unmarshaler) {
			return true, unpaired(t, path, marshaler, unmarshaler)
		}
		of := t
		if t.Kind() == reflect.Pointer {
			of = t.Elem()
		}
		w.raw = w.raw || marshaler == jsonMarshaler && of.PkgPath() != "time" && of.PkgPath() != "math/big" // those types write no arbitrary text
		writes = true
	}
	return writes, nil
}

// unpaired refuses a type with a method of one interface but without its counterpart.
func unpaired(t reflect.Type, path string, has, lacks reflect.Type) *Error {
	return &Error{Path: path, Reason: t.String() + " has " + has.Method(0).Name + " and no " + lacks.Method(0).Name}
}

func (w *walk) key(k reflect.Type, path string) *Error {
	isString := k.Kind() == reflect.String // its MarshalText is not called, but its UnmarshalText is
	switch {
	case w.exact && reflect.PointerTo(k).Implements(textUnmarshaler) && (isString || !reflect.PointerTo(k).Implements(textMarshaler)):
		return &Error{Path: path, Reason: "encoding/json calls UnmarshalText of " + k.String() + " and no MarshalText"}
	case isString, k.Implements(textMarshaler) && (!w.exact || reflect.PointerTo(k).Implements(textUnmarshaler)):
		return nil
	case reflect.PointerTo(k).Implements(textMarshaler):
		return notCalled(k, textMarshaler, path, "give it a value receiver")
	case w.exact && !(reflect.Int <= k.Kind() && k.Kind() <= reflect.Uintptr):
		return &Error{Path: path, Reason: k.String() + " is no key of an object in JSON"}
	}
	return nil
}

// fields checks the fields of a struct and of embedded structs. names are earlier names.
func (w *walk) fields(t reflect.Type, addressable bool, path string, names map[string]bool) *Error {
	for f := range t.Fields() {
		path := path + "." + f.Name
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		embedded := f.Anonymous && name == "" && isStruct(f.Type)
		switch {
		case f.Tag.Get("json") == "-":
			continue
		case !f.IsExported() && !embedded:
			if w.exact {
				return &Error{Path: path, Reason: "JSON leaves out the unexported field"}
			}
			continue
		case embedded && w.exact:
			if err := w.embedded(f.Type, addressable, path, names); err != nil {
				return err
			}
			continue
		}
		if err := tag(f, name, options, path); w.exact && err != nil {
			return err
		}
		name = cmp.Or(name, f.Name)
		if w.exact && names[name] {
			return &Error{Path: path, Reason: "another field has the name " + name + ", too"}
		}
		names[name] = true
		if err := w.find(f.Type, addressable, path); err != nil {
			return err
		}
	}
	return nil
}

func tag(f reflect.StructField, name, options, path string) *Error {
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", r)
	}):
		return &Error{Path: path, Reason: "encoding/json does not take the name " + strconv.Quote(name) + " in a tag"}
	case t.Kind() == reflect.String && slices.Contains(strings.Split(options, ","), "string"):
		return &Error{Path: path, Reason: "with the option string, a string that is not UTF-8 changes unnoticed"}
	}
	return nil
}

func (w *walk) embedded(t reflect.Type, addressable bool, path string, names map[string]bool) *Error {
	if t.Kind() == reflect.Pointer {
		return &Error{Path: path, Reason: "in JSON, an embedded pointer that is nil is one to zero"}
	}
	return w.fields(t, addressable, path, names)
}

// promoting returns the name of a field whose promoted methods would lose other fields.
func promoting(t reflect.Type) string {
	if t.Kind() == reflect.Struct && t.NumField() > 1 {
		for f := range t.Fields() {
			if p := reflect.PointerTo(f.Type); f.Anonymous && (p.Implements(jsonMarshaler) || p.Implements(textMarshaler)) {
				return f.Name
			}
		}
	}
	return ""
}

func isStruct(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct
}

func notCalled(t, marshaler reflect.Type, path, remedy string) *Error {
	return &Error{Path: path, Reason: marshaler.Method(0).Name + " of " + t.String() +
		" has a pointer receiver, and encoding/json does not call it in a map: " + remedy}
}

var (
	errNoUTF8 = errors.New("a string is not UTF-8, and JSON would change it: use []byte")
	errDeep   = errors.New("the value is nested more deeply than JSON can be read")
)

// replacement is the escape with which encoding/json replaces bytes that are not UTF-8.
// With GOEXPERIMENT=jsonv2 it is the character itself, so strings with it are refused,
// too.
var replacement = func() []byte {
	b, _ := json.Marshal("\xff")
	return bytes.Trim(b, `"`)
}()

func isChanged(b []byte) bool {
	for from := 0; ; {
		i := bytes.Index(b[from:], replacement)
		if i < 0 {
			return false
		}
		at := from + i
		slashes := 0
		for at-slashes > 0 && b[at-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return true
		}
		from = at + len(replacement)
	}
}
