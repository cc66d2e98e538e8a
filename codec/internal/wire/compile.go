package wire

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// compiler finds out how types are written.
type compiler struct {
	nodes      map[nodeKey]*node
	order      []nodeKey // of nodes, as they were made
	interfaces []iface
}

type nodeKey struct {
	t     reflect.Type
	plain bool // its methods cannot be called: it is an unexported embedded struct
}

// iface is an interface type and the place where it was found.
type iface struct {
	t    reflect.Type
	path string
}

type (
	gobEncoder interface{ GobEncode() ([]byte, error) }
	gobDecoder interface{ GobDecode(b []byte) error }
)

var timeType = reflect.TypeFor[time.Time]()

// marshalers are the pairs of methods by which types write themselves.
var marshalers = []struct {
	kind     kind
	to, from reflect.Type
}{
	{kindBinary, reflect.TypeFor[encoding.BinaryMarshaler](), reflect.TypeFor[encoding.BinaryUnmarshaler]()},
	{kindGob, reflect.TypeFor[gobEncoder](), reflect.TypeFor[gobDecoder]()},
	{kindText, reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()},
}

// compile returns the node of a type. The rules, in this order:
//
//  1. time.Time is known.
//  2. A type with MarshalBinary and UnmarshalBinary of its own writes itself: that is what they are for.
//  3. A type is taken apart, if all of its parts can be written.
//  4. Otherwise GobEncode and GobDecode, or MarshalText and UnmarshalText, are used. Not before: texts are made for people,
//     and often lose something (a big.Float its precision, a net.IP its length).
//  5. What is left is refused.
func (c *compiler) compile(t reflect.Type, path string) (*node, *Error) {
	return c.compileKey(nodeKey{t: t}, path)
}

func (c *compiler) compileKey(key nodeKey, path string) (*node, *Error) {
	if n, ok := c.nodes[key]; ok {
		return n, nil
	}
	t := key.t
	n := &node{t: t, name: t.String()}
	c.nodes[key] = n
	c.order = append(c.order, key)
	if t == timeType {
		n.kind = kindTime
		return n, nil
	}
	promoted := "" // an embedded field that hides what the methods belong to
	var own []kind
	if k := t.Kind(); k != reflect.Pointer && k != reflect.Interface && !key.plain {
		own, promoted = ownMarshalers(t)
	}
	if slices.Contains(own, kindBinary) {
		n.kind, n.appends = kindBinary, ownAppender(t, kindBinary)
		return n, nil
	}
	made, found := len(c.order), len(c.interfaces)
	err := c.takeApart(n, path)
	if err == nil {
		return n, nil
	}
	// Forget what was found on the way: it may depend on what cannot be written.
	for _, k := range c.order[made:] {
		delete(c.nodes, k)
	}
	c.order, c.interfaces = c.order[:made], c.interfaces[:found]
	if len(own) > 0 {
		*n = node{kind: own[0], t: t, name: n.name, appends: ownAppender(t, own[0])}
		return n, nil
	}
	delete(c.nodes, key)
	if promoted != "" {
		err.Reason += fmt.Sprintf(" (the marshaling methods of %v are not used: they may be those of its embedded field %s)", t, promoted)
	}
	return nil, err
}

// ownMarshalers returns by which pairs of methods a type can write itself. Methods that may come from an embedded field do
// not count, since they write that field only: a struct with an embedded time.Time has the methods of a time.
func ownMarshalers(t reflect.Type) (own []kind, promoted string) {
	p := reflect.PointerTo(t)
	for _, m := range marshalers {
		if !p.Implements(m.to) || !p.Implements(m.from) {
			continue
		}
		if field := promotes(t, m.to.Method(0).Name, m.from.Method(0).Name); field != "" {
			promoted = field
			continue
		}
		own = append(own, m.kind)
	}
	return own, promoted
}

// ownAppender reports whether a type that marshals itself as kind can append, too, with a method that is not an embedded
// field's.
func ownAppender(t reflect.Type, k kind) bool {
	appender, ok := appenders[k]
	return ok && reflect.PointerTo(t).Implements(appender) && promotes(t, appender.Method(0).Name) == ""
}

var appenders = map[kind]reflect.Type{
	kindBinary: reflect.TypeFor[encoding.BinaryAppender](),
	kindText:   reflect.TypeFor[encoding.TextAppender](),
}

