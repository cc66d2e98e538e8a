package codec_test

import (
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/codec/codectest"
	"github.com/weirflow/weir/internal/guard"
)

// flight is a typical element.
type flight struct {
	Number   string
	From, To string
	Takeoff  time.Time
	Seats    int
	Delay    float64
	Tags     []string
	Payload  []byte
}

func someFlight(i int) flight {
	return flight{
		Number: "WF" + string(rune('0'+i%10)), From: "ZRH", To: "LIS", Takeoff: time.Unix(1_700_000_000+int64(i), 0).UTC(),
		Seats: 180, Delay: 12.5, Tags: []string{"late", "full"}, Payload: make([]byte, 40),
	}
}

// refusal returns the error with which a constructor refuses a type.
func refusal[T any](newCodec func() codec.Codec[T]) (err error) {
	defer func() { err, _ = recover().(error) }()
	newCodec()
	return nil
}

func funcCodec() codec.Codec[flight] {
	return codec.Func(
		func(dst []byte, f flight) ([]byte, error) {
			b, err := json.Marshal(f)
			return append(dst, b...), err
		},
		func(src []byte) (f flight, err error) { return f, json.Unmarshal(src, &f) })
}

func codecs(t testing.TB) map[string]codec.Codec[flight] {
	t.Helper()
	return map[string]codec.Codec[flight]{
		"default": codec.Default[flight](),
		"json":    codec.JSON[flight](),
		"gob":     codec.Gob[flight](),
		"func":    funcCodec(),
	}
}

func TestCodecsRoundTrip(t *testing.T) {
	for name, c := range codecs(t) {
		t.Run(name, func(t *testing.T) {
			dst := []byte("before")
			for i := range 20 {
				want := someFlight(i)
				begin := len(dst)
				var err error
				dst, err = c.Append(dst, want)
				require.NoError(t, err)
				src := append([]byte(nil), dst[begin:]...)
				got, err := c.Decode(src)
				require.NoError(t, err)
				assert.Equal(t, want, got)
				for i := range src { // the value must not refer to src
					src[i] = 0xff
				}
				assert.Equal(t, want, got)
			}
			assert.Equal(t, "before", string(dst[:6]))

			// A value does not affect the next one.
			full, err := c.Append(nil, someFlight(1))
			require.NoError(t, err)
			zero, err := c.Append(nil, flight{})
			require.NoError(t, err)
			for range 3 {
				_, err = c.Decode(full)
				require.NoError(t, err)
				got, err := c.Decode(zero)
				require.NoError(t, err)
				assert.Equal(t, flight{}, got)
			}

			_, err = c.Decode(nil)
			require.Error(t, err)
			whole, err := c.Append(nil, someFlight(1))
			require.NoError(t, err)
			_, err = c.Decode(append(whole, 'x'))
			require.Error(t, err, "bytes that are left over")
		})
	}
}

