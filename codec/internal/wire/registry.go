package wire

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
)

// registry holds the types that may be in interfaces, by the names under which they are stored.
var registry = struct {
	sync.RWMutex
	byName map[string]reflect.Type
	byType map[reflect.Type]string
}{byName: map[string]reflect.Type{}, byType: map[reflect.Type]string{}}

func init() {
	// What is always known: the basic types, and what generic decoders (JSON, YAML) make.
	for _, t := range []reflect.Type{
		reflect.TypeFor[bool](), reflect.TypeFor[string](),
		reflect.TypeFor[int](), reflect.TypeFor[int8](), reflect.TypeFor[int16](), reflect.TypeFor[int32](), reflect.TypeFor[int64](),
		reflect.TypeFor[uint](), reflect.TypeFor[uint8](), reflect.TypeFor[uint16](), reflect.TypeFor[uint32](), reflect.TypeFor[uint64](),
		reflect.TypeFor[float32](), reflect.TypeFor[float64](), reflect.TypeFor[complex64](), reflect.TypeFor[complex128](),
		reflect.TypeFor[time.Time](), reflect.TypeFor[time.Duration](),
		reflect.TypeFor[[]byte](), reflect.TypeFor[[]string](), reflect.TypeFor[[]int](), reflect.TypeFor[[]float64](),
		reflect.TypeFor[[]any](), reflect.TypeFor[map[string]any](), reflect.TypeFor[map[string]string](),
	} {
		registry.byName[t.String()], registry.byType[t] = t, t.String()
	}
}

// Register makes a type known under a name; with an empty one, under its import path and name. It fails if the type cannot
// be stored, or if the name or the type is registered otherwise.
func Register(t reflect.Type, name string) error {
	if t.Kind() == reflect.Interface {
		return wrong("%v is an interface: register the types that it will hold", t)
	}
	c := compiler{nodes: map[nodeKey]*node{}}
	if _, err := c.compile(t, ""); err != nil {
		return err
	}
	if name == "" {
		name = fullName(t)
	}
	registry.Lock()
	defer registry.Unlock()
	if old, ok := registry.byType[t]; ok {
		if old == name {
			return nil
		}
		return wrong("it is registered as %q already, not %q", old, name)
	}
	if old, ok := registry.byName[name]; ok {
		return wrong("the name %q is that of another type, %v", name, old)
	}
	registry.byName[name], registry.byType[t] = t, name
	return nil
}

// fullName names a type as its source would, but with import paths. Types that are declared in functions have the names of
// their neighbours: they must be given names.
func fullName(t reflect.Type) string {
	if t.Name() != "" {
		if t.PkgPath() == "" {
			return t.Name()
		}
		return t.PkgPath() + "." + t.Name()
	}
	switch t.Kind() {
	case reflect.Pointer:
		return "*" + fullName(t.Elem())
	case reflect.Slice:
		return "[]" + fullName(t.Elem())
	case reflect.Array:
		return fmt.Sprintf("[%d]%s", t.Len(), fullName(t.Elem()))
	case reflect.Map:
		return "map[" + fullName(t.Key()) + "]" + fullName(t.Elem())
	default:
		return t.String()
	}
}

// registered is a type that may be in an interface.
type registered struct {
	name string
	t    reflect.Type
}

// implementers returns the registered types that an interface can hold, in the order of names.
func implementers(i reflect.Type) []registered {
	registry.RLock()
	defer registry.RUnlock()
	var out []registered
	for t, name := range registry.byType {
		if t.Implements(i) {
			out = append(out, registered{name, t})
		}
	}
	slices.SortFunc(out, func(a, b registered) int { return strings.Compare(a.name, b.name) })
	return out
}

// lookup returns the registered type of a name, or nil.
func lookup(name string) reflect.Type {
	registry.RLock()
	defer registry.RUnlock()
	return registry.byName[name]
}
