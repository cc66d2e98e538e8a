package wire

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"time"
)

// The types of the tests: what programs have in their streams.

type celsius float32

type mood int // with a text for people: it is stored as a number all the same

func (m mood) MarshalText() ([]byte, error)  { return []byte("?"), nil }
func (m *mood) UnmarshalText(b []byte) error { *m = -1; return nil }

// point writes itself.
type point struct{ x, y int32 }

func (p point) MarshalBinary() ([]byte, error) {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(p.x)), uint32(p.y)), nil
}

func (p *point) UnmarshalBinary(b []byte) error {
	if len(b) != 8 {
		return errors.New("not a point")
	}
	p.x, p.y = int32(binary.BigEndian.Uint32(b)), int32(binary.BigEndian.Uint32(b[4:]))
	return nil
}

// stamped has the methods of a time, which would write the time only.
type stamped struct {
	time.Time
	Note string
}

type inner struct {
	A, B int
}

// base is embedded, its own name is not exported.
type base struct {
	ID   uint32
	Kind string
}

type list struct {
	Value int
	Next  *list
}

type tree struct {
	Name     string
	Children []tree
	ByName   map[string]*tree
}

type zoo struct {
	base
	Bool    bool
	Int     int
	Int8    int8
	Int16   int16
	Int32   int32
	Int64   int64
	Uint    uint
	Uint8   uint8
	Uint16  uint16
	Uint32  uint32
	Uint64  uint64
	F32     float32
	F64     float64
	C64     complex64
	C128    complex128
	Degrees celsius
	Mood    mood
	String  string
	Bytes   []byte
	Hash    [4]byte
	Grid    [2][2]int8
	None    [0]int
	Empty   struct{}
	Empties []struct{}
	Ints    []int
	Strings []string
	Nested  [][]string
	Map     map[string]int
	Sets    map[inner]struct{}
	Times   map[float64]bool
	Ptr     *int
	PtrPtr  **string
	Inner   inner
	Inners  []*inner
	List    *list
	Tree    tree
	When    time.Time
	Due     *time.Time
	For     time.Duration
	Any     any
	Anys    []any
	AnyKeys map[any]string
	Point   point
	Points  []point
	ByPoint map[point]int
	Stamped stamped
	Skipped func() `weir:"-"`
	Renamed int    `weir:"old_name"`
	_       int
}

func ptr[T any](v T) *T { return &v }

func fullZoo() zoo {
	nan := math.NaN()
	return zoo{
		base: base{7, "bear"}, Bool: true, Int: math.MinInt, Int8: -128, Int16: math.MaxInt16, Int32: math.MinInt32,
		Int64: math.MaxInt64, Uint: math.MaxUint, Uint8: 255, Uint16: 65535, Uint32: 1 << 31, Uint64: math.MaxUint64,
		F32: float32(math.Inf(-1)), F64: math.Copysign(0, -1), C64: complex(1, -2), C128: complex(nan, math.Inf(1)),
		Degrees: -273.15, Mood: 3, String: "\xff\x00é", Bytes: []byte{}, Hash: [4]byte{1, 2, 3, 4},
		Grid: [2][2]int8{{1, 2}, {3, -4}}, Empties: make([]struct{}, 3), Ints: []int{1, -1, 0}, Strings: []string{},
		Nested: [][]string{nil, {}, {"a", ""}}, Map: map[string]int{"": 0, "b": -5}, Sets: map[inner]struct{}{{1, 2}: {}},
		Times: map[float64]bool{nan: true, 0: false}, Ptr: ptr(0), PtrPtr: ptr(ptr("x")), Inner: inner{1, 2},
		Inners: []*inner{nil, {3, 4}}, List: &list{1, &list{2, nil}},
		Tree: tree{"root", []tree{{Name: "leaf"}}, map[string]*tree{"nil": nil, "x": {Name: "y", Children: []tree{}}}},
		When: time.Date(2024, 2, 29, 23, 59, 60, 999_999_999, time.FixedZone("XST", -3*3600-7)),
		Due:  ptr(time.Unix(-1, 1).UTC()), For: time.Hour,
		Any:     map[string]any{"n": nil, "f": 1.5, "l": []any{int8(1), "two", []byte{3}}},
		Anys:    []any{nil, 1, uint64(math.MaxUint64), "s", 2.5, float32(1), true, time.Second, &inner{5, 6}, inner{7, 8}, point{9, 9}},
		AnyKeys: map[any]string{1: "int", int64(1): "int64", "1": "string", inner{1, 1}: "inner"},
		Point:   point{-1, 1}, Points: []point{{}, {2, 3}}, ByPoint: map[point]int{{1, 1}: 1},
		Stamped: stamped{time.Unix(1e9, 0).UTC(), "not lost"}, Renamed: 42,
	}
}

