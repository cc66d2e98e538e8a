package wire

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/internal/testing/suite"
)

func mustNew[T any](t testing.TB) *Codec {
	t.Helper()
	c, err := New(reflect.TypeFor[T]())
	require.NoError(t, err)
	return c
}

func encode[T any](t testing.TB, c *Codec, v T) []byte {
	t.Helper()
	b, err := c.Append([]byte("before"), reflect.ValueOf(&v).Elem())
	require.NoError(t, err)
	require.Equal(t, "before", string(b[:6]))
	return b[6:]
}

func decode[T any](r *Reader, b []byte) (v T, err error) {
	err = r.Decode(b, reflect.ValueOf(&v).Elem())
	return v, err
}

func roundTrip[T any](t *testing.T, v T) {
	t.Helper()
	c := mustNew[T](t)
	b := encode(t, c, v)
	src := bytes.Clone(b)
	got, err := decode[T](c.OwnReader(), src)
	require.NoError(t, err)
	clear(src) // nothing of it is kept
	assert.True(t, same(reflect.ValueOf(&v), reflect.ValueOf(&got)), "%#v\ncame back as\n%#v", v, got)

	// Also under a schema that is not the same bytes: what the fast path hides.
	s, serr := parseSchema(c.Schema())
	require.Nil(t, serr)
	r, serr := c.resolve(s)
	require.Nil(t, serr)
	got, err = decode[T](r, b)
	require.NoError(t, err)
	assert.True(t, same(reflect.ValueOf(&v), reflect.ValueOf(&got)), "%#v\ncame back as\n%#v", v, got)

	// What is cut or longer is never taken for the value.
	cuts := 2000
	if suite.Race {
		cuts = 50
	}
	step := 1 + len(b)/cuts
	for n := 0; n < len(b); n += step {
		_, err := decode[T](c.OwnReader(), b[:n])
		require.Error(t, err, "the first %d of %d bytes", n, len(b))
	}
	_, err = decode[T](c.OwnReader(), append(b, 0))
	require.Error(t, err)
}

func TestRoundTripOfEverything(t *testing.T) {
	roundTrip(t, zoo{})
	roundTrip(t, fullZoo())
	roundTrip(t, []zoo{fullZoo(), {}})
	roundTrip(t, ptr(fullZoo()))
	roundTrip[*zoo](t, nil)
	roundTrip[any](t, nil)
	roundTrip[any](t, 5)
	roundTrip[any](t, map[string]any{"a": []any{nil, "b", 1.5}})
	roundTrip(t, "")
	roundTrip(t, strings.Repeat("x", 1000))
	roundTrip(t, struct{}{})
	roundTrip(t, [0]int{})
	roundTrip(t, [3]struct{}{})
	roundTrip(t, map[string]struct{}{})
	roundTrip(t, make([]zoo, 300)) // grows
}

func TestRoundTripOfTypesThatMarshalThemselves(t *testing.T) {
	u, err := url.Parse("https://user:pa%20ss@example.org:8080/a%2Fb?q=1#f")
	require.NoError(t, err)
	float, _, err := big.ParseFloat("1.25", 10, 200, big.ToZero)
	require.NoError(t, err)
	roundTrip(t, others{
		Big: new(big.Int).Lsh(big.NewInt(-3), 100), Float: float, Rat: *big.NewRat(-1, 3),
		Addr: netip.MustParseAddr("fe80::1%eth0"), Port: netip.MustParseAddrPort("1.2.3.4:5"),
		IP: net.IP{1, 2, 3, 4}, URL: u, Net: &net.IPNet{IP: net.IP{10, 0, 0, 0}, Mask: net.CIDRMask(8, 32)},
	})
	roundTrip(t, others{})
}

func TestRoundTripOfRandomValues(t *testing.T) {
	c := mustNew[zoo](t)
	rapid.Check(t, func(t *rapid.T) {
		var v zoo
		fill(t, reflect.ValueOf(&v).Elem(), 0)
		b, err := c.Append(nil, reflect.ValueOf(&v).Elem())
		require.NoError(t, err)
		got, err := decode[zoo](c.OwnReader(), b)
		require.NoError(t, err)
		require.True(t, same(reflect.ValueOf(&v), reflect.ValueOf(&got)), "%#v\ncame back as\n%#v", v, got)
	})
}