// promotes returns an embedded field of t that has one of the methods.
func promotes(t reflect.Type, methods ...string) string {
	if t.Kind() != reflect.Struct {
		return ""
	}
	for f := range t.Fields() {
		if !f.Anonymous {
			continue
		}
		ft := f.Type
		if k := ft.Kind(); k != reflect.Pointer && k != reflect.Interface {
			ft = reflect.PointerTo(ft)
		}
		for _, m := range methods {
			if _, ok := ft.MethodByName(m); ok {
				return f.Name
			}
		}
	}
	return ""
}

func (c *compiler) takeApart(n *node, path string) (err *Error) {
	t := n.t
	switch t.Kind() {
	case reflect.Bool:
		n.kind = kindBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n.kind = kindInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n.kind = kindUint
	case reflect.Float32:
		n.kind = kindFloat32
	case reflect.Float64:
		n.kind = kindFloat64
	case reflect.Complex64:
		n.kind = kindComplex64
	case reflect.Complex128:
		n.kind = kindComplex128
	case reflect.String:
		n.kind = kindString
	case reflect.Pointer:
		n.kind = kindPointer
		n.elem, err = c.compile(t.Elem(), path)
	case reflect.Slice:
		n.kind = kindSlice
		n.elem, err = c.compile(t.Elem(), path+"[]")
		if err == nil && isByte(n.elem) {
			n.kind, n.elem = kindBytes, nil
		}
	case reflect.Array:
		n.kind, n.n = kindArray, t.Len()
		n.elem, err = c.compile(t.Elem(), path+"[]")
		if err == nil && isByte(n.elem) && n.n > 0 {
			n.kind, n.elem = kindByteArray, nil
		}
	case reflect.Map:
		n.kind = kindMap
		n.key, err = c.compile(t.Key(), path+"[key]")
		if err == nil {
			err = mapKey(n.key, path+"[key]", true)
		}
		if err == nil {
			n.elem, err = c.compile(t.Elem(), path+"[]")
		}
	case reflect.Struct:
		n.kind = kindStruct
		err = c.structFields(n, path)
	case reflect.Interface:
		n.kind = kindInterface
		c.interfaces = append(c.interfaces, iface{t, path})
	case reflect.Uintptr:
		err = wrong("a uintptr is an address").in(path)
	default: // func, chan, unsafe pointer
		err = wrong("a %v cannot be stored", t.Kind()).in(path)
	}
	return err
}

func isByte(n *node) bool { return n.kind == kindUint && n.t.Kind() == reflect.Uint8 }

// mapKey refuses keys that would not be equal to themselves when they come back.
func mapKey(n *node, path string, top bool) *Error {
	switch n.kind {
	case kindPointer:
		return wrong("pointers as map keys cannot be restored: each would point to a new value").in(path)
	case kindInterface:
		if !top {
			return wrong("interfaces inside of map keys are not supported").in(path)
		}
	case kindArray:
		return mapKey(n.elem, path+"[]", false)
	case kindStruct:
		for _, f := range n.fields {
			if err := mapKey(f.node, path+"."+f.name, false); err != nil {
				return err
			}
		}
	default:
	}
	return nil
}

// structFields finds the fields. The tag `weir:"-"` leaves one out: it comes back as zero. The tag `weir:"name"` gives
// it the name under which it is stored, so that it can be renamed.
func (c *compiler) structFields(n *node, path string) *Error {
	names := map[string]bool{}
	for i := range n.t.NumField() {
		f := n.t.Field(i)
		tag := f.Tag.Get("weir")
		if tag == "-" || f.Name == "_" { // a blank field holds nothing that can be read
			continue
		}
		at := path + "." + f.Name
		key := nodeKey{t: f.Type}
		if !f.IsExported() {
			if !f.Anonymous || f.Type.Kind() != reflect.Struct {
				return wrong("the field is unexported, and %v has no marshaling methods", n.t).in(at)
			}
			key.plain = true // its exported fields can be reached
		}
		child, err := c.compileKey(key, at)
		if err != nil {
			return err
		}
		name := f.Name
		if tag != "" {
			name = tag
		}
		switch {
		case strings.ContainsAny(name, ", "):
			return wrong("the tag weir:%q is not a name", tag).in(at)
		case names[name]:
			return wrong("a second field is stored as %q", name).in(at)
		}
		names[name] = true
		n.fields = append(n.fields, field{name: name, index: i, node: child})
	}
	return nil
}
