package wire

import (
	"fmt"
	"reflect"
	"strings"
)

// kind is how a value is written. Its numbers are part of the format.
type kind uint8

const (
	_ kind = iota
	kindBool
	kindInt
	kindUint
	kindFloat32
	kindFloat64
	kindComplex64
	kindComplex128
	kindString
	kindBytes
	kindTime
	kindPointer
	kindSlice
	kindArray
	kindByteArray
	kindMap
	kindStruct
	kindInterface
	kindBinary // encoding.BinaryMarshaler
	kindGob    // gob.GobEncoder
	kindText   // encoding.TextMarshaler
	endOfKinds
)

var kindNames = [...]string{
	"", "bool", "int", "uint", "float32", "float64", "complex64", "complex128", "string", "[]byte", "time.Time", "pointer",
	"slice", "array", "[N]byte", "map", "struct", "interface", "BinaryMarshaler", "GobEncoder", "TextMarshaler",
}

func (k kind) String() string {
	if k == 0 || k >= endOfKinds {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// node is a type as it is written. The nodes of recursive types form cycles.
type node struct {
	kind   kind
	t      reflect.Type // nil if the node was read from a schema
	name   string       // of the type; for messages only
	elem   *node        // of a pointer, slice, array or map
	key    *node        // of a map
	n      int          // length of an array
	fields []field      // of a struct
	id     int          // in the schema

	appends bool // it writes itself with AppendBinary or AppendText
}

type field struct {
	name  string
	index int // in the Go struct
	node  *node
}

func (n *node) String() string {
	switch n.kind {
	case kindPointer:
		return "pointer to " + n.elem.kind.String()
	case kindSlice:
		return "slice of " + n.elem.kind.String()
	case kindArray:
		return fmt.Sprintf("[%d]%v", n.n, n.elem.kind)
	case kindByteArray:
		return fmt.Sprintf("[%d]byte", n.n)
	case kindMap:
		return fmt.Sprintf("map[%v]%v", n.key.kind, n.elem.kind)
	case kindStruct, kindInterface:
		return fmt.Sprintf("%v %s", n.kind, n.name)
	case kindBinary, kindGob, kindText:
		return fmt.Sprintf("%s (a %v)", n.name, n.kind)
	default:
		return n.kind.String()
	}
}

// maxDepth bounds the nesting of pointers, slices, maps and interfaces in a value: a list linked by pointers takes one
// level per link. It keeps cycles from being followed for ever, and hostile bytes from exhausting the stack.
const maxDepth = 10_000

// Error says what about a type, value or bytes is wrong, and where.
type Error struct {
	Path   string // from the value of the codec's type, such as .Next.Tags[]; "" for itself
	Reason string
	Err    error // the cause, or nil
}

func (e *Error) Error() string {
	s := e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Path != "" {
		s = e.Path + ": " + s
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

func wrong(format string, args ...any) *Error { return &Error{Reason: fmt.Sprintf(format, args...)} }

// maxPath bounds the length of a path: that of a list linked by pointers has no bound.
const maxPath = 200

// in notes that an error was found inside of a part of a value.
func (e *Error) in(part string) *Error {
	if len(e.Path) > maxPath {
		rest := e.Path[len(e.Path)-maxPath/2:]
		e.Path = "…" + rest[max(0, strings.IndexAny(rest, ".[(")):]
	}
	e.Path = part + e.Path
	return e
}