func TestTimes(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no time zone database")
	}
	c := mustNew[time.Time](t)
	for name, at := range map[string]time.Time{
		"zero":                   {},
		"now":                    time.Now(),
		"utc":                    time.Now().UTC(),
		"summer":                 time.Date(2024, 7, 1, 0, 0, 0, 0, berlin),
		"winter":                 time.Date(2024, 1, 1, 0, 0, 0, 0, berlin),
		"the hour that is twice": time.Date(2024, 10, 27, 0, 30, 0, 0, time.UTC).In(berlin),
		"its second time":        time.Date(2024, 10, 27, 1, 30, 0, 0, time.UTC).In(berlin),
		"fixed":                  time.Date(2024, 1, 1, 0, 0, 0, 0, time.FixedZone("", 3600)),
		"fixed, a city's name":   time.Date(2024, 1, 1, 0, 0, 0, 0, time.FixedZone("Europe/Berlin", 5)),
		"fixed, called Local":    time.Date(2024, 1, 1, 0, 0, 0, 0, time.FixedZone("Local", 5)),
		"fixed, called UTC":      time.Date(2024, 1, 1, 0, 0, 0, 0, time.FixedZone("UTC", 0)),
		"the end of time":        time.Unix(math.MaxInt64, 999_999_999),
		"the beginning of time":  time.Unix(math.MinInt64, 0).UTC(),
	} {
		got, err := decode[time.Time](c.OwnReader(), encode(t, c, at))
		require.NoError(t, err, name)
		wantZone, wantOffset := at.Zone()
		zone, offset := got.Zone()
		assert.True(t, at.Equal(got), name)
		assert.Equal(t, wantZone, zone, name)
		assert.Equal(t, wantOffset, offset, name)
		assert.Equal(t, at.Location().String(), got.Location().String(), name)
		switch name {
		case "zero", "utc":
			assert.True(t, at.Round(0) == got, name) // == on purpose
		case "now":
			assert.Same(t, time.Local, got.Location())
		case "summer", "winter":
			assert.Equal(t, at.AddDate(0, 6, 0).String(), got.AddDate(0, 6, 0).String(), "the rules of the place")
		}
	}
}

func TestZonesAreBounded(t *testing.T) {
	for i := range 3 * maxZones {
		fixedZone("Z", i)
	}
	assert.LessOrEqual(t, len(zones.m), maxZones)
	assert.Nil(t, location(strings.Repeat("a", maxZoneName+1)))
	assert.Nil(t, location("../../etc/passwd"))
}

type (
	withMutex  struct{ Mu sync.Mutex }
	withHidden struct{ Shown, hidden int }
	withFunc   struct {
		Deep []map[string]*struct{ F func() }
	}
	withIface   struct{ E []error }
	withChan    struct{ C chan int }
	withUnsafe  struct{ P unsafe.Pointer }
	withUintptr struct{ P uintptr }
	withPtrKey  struct{ M map[*int]int }
	withDeepKey struct{ M map[struct{ A any }]int }
	withTwice   struct {
		A int `weir:"x"`
		B int `weir:"x"`
	}
	withOption struct {
		A int `weir:"a,omitempty"`
	}
	withEmbeddedPtr    struct{ *base }
	withEmbeddedTime   struct{ embedsTimeAndHides }
	embedsTimeAndHides struct {
		time.Time
		hidden int
	}
	halfMarshaler struct{ x int }
	recursive     struct {
		Next *recursive
		Bad  chan int
	}
)

func (halfMarshaler) MarshalBinary() ([]byte, error) { return nil, nil }

