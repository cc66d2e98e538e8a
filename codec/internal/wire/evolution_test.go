package wire

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two versions of a program: v1 wrote, v2 reads.

type v1Row struct {
	ID      int32
	Name    string
	Gone    map[string][]*v1Part
	Temp    float32
	Parts   []v1Part
	When    time.Time
	GoneAny []any
	Tail    string
}

type v1Part struct {
	Weight int8
	Gone   [3]complex64
	Color  string
}

type v2Row struct {
	Tail  string // moved
	Added []string
	Temp  float64 // wider
	Parts []v2Part
	Title string `weir:"Name"` // renamed
	ID    int64  // wider
	When  time.Time
}

type v2Part struct {
	Color  string
	Weight int
	Added  *int
}

func reread[From, To any](t *testing.T, v From) (To, error) {
	t.Helper()
	from, to := mustNew[From](t), mustNew[To](t)
	r, err := to.Reader(from.Schema())
	if err != nil {
		var zero To
		return zero, err
	}
	return decode[To](r, encode(t, from, v))
}

func TestFieldsAreMatchedByName(t *testing.T) {
	at := time.Unix(5, 6).UTC()
	old := v1Row{
		ID: -7, Name: "n", Gone: map[string][]*v1Part{"k": {nil, {Gone: [3]complex64{1, 2, 3}}}}, Temp: 1.5,
		Parts: []v1Part{{1, [3]complex64{}, "red"}, {-2, [3]complex64{1}, "blue"}}, When: at,
		GoneAny: []any{1, "x", nil, at, []byte{1}, map[string]any{"a": 1.5}, point{1, 2}, &inner{1, 2}, true, uint8(3), float32(1)},
		Tail:    "the end",
	}
	got, err := reread[v1Row, v2Row](t, old)
	require.NoError(t, err)
	assert.Equal(t, v2Row{
		ID: -7, Title: "n", Temp: 1.5, Parts: []v2Part{{"red", 1, nil}, {"blue", -2, nil}}, When: at, Tail: "the end",
	}, got)

	// And back: what v2 has and v1 had not is skipped.
	back, err := reread[v2Row, v1Row](t, v2Row{ID: 3, Title: "t", Tail: "tail", Parts: []v2Part{{"green", 100, ptr(1)}}})
	require.Error(t, err, "a float64 does not become a float32")
	assert.Zero(t, back)
}

func TestStructsWithAndWithoutFields(t *testing.T) {
	type with struct{ A, B string }
	got, err := reread[[]struct{}, []with](t, make([]struct{}, 2))
	require.NoError(t, err)
	assert.Equal(t, make([]with, 2), got)
	none, err := reread[[]with, []struct{}](t, []with{{"a", "b"}, {}})
	require.NoError(t, err)
	assert.Len(t, none, 2)
}

func TestNumbersThatDoNotFit(t *testing.T) {
	type wide struct{ N int64 }
	type narrow struct{ N int8 }
	got, err := reread[wide, narrow](t, wide{-128})
	require.NoError(t, err)
	assert.Equal(t, narrow{-128}, got)
	_, err = reread[wide, narrow](t, wide{128})
	assert.ErrorContains(t, err, ".N: 128 does not fit into int8")
	_, err = reread[uint64, uint32](t, math.MaxUint64)
	assert.ErrorContains(t, err, "does not fit")
}

// Whatever is not known to be the same is refused before a value is read.
func TestChangesThatAreRefused(t *testing.T) {
	type was struct{ F []map[string]int }
	for name, try := range map[string]func() error{
		"int to uint":      func() error { _, err := reread[struct{ F int }, struct{ F uint }](t, struct{ F int }{}); return err },
		"int to string":    func() error { _, err := reread[struct{ F int }, struct{ F string }](t, struct{ F int }{}); return err },
		"value to pointer": func() error { _, err := reread[struct{ F int }, struct{ F *int }](t, struct{ F int }{}); return err },
		"string to bytes": func() error {
			_, err := reread[struct{ F string }, struct{ F []byte }](t, struct{ F string }{})
			return err
		},
		"length of an array": func() error {
			_, err := reread[struct{ F [2]int }, struct{ F [3]int }](t, struct{ F [2]int }{})
			return err
		},
		"length of bytes": func() error {
			_, err := reread[struct{ F [2]byte }, struct{ F [3]byte }](t, struct{ F [2]byte }{})
			return err
		},
		"deep inside": func() error { _, err := reread[was, struct{ F []map[string]string }](t, was{}); return err },
		"key":         func() error { _, err := reread[was, struct{ F []map[int]int }](t, was{}); return err },
		"struct to marshaler": func() error {
			_, err := reread[struct{ F inner }, struct{ F point }](t, struct{ F inner }{})
			return err
		},
		"time to int": func() error {
			_, err := reread[struct{ F time.Time }, struct{ F int }](t, struct{ F time.Time }{})
			return err
		},
		"interface to its type": func() error { _, err := reread[struct{ F any }, struct{ F int }](t, struct{ F any }{}); return err },
	} {
		err := try()
		require.IsType(t, (*Error)(nil), err, name)
		assert.Contains(t, err.Error(), ".F", name)
		assert.Contains(t, err.Error(), "it was stored as", name)
	}
}

