package wire

import (
	"encoding/binary"
	"reflect"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzDecode reads hostile bytes; what can be read can be written and read again, and is the same.
func FuzzDecode(f *testing.F) {
	c := mustNew[zoo](f)
	f.Add(encode(f, c, zoo{}))
	f.Add(encode(f, c, fullZoo()))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decode[zoo](c.OwnReader(), b)
		if err != nil {
			require.IsType(t, (*Error)(nil), err)
			return
		}
		b2, err := c.Append(nil, reflect.ValueOf(&v).Elem())
		require.NoError(t, err)
		again, err := decode[zoo](c.OwnReader(), b2)
		require.NoError(t, err)
		require.True(t, same(reflect.ValueOf(&v), reflect.ValueOf(&again)))
	})
}

// FuzzAny reads hostile bytes as values of any type.
func FuzzAny(f *testing.F) {
	c := mustNew[any](f)
	for _, v := range []any{nil, 1, "s", []any{1, map[string]any{}}, point{}, &list{1, &list{}}, fullZoo().Any} {
		f.Add(encode(f, c, v))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decode[any](c.OwnReader(), b)
		if err == nil {
			_, err := c.Append(nil, reflect.ValueOf(&v).Elem())
			require.NoError(t, err)
		}
	})
}

// FuzzSchema reads values under hostile schemas: fields that match are read, others are skipped.
func FuzzSchema(f *testing.F) {
	c := mustNew[v2Row](f)
	f.Add(c.Schema(), encode(f, c, v2Row{Tail: "x", Parts: []v2Part{{}}}))
	old := mustNew[v1Row](f)
	f.Add(old.Schema(), encode(f, old, v1Row{Gone: map[string][]*v1Part{"k": {nil, {}}}, GoneAny: []any{1, "x", nil}}))
	full := mustNew[zoo](f)
	f.Add(full.Schema(), encode(f, full, fullZoo()))
	f.Fuzz(func(t *testing.T, schema, b []byte) {
		r, err := c.Reader(schema)
		if err != nil {
			require.IsType(t, (*Error)(nil), err)
			return
		}
		_, _ = decode[v2Row](r, b)
	})
}

// A schema whose types contain themselves does not make a reader loop.
func TestHostileSchemas(t *testing.T) {
	c := mustNew[v2Row](t)
	str := func(s string) []byte { return appendString(nil, s) }
	join := func(parts ...[]byte) (out []byte) {
		for _, p := range parts {
			out = append(out, p...)
		}
		return out
	}
	field := func(types ...[]byte) []byte { // a v2Row with a field that is not known, of the first type
		row := join([]byte{byte(kindStruct)}, str("v2Row"), []byte{1}, str("Unknown"), []byte{1})
		return join([]byte{schemaVersion, byte(1 + len(types))}, row, join(types...), []byte{0, 0})
	}
	ones := make([]byte, 1<<16)
	for i := range ones {
		ones[i] = 1
	}
	for name, schema := range map[string][]byte{
		"struct in itself":    field(join([]byte{byte(kindStruct)}, str("S"), []byte{1}, str("F"), []byte{1})),
		"twice in itself":     field(join([]byte{byte(kindStruct)}, str("S"), []byte{2}, str("F"), []byte{1}, str("G"), []byte{1})),
		"pointer to itself":   field([]byte{byte(kindPointer), 1}),
		"slice of itself":     field([]byte{byte(kindSlice), 1}),
		"array of itself":     field([]byte{byte(kindArray), 2, 1}),
		"array of 2^62 bools": field(join([]byte{byte(kindArray)}, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40}, []byte{2}), []byte{byte(kindBool)}),
		"array of arrays":     field([]byte{byte(kindArray), 0x7f, 2}, []byte{byte(kindArray), 0, 1}),
		"map of itself":       field([]byte{byte(kindMap), 1, 1}),
	} {
		r, err := c.Reader(schema)
		if strconv.IntSize == 32 && name == "array of 2^62 bools" { // no such array on this machine
			assert.Error(t, err)
			continue
		}
		require.NoError(t, err, name)
		_, err = decode[v2Row](r, ones)
		assert.Error(t, err, name)
	}

	// To match one name again and again would cost as much each time.
	twice := join([]byte{schemaVersion, 1, byte(kindBool), 0, 2}, str("int"), []byte{0}, str("int"), []byte{0})
	_, twiceErr := c.Reader(twice)
	require.ErrorContains(t, twiceErr, `the type "int" twice`)

	// An array without a byte per element would be a loop without an end.
	_, err := c.Reader(field(join([]byte{byte(kindArray)}, []byte{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40}, []byte{2}), []byte{byte(kindByteArray), 0}))
	assert.Error(t, err)
}