func TestRefusedTypes(t *testing.T) {
	for _, c := range []struct {
		t            reflect.Type
		path, reason string
	}{
		{reflect.TypeFor[func()](), "", "func"},
		{reflect.TypeFor[chan int](), "", "chan"},
		{reflect.TypeFor[error](), "", "no registered type implements the interface error"},
		{reflect.TypeFor[withMutex](), ".Mu.", "unexported"},
		{reflect.TypeFor[withHidden](), ".hidden", "unexported"},
		{reflect.TypeFor[*[]withHidden](), "[].hidden", "unexported"},
		{reflect.TypeFor[withFunc](), ".Deep[][].F", "func"},
		{reflect.TypeFor[withIface](), ".E[]", "interface error"},
		{reflect.TypeFor[withChan](), ".C", "chan"},
		{reflect.TypeFor[withUnsafe](), ".P", "unsafe"},
		{reflect.TypeFor[withUintptr](), ".P", "address"},
		{reflect.TypeFor[withPtrKey](), ".M[key]", "pointers as map keys"},
		{reflect.TypeFor[withDeepKey](), ".M[key].A", "interfaces inside of map keys"},
		{reflect.TypeFor[withTwice](), ".B", `"x"`},
		{reflect.TypeFor[withOption](), ".A", "not a name"},
		{reflect.TypeFor[withEmbeddedPtr](), ".base", "unexported"},
		{reflect.TypeFor[withEmbeddedTime](), ".hidden", "unexported"},
		{reflect.TypeFor[embedsTimeAndHides](), ".hidden", "embedded field Time"},
		{reflect.TypeFor[halfMarshaler](), ".x", "unexported"},
		{reflect.TypeFor[recursive](), ".Bad", "chan"},
		{reflect.TypeFor[*time.Location](), ".name", "unexported"},
	} {
		_, err := New(c.t)
		require.Error(t, err, c.t)
		require.IsType(t, (*Error)(nil), err, c.t)
		assert.Contains(t, err.(*Error).Path, c.path, c.t)
		assert.Contains(t, err.Error(), c.reason, c.t)
	}
}

// twoWays can be taken apart nowhere, but writes itself; what it holds must not be found usable on the way.
type twoWays struct {
	Inside *insideOfTwoWays
	f      func()
}

type insideOfTwoWays struct{ Back *twoWays }

func (t *twoWays) MarshalText() ([]byte, error) { return []byte("text"), nil }
func (t *twoWays) UnmarshalText([]byte) error   { return nil }

func TestTypesThatAreTriedInTwoWays(t *testing.T) {
	c := mustNew[struct {
		A twoWays
		B insideOfTwoWays
	}](t)
	kinds := map[string]kind{}
	for _, f := range c.root.fields {
		kinds[f.name] = f.node.kind
	}
	assert.Equal(t, map[string]kind{"A": kindText, "B": kindStruct}, kinds)
	assert.Equal(t, kindText, c.root.fields[1].node.fields[0].node.elem.kind)
}

// A type that is found on the way to one that is refused is not taken for good.
type (
	hopeless struct {
		Friend *friendOfHopeless
		F      func()
	}
	friendOfHopeless struct{ Back *hopeless }
	hidesHopeless    struct{ Inside hopeless }
)

func (hidesHopeless) MarshalText() ([]byte, error)  { return nil, nil }
func (*hidesHopeless) UnmarshalText(b []byte) error { return nil }

func TestRefusedTypesAreForgotten(t *testing.T) {
	mustNew[hidesHopeless](t)
	_, err := New(reflect.TypeFor[struct {
		A hidesHopeless
		B friendOfHopeless
	}]())
	require.ErrorContains(t, err, ".B.Back.F: a func cannot be stored")
}

func TestValuesThatCannotBeWritten(t *testing.T) {
	t.Run("a cycle", func(t *testing.T) {
		l := &list{Value: 1}
		l.Next = l
		_, err := mustNew[*list](t).Append(nil, reflect.ValueOf(&l).Elem())
		assert.ErrorContains(t, err, "contains itself")
	})
	t.Run("as deep as possible", func(t *testing.T) {
		var l *list
		for range maxDepth {
			l = &list{Next: l}
		}
		c := mustNew[*list](t)
		_, err := decode[*list](c.OwnReader(), encode(t, c, l))
		require.NoError(t, err, "what is written can be read")
		both := mustNew[struct {
			Key  string
			List *list
		}](t)
		one := mustNew[struct{ Key string }](t)
		r, err := one.Reader(both.Schema())
		require.NoError(t, err)
		got, err := decode[struct{ Key string }](r, encode(t, both, struct {
			Key  string
			List *list
		}{"key", l}))
		require.NoError(t, err, "and skipped")
		require.Equal(t, "key", got.Key)
		l = &list{Next: l}
		_, err = c.Append(nil, reflect.ValueOf(&l).Elem())
		assert.ErrorContains(t, err, "nested deeper")
	})
	t.Run("a type that is not registered", func(t *testing.T) {
		v := []any{1, struct{ X int }{}}
		_, err := mustNew[[]any](t).Append(nil, reflect.ValueOf(&v).Elem())
		assert.ErrorContains(t, err, "struct { X int }")
		assert.ErrorContains(t, err, "registered")
	})
	t.Run("a pointer as a key in an interface", func(t *testing.T) {
		v := map[any]int{&inner{}: 1}
		_, err := mustNew[map[any]int](t).Append(nil, reflect.ValueOf(&v).Elem())
		assert.ErrorContains(t, err, "pointers as map keys")
	})
}