func TestInterfacesAcrossVersions(t *testing.T) {
	type old struct{ A int }
	type other struct{ A string }
	require.NoError(t, Register(reflect.TypeFor[old](), "test.Thing"))
	c := mustNew[[]any](t)
	b, none := encode(t, c, []any{1, old{2}}), encode(t, c, []any{1})
	schema := c.Schema()

	rename := func(f func()) { // as another program would have registered
		registry.Lock()
		byName, byType := registry.byName["test.Thing"], registry.byType[reflect.TypeFor[old]()]
		delete(registry.byName, "test.Thing")
		delete(registry.byType, reflect.TypeFor[old]())
		registry.Unlock()
		f()
		registry.Lock()
		delete(registry.byType, registry.byName["test.Thing"])
		registry.byName["test.Thing"], registry.byType[reflect.TypeFor[old]()] = byName, byType
		registry.Unlock()
	}

	rename(func() {
		r, err := mustNew[[]any](t).Reader(schema)
		require.NoError(t, err, "a type that is not registered any more matters only where there is a value of it")
		_, err = decode[[]any](r, none)
		require.NoError(t, err)
		_, err = decode[[]any](r, b)
		assert.ErrorContains(t, err, `no type is registered as "test.Thing"`)
	})
	rename(func() {
		require.NoError(t, Register(reflect.TypeFor[other](), "test.Thing"))
		r, err := mustNew[[]any](t).Reader(schema)
		require.NoError(t, err)
		_, err = decode[[]any](r, none)
		require.NoError(t, err)
		_, err = decode[[]any](r, b)
		assert.ErrorContains(t, err, ".A: it was stored as int, and is string now")
	})
	rename(func() {
		type more struct{ Extra, A int }
		require.NoError(t, Register(reflect.TypeFor[more](), "test.Thing"))
		r, err := mustNew[[]any](t).Reader(schema)
		require.NoError(t, err)
		got, err := decode[[]any](r, b)
		require.NoError(t, err)
		assert.Equal(t, []any{1, more{0, 2}}, got)
	})

	// More registrations move the numbers of types, not their names.
	type aaa struct{}
	require.NoError(t, Register(reflect.TypeFor[aaa](), "AAA"))
	t.Cleanup(func() {
		registry.Lock()
		defer registry.Unlock()
		delete(registry.byName, "AAA")
		delete(registry.byType, reflect.TypeFor[aaa]())
	})
	c = mustNew[[]any](t)
	require.NotEqual(t, schema, c.Schema())
	r, err := c.Reader(schema)
	require.NoError(t, err)
	got, err := decode[[]any](r, b)
	require.NoError(t, err)
	assert.Equal(t, []any{1, old{2}}, got)
}

func TestInterfaceThatTheTypeDoesNotImplementAnyMore(t *testing.T) {
	type loud interface{ MarshalBinary() ([]byte, error) }
	from := mustNew[struct{ F any }](t)
	r, err := mustNew[struct{ F loud }](t).Reader(from.Schema())
	require.NoError(t, err)
	got, err := decode[struct{ F loud }](r, encode(t, from, struct{ F any }{point{1, 2}}))
	require.NoError(t, err)
	assert.Equal(t, point{1, 2}, got.F)
	_, err = decode[struct{ F loud }](r, encode(t, from, struct{ F any }{1}))
	assert.ErrorContains(t, err, "int")
}