// others are types of the standard library that marshal themselves, each by another pair of methods.
type others struct {
	Big   *big.Int
	Float *big.Float
	Rat   big.Rat
	Addr  netip.Addr
	Port  netip.AddrPort
	IP    net.IP
	URL   *url.URL
	Net   *net.IPNet
}

func init() {
	for _, t := range []reflect.Type{
		reflect.TypeFor[inner](), reflect.TypeFor[*inner](), reflect.TypeFor[point](), reflect.TypeFor[list](), reflect.TypeFor[*list](),
	} {
		if err := Register(t, ""); err != nil {
			panic(err)
		}
	}
}

// same reports whether two values are equal in all that a codec promises to keep.
func same(a, b reflect.Value) bool {
	if a.IsValid() != b.IsValid() {
		return false
	}
	if !a.IsValid() {
		return true
	}
	if a.Type() != b.Type() {
		return false
	}
	if a.Kind() == reflect.Pointer || a.Kind() == reflect.Interface {
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return same(a.Elem(), b.Elem()) // an interface's values may differ in type
	}
	switch x := a.Interface().(type) {
	case time.Time:
		y := b.Interface().(time.Time)
		xn, xo := x.Zone()
		yn, yo := y.Zone()
		return x.Equal(y) && xn == yn && xo == yo && (x.Location() == time.UTC) == (y.Location() == time.UTC)
	case big.Int:
		return x.Cmp(ptr(b.Interface().(big.Int))) == 0
	case big.Float:
		y := b.Interface().(big.Float)
		return x.Cmp(&y) == 0 && x.Prec() == y.Prec() && x.Mode() == y.Mode()
	case big.Rat:
		return x.Cmp(ptr(b.Interface().(big.Rat))) == 0
	case point, netip.Addr, netip.AddrPort:
		return x == b.Interface()
	case url.URL:
		return x.String() == ptr(b.Interface().(url.URL)).String()
	}
	switch a.Kind() {
	case reflect.Float32, reflect.Float64:
		return math.Float64bits(a.Float()) == math.Float64bits(b.Float())
	case reflect.Complex64, reflect.Complex128:
		x, y := a.Complex(), b.Complex()
		return math.Float64bits(real(x)) == math.Float64bits(real(y)) && math.Float64bits(imag(x)) == math.Float64bits(imag(y))
	case reflect.Slice, reflect.Array:
		if a.Kind() == reflect.Slice && a.IsNil() != b.IsNil() || a.Len() != b.Len() {
			return false
		}
		for i := range a.Len() {
			if !same(a.Index(i), b.Index(i)) {
				return false
			}
		}
		return true
	case reflect.Map:
		return a.IsNil() == b.IsNil() && a.Len() == b.Len() && sameEntries(a, b)
	case reflect.Struct:
		for i := range a.NumField() {
			f := a.Type().Field(i)
			if f.Name == "_" || f.Tag.Get("weir") == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if f.Anonymous && !f.IsExported() { // its fields can be read, it cannot
				for j := range a.Field(i).NumField() {
					if !same(a.Field(i).Field(j), b.Field(i).Field(j)) {
						return false
					}
				}
				continue
			}
			if !same(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	default:
		return reflect.DeepEqual(a.Interface(), b.Interface())
	}
}

// sameEntries finds a partner for every entry: keys may be NaN.
func sameEntries(a, b reflect.Value) bool {
	type entry struct{ key, value reflect.Value }
	var rest []entry
	for i := b.MapRange(); i.Next(); {
		rest = append(rest, entry{i.Key(), i.Value()})
	}
	for i := a.MapRange(); i.Next(); {
		j := slices.IndexFunc(rest, func(e entry) bool { return same(i.Key(), e.key) && same(i.Value(), e.value) })
		if j < 0 {
			return false
		}
		rest = slices.Delete(rest, j, j+1)
	}
	return true
}