func TestRegister(t *testing.T) {
	type local struct{ A int }
	require.NoError(t, Register(reflect.TypeFor[local](), "some local"))
	require.NoError(t, Register(reflect.TypeFor[local](), "some local"), "again")
	assert.ErrorContains(t, Register(reflect.TypeFor[local](), "other"), "some local")
	assert.ErrorContains(t, Register(reflect.TypeFor[*local](), "some local"), "another type")
	assert.ErrorContains(t, Register(reflect.TypeFor[error](), ""), "is an interface")
	assert.ErrorContains(t, Register(reflect.TypeFor[func()](), ""), "func")
	for want, typ := range map[string]reflect.Type{
		"github.com/weirflow/weir/codec/internal/wire.inner":              reflect.TypeFor[inner](),
		"*github.com/weirflow/weir/codec/internal/wire.inner":             reflect.TypeFor[*inner](),
		"map[string][]github.com/weirflow/weir/codec/internal/wire.inner": reflect.TypeFor[map[string][]inner](),
		"[2]github.com/weirflow/weir/codec/internal/wire.inner":           reflect.TypeFor[[2]inner](),
		"struct { A int }": reflect.TypeFor[struct{ A int }](),
	} {
		assert.Equal(t, want, fullName(typ))
	}
}

// Element sizes that the docs promise to be small.
func TestSize(t *testing.T) {
	type row struct {
		ID    int64
		Name  string
		Value float64
	}
	c := mustNew[row](t)
	assert.Len(t, encode(t, c, row{ID: 1, Name: "abc", Value: 1}), 1+4+8)
	assert.Contains(t, string(c.Schema()), "Value")
	assert.Less(t, len(c.Schema()), 60)
}

func TestSameOfKeysThatDifferInType(t *testing.T) {
	at := time.Unix(1, 0)
	a, b := map[any]int{at: 1, uint64(2): 2}, map[any]int{uint64(2): 2, at: 1}
	for range 20 { // a map's order is random
		require.True(t, same(reflect.ValueOf(a), reflect.ValueOf(b)))
		require.False(t, same(reflect.ValueOf(a), reflect.ValueOf(map[any]int{at: 1, point{}: 2})))
	}
}

type appendHead struct{ N uint16 }

func (h appendHead) AppendBinary(dst []byte) ([]byte, error) {
	return binary.BigEndian.AppendUint16(dst, h.N), nil
}

// packet marshals itself, and has an AppendBinary that writes its embedded field alone.
type packet struct {
	appendHead
	Body []byte
}

func (p *packet) MarshalBinary() ([]byte, error) {
	b, err := p.appendHead.AppendBinary(nil)
	return append(b, p.Body...), err
}

func (p *packet) UnmarshalBinary(b []byte) error {
	p.N, p.Body = binary.BigEndian.Uint16(b), bytes.Clone(b[2:])
	return nil
}

// frame marshals itself with an AppendBinary of its own.
type frame struct{ text string }

func (f frame) MarshalBinary() ([]byte, error)          { return []byte("unused"), nil }
func (f frame) AppendBinary(dst []byte) ([]byte, error) { return append(dst, f.text...), nil }
func (f *frame) UnmarshalBinary(b []byte) error         { f.text = string(b); return nil }

// label does the same as text, with an AppendText of its own.
type label struct{ text string }

func (l label) MarshalText() ([]byte, error)          { return []byte("unused"), nil }
func (l label) AppendText(dst []byte) ([]byte, error) { return append(dst, l.text...), nil }
func (l *label) UnmarshalText(b []byte) error         { l.text = string(b); return nil }

// A method that comes from an embedded field writes that field only.
func TestAppendersOfEmbeddedFields(t *testing.T) {
	p := packet{appendHead{7}, []byte("body")}
	c := mustNew[packet](t)
	got, err := decode[packet](c.OwnReader(), encode(t, c, p))
	require.NoError(t, err)
	require.Equal(t, p, got)
	f := mustNew[frame](t)
	framed, err := decode[frame](f.OwnReader(), encode(t, f, frame{"own"}))
	require.NoError(t, err)
	require.Equal(t, frame{"own"}, framed)
	l := mustNew[label](t)
	own, err := decode[label](l.OwnReader(), encode(t, l, label{"own"}))
	require.NoError(t, err)
	require.Equal(t, label{"own"}, own)
}