// What an interface can hold is found out once, not for every node of a schema.
func TestHostileInterfaces(t *testing.T) {
	type linked struct {
		Next *linked
		V    any
	}
	c := mustNew[linked](t)
	const links, entries = 200, 20_000
	b := binary.AppendUvarint([]byte{schemaVersion}, 3*links)
	for i := range links { // a struct, the pointer to the next one, and an interface
		b = appendString(append(b, byte(kindStruct)), "")
		b = append(b, 2)
		b = binary.AppendUvarint(appendString(b, "Next"), uint64(3*i+1))
		b = binary.AppendUvarint(appendString(b, "V"), uint64(3*i+2))
		b = binary.AppendUvarint(append(b, byte(kindPointer)), uint64(3*((i+1)%links)))
		b = appendString(append(b, byte(kindInterface)), "")
	}
	b = binary.AppendUvarint(append(b, 0), entries)
	for i := range entries {
		b = append(appendString(b, strconv.Itoa(i)), 0)
	}
	r, err := c.Reader(b)
	require.NoError(t, err)
	fits := map[*bool]bool{}
	for link := r.root; !fits[&link.fields[1].r.fits[0]]; link = link.fields[0].r.elem {
		fits[&link.fields[1].r.fits[0]] = true
	}
	assert.Len(t, fits, 1)
}

// A slice in an interface is no key, and a map that is told so does not panic. A pointer would be another key each time:
// what could not be written cannot be read.
func TestHostileKeys(t *testing.T) {
	c := mustNew[map[any]string](t)
	for reason, v := range map[string]any{"a []int is no key": []int{1}, "pointers as map keys": &inner{}} {
		key := encode(t, mustNew[any](t), v) // the tables are the same
		_, err := decode[map[any]string](c.OwnReader(), append(append([]byte{2}, key...), 0))
		require.ErrorContains(t, err, reason)
	}
}

// Lengths that are lies cost little.
func TestHostileLengths(t *testing.T) {
	type big struct {
		A [1 << 16]int64
	}
	huge := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}
	long := append([]byte{0x80, 0x80, 0x40}, make([]byte, 1<<20)...) // a length of 2^20, and as many bytes
	for name, try := range map[string]func(b []byte) error{
		"[]struct{}": func(b []byte) error { _, err := decode[[]struct{}](mustNew[[]struct{}](t).OwnReader(), b); return err },
		"[]byte":     func(b []byte) error { _, err := decode[[]byte](mustNew[[]byte](t).OwnReader(), b); return err },
		"string":     func(b []byte) error { _, err := decode[string](mustNew[string](t).OwnReader(), b); return err },
		"[]big":      func(b []byte) error { _, err := decode[[]big](mustNew[[]big](t).OwnReader(), b); return err },
		"[]*big":     func(b []byte) error { _, err := decode[[]*big](mustNew[[]*big](t).OwnReader(), b); return err },
		"map[string]big": func(b []byte) error {
			_, err := decode[map[string]big](mustNew[map[string]big](t).OwnReader(), b)
			return err
		},
		"[]any": func(b []byte) error { _, err := decode[[]any](mustNew[[]any](t).OwnReader(), b); return err },
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		require.Error(t, try(huge), name)
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20), name)
		if name != "[]struct{}" && name != "[]byte" && name != "[]*big" && name != "[]any" { // long is right for these
			_ = try(long)
		}
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20), name)
	}
}