func TestCodecsAreSafeForConcurrentUse(t *testing.T) {
	for name, c := range codecs(t) {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := range 200 {
						b, err := c.Append(nil, someFlight(g*1000+i))
						if !assert.NoError(t, err) {
							return
						}
						got, err := c.Decode(b)
						if !assert.NoError(t, err) || !assert.Equal(t, someFlight(g*1000+i), got) {
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

func isJSON(name string) bool { return name == "json" || name == "default" }

// A codec refuses values stored by another codec.
func TestSchemasTellCodecsApart(t *testing.T) {
	all := codecs(t)
	for stored, from := range all {
		state, err := participant.MarshalState(from, someFlight(3))
		require.NoError(t, err)
		for name, c := range all {
			got, err := participant.UnmarshalState(c, state)
			if name == stored || isJSON(name) && (isJSON(stored) || stored == "func") { // JSON without a schema
				require.NoError(t, err)
				assert.Equal(t, someFlight(3), got)
				continue
			}
			var codecErr *codec.Error
			require.ErrorAs(t, err, &codecErr, "stored with %s, read with %s", stored, name)
			assert.Contains(t, err.Error(), "codec of codec_test.flight: ")
		}
	}
}

// JSON stored by another program has no schema.
func TestWithSchema_JSONWithoutASchema(t *testing.T) {
	for _, schema := range [][]byte{nil, {}} {
		c, err := codec.WithSchema(codec.JSON[flight](), schema)
		require.NoError(t, err)
		got, err := c.Decode([]byte(`{"Number": "WF1", "Seats": 3}`))
		require.NoError(t, err)
		assert.Equal(t, flight{Number: "WF1", Seats: 3}, got)
		_, err = c.Decode([]byte("no JSON"))
		require.ErrorContains(t, err, "invalid character")
	}
	for name, c := range map[string]codec.Codec[flight]{"gob": codec.Gob[flight]()} {
		_, err := codec.WithSchema(c, nil)
		require.Error(t, err, name)
	}
	_, err := codec.WithSchema(codec.JSON[flight](), []byte("gob"))
	require.Error(t, err)
}

// Another program may have written a byte order mark before its JSON. The mark is not
// data.
func TestJSON_ByteOrderMark(t *testing.T) {
	const bom = "\xef\xbb\xbf"
	v, err := codec.JSON[flight]().Decode([]byte(bom + `{"Number":"WF1"}`))
	require.NoError(t, err)
	require.Equal(t, "WF1", v.Number)
	s, err := codec.JSON[string]().Decode([]byte(bom + `"` + bom + `"`))
	require.NoError(t, err)
	require.Equal(t, bom, s, "a mark in a string is data")
	_, err = codec.JSON[flight]().Decode([]byte(bom + bom + `{}`))
	require.Error(t, err)
}

// Default refuses types that JSON would change silently. The error has the path to the
// part (law C2).
func TestDefaultRefuses(t *testing.T) {
	type inner struct{ X int }
	type cache struct{ hits int }
	type row struct {
		ID    int
		Inner []struct{ Cache cache }
	}
	type tree struct {
		Name     string
		Children map[string]*tree
		Left     *int         `json:"left"`
		Skipped  func()       `json:"-"`
		Taken    [2]time.Time `json:",omitempty"`
		Big      *big.Int
		inner
	}
	_ = cache{}.hits
	_ = tree{}.inner
	var codecErr *codec.Error
	require.ErrorAs(t, refusal(codec.Default[row]), &codecErr)
	assert.Equal(t, "codec of codec_test.row: .Inner[].Cache.hits: JSON leaves out the unexported field", codecErr.Error())
	for want, err := range map[string]error{
		".A: JSON does not keep which type an interface holds": refusal(codec.Default[struct{ A any }]),
		": JSON does not keep which type an interface holds":   refusal(codec.Default[error]),
		".F: JSON has no form for func()":                      refusal(codec.Default[struct{ F func() }]),
		"[]: JSON has no form for complex128":                  refusal(codec.Default[[]complex128]),
		".P: in JSON, a pointer to nil is nil itself":          refusal(codec.Default[struct{ P **int }]),
		": in JSON, a pointer to nil is nil":                   refusal(codec.Default[*[]int]),
		"[key]: codec_test.inner is no key":                    refusal(codec.Default[map[inner]int]),
		"[key]: float64 is no key":                             refusal(codec.Default[map[float64]int]),
		".B: another field has the name A, too": refusal(codec.Default[struct {
			A int
			B int `json:"A"`
		}]),
		".inner.X: another field has the name X, too": refusal(codec.Default[struct {
			X int
			inner
		}]),
		".inner: in JSON, an embedded pointer that is nil": refusal(codec.Default[struct{ *inner }]),
		".Time: the embedded type has methods": refusal(codec.Default[struct {
			time.Time
			N int
		}]),
		"[]: MarshalJSON of codec_test.jsonAccount has": refusal(codec.Default[map[string]jsonAccount]),
		": codec_test.written has MarshalJSON and no":   refusal(codec.Default[written]),
	} {
		require.ErrorContains(t, err, want, want)
	}

	c := codec.Default[tree]()
	left := 0
	codectest.Run(t, c, nil, tree{}, tree{
		Name: `\ufffd \\ufffd ` + "\ufffd \\ \x00", Children: map[string]*tree{"a": nil, "b": {Name: "x"}}, Left: &left, Big: big.NewInt(7), inner: inner{3},
		Taken: [2]time.Time{time.Unix(1_700_000_000, 5).UTC()},
	})
	for _, name := range []string{"\xff", `\` + "\xff", "a\xc3"} {
		b, err := c.Append([]byte("x"), tree{Name: name})
		require.ErrorContains(t, err, "a string is not UTF-8", "%q", name)
		require.Equal(t, "x", string(b))
		_, err = c.Append(nil, tree{Children: map[string]*tree{name: nil}})
		require.ErrorContains(t, err, "a string is not UTF-8")
	}
	_, err := codec.Default[float64]().Append(nil, math.NaN())
	require.ErrorContains(t, err, "codec of float64: json: unsupported value: NaN")
	require.ErrorContains(t, refusal(codec.Default[struct{ hidden int }]), ".hidden")
	raw, err := codec.Default[json.RawMessage]().Append(nil, json.RawMessage(`"\ufffd"`))
	require.NoError(t, err, "it is its own")
	require.Equal(t, `"\ufffd"`, string(raw))
}

type (
	chain     struct{ Next *chain }
	readsJSON struct{ N int }
	readsText int
	stringKey string
)

func (*readsJSON) UnmarshalJSON([]byte) error     { return nil }
func (*readsText) UnmarshalText([]byte) error     { return nil }
func (k stringKey) MarshalText() ([]byte, error)  { return []byte("x" + k), nil }
func (k *stringKey) UnmarshalText(b []byte) error { *k = stringKey(b[1:]); return nil }

// Default refuses types that encoding/json writes and reads in different ways, because
// their values would change or be unreadable (laws C2 and C3).
func TestDefaultRefusesWhatIsReadInAnotherWay(t *testing.T) {
	for want, err := range map[string]error{
		".R: codec_test.readsJSON has UnmarshalJSON and no MarshalJSON":    refusal(codec.Default[struct{ R *readsJSON }]),
		"[]: codec_test.readsText has UnmarshalText and no MarshalText":    refusal(codec.Default[[]readsText]),
		"[key]: encoding/json calls UnmarshalText of codec_test.stringKey": refusal(codec.Default[map[stringKey]int]),
		"[key]: encoding/json calls UnmarshalText of codec_test.readsText": refusal(codec.Default[map[readsText]int]),
		".S: with the option string": refusal(codec.Default[struct {
			S *string `json:",omitempty,string"`
		}]),
		`.A: encoding/json does not take the name "a'b"`: refusal(codec.Default[struct {
			A int `json:"a'b"`
			B int `json:"A"`
		}]),
	} {
		require.ErrorContains(t, err, want, want)
	}
	require.NoError(t, refusal(codec.JSON[map[stringKey]readsJSON]))

	c := codec.Default[*chain]()
	long := func(n int) (l *chain) {
		for range n {
			l = &chain{l}
		}
		return l
	}
	b, err := c.Append(nil, long(10_000))
	require.NoError(t, err)
	got, err := c.Decode(b)
	require.NoError(t, err)
	require.Equal(t, long(10_000), got)
	_, err = c.Append(nil, long(10_001))
	require.ErrorContains(t, err, "nested more deeply than JSON can be read")
	circle := &chain{}
	circle.Next = circle
	_, err = c.Append(nil, circle)
	require.ErrorContains(t, err, "cycle")
}

// These are the documented losses of Default.
func TestDefault_DocumentedLosses(t *testing.T) {
	type row struct {
		Number json.Number
		Raw    json.RawMessage
		Empty  []int `json:",omitempty"`
		At     time.Time
	}
	at := time.Date(1900, 1, 1, 0, 0, 0, 0, time.FixedZone("Amsterdam", 19*60+32))
	c := codec.Default[row]()
	b, err := c.Append(nil, row{Empty: []int{}, At: at})
	require.NoError(t, err)
	got, err := c.Decode(b)
	require.NoError(t, err)
	require.Equal(t, at.Add(32*time.Second).UTC(), got.At.UTC(), "the seconds of the offset")
	require.Equal(t, row{Number: "0", Raw: json.RawMessage("null"), At: got.At}, got)
}

// written has a form in JSON that cannot be read.
type written struct{}

func (written) MarshalJSON() ([]byte, error) { return []byte("1"), nil }

type panics struct{ x int }

func (panics) MarshalJSON() ([]byte, error)  { panic("cannot write") }
func (*panics) UnmarshalJSON(b []byte) error { panic(errCannotRead) }

var errCannotRead = errors.New("cannot read")

// gobPanics has a method called by encoding/gob.
type gobPanics struct{ X int }

func (gobPanics) GobEncode() ([]byte, error) { return nil, nil }
func (*gobPanics) GobDecode(b []byte) error  { panic(errCannotRead) }

// A6: a panic in a method called by encoding/gob is an error.
func TestPanicsOfUserCodeInGob(t *testing.T) {
	c := codec.Gob[gobPanics]()
	b, err := c.Append(nil, gobPanics{})
	require.NoError(t, err)
	_, err = c.Decode(b)
	var p *guard.PanicError
	require.ErrorAs(t, err, &p)
	require.ErrorIs(t, err, errCannotRead)
}

func TestPanicsOfUserCode(t *testing.T) {
	c := codec.Default[panics]()
	_, err := c.Append(nil, panics{})
	var p *guard.PanicError
	require.ErrorAs(t, err, &p)
	assert.Equal(t, "cannot write", p.Value)
	assert.Contains(t, string(p.Stack), "MarshalJSON")
	assert.Regexp(t, `panic in user code: cannot write \(at codec_test\.go:\d+ codec_test\.panics\.MarshalJSON\)`, err)
	assert.Contains(t, fmt.Sprintf("%+v", p), p.Error()+"\ngoroutine ")
	_, err = c.Decode([]byte("{}"))
	require.ErrorAs(t, err, &p)
	require.ErrorIs(t, err, errCannotRead)

	assert.PanicsWithValue(t, "codec: Func: nil append function", func() { codec.Func[int](nil, nil) })
	assert.PanicsWithValue(t, "codec: Func: nil decode function", func() {
		codec.Func(func(b []byte, _ int) ([]byte, error) { return b, nil }, nil)
	})
}

// Values stored by one version of a program are read by the next version.
func TestDefaultCodecAcrossVersions(t *testing.T) {
	type v1 struct {
		ID   int32
		Gone []string
		Name string
	}
	type v2 struct {
		Name  string
		Added *int
		ID    int64
	}
	type v3 struct{ ID string }
	state, err := participant.MarshalState(codec.Default[v1](), v1{7, []string{"x"}, "n"})
	require.NoError(t, err)
	got, err := participant.UnmarshalState(codec.Default[v2](), state)
	require.NoError(t, err)
	assert.Equal(t, v2{Name: "n", ID: 7}, got)
	_, err = participant.UnmarshalState(codec.Default[v3](), state)
	assert.EqualError(t, err, "codec of codec_test.v3: json: cannot unmarshal number into Go struct field v3.ID of type string")
}

// The documented losses of the other codecs.
func TestGobAndJSON_DocumentedLosses(t *testing.T) {
	type doc struct {
		Empty  []int
		Nil    []int
		Zero   *int
		NaN    float64
		Any    any
		Text   string
		hidden int
	}
	zero := 0
	v := doc{Empty: []int{}, Zero: &zero, Text: "a\xff", Any: 5, hidden: 1}
	b, err := codec.Gob[doc]().Append(nil, v)
	require.NoError(t, err)
	got, err := codec.Gob[doc]().Decode(b)
	require.NoError(t, err)
	assert.Nil(t, got.Empty)
	assert.Nil(t, got.Zero)
	assert.Zero(t, got.hidden)
	require.Error(t, gob.NewEncoder(nopWriter{}).Encode([]*int{nil}))

	b, err = codec.JSON[doc]().Append(nil, v)
	require.NoError(t, err)
	got, err = codec.JSON[doc]().Decode(b)
	require.NoError(t, err)
	assert.Equal(t, "a\ufffd", got.Text)
	assert.Equal(t, 5.0, got.Any)
	_, err = codec.JSON[doc]().Append(nil, doc{NaN: math.NaN()})
	require.Error(t, err)

	err = refusal(codec.Default[doc])
	require.ErrorContains(t, err, ".Any")
}

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }

func TestGobAndJSONOfInterfaces(t *testing.T) {
	for name, c := range map[string]codec.Codec[any]{"gob": codec.Gob[any](), "json": codec.JSON[any]()} {
		b, err := c.Append([]byte("x"), "text <&>")
		require.NoError(t, err, name)
		got, err := c.Decode(b[1:])
		require.NoError(t, err, name)
		assert.Equal(t, "text <&>", got, name)
	}
}

// For some types encoding/gob panics on it.
func TestGobOfANilPointerInASlice(t *testing.T) {
	type point struct{ X int }
	type points struct {
		One *int
		All []*point
	}
	b, err := codec.Gob[points]().Append([]byte("x"), points{All: []*point{nil}})
	require.ErrorContains(t, err, "nil")
	require.Equal(t, "x", string(b))
}

func fuzzCodec(f *testing.F, c codec.Codec[flight]) {
	f.Helper()
	for i := range 3 {
		b, err := c.Append(nil, someFlight(i))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := c.Decode(b)
		if err == nil {
			_, err = c.Append(nil, v)
			require.NoError(t, err)
		}
	})
}

func FuzzDefaultCodec(f *testing.F) { fuzzCodec(f, codec.Default[flight]()) }
func FuzzJSONCodec(f *testing.F)    { fuzzCodec(f, codec.JSON[flight]()) }
func FuzzGobCodec(f *testing.F)     { fuzzCodec(f, codec.Gob[flight]()) }
