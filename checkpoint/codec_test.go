package checkpoint_test

import (
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/checkpoint"
)

// flight is an element as pipelines have them.
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

func mustDefault[T any](t testing.TB) checkpoint.Codec[T] {
	t.Helper()
	c, err := checkpoint.DefaultCodec[T]()
	require.NoError(t, err)
	return c
}

func funcCodec() checkpoint.Codec[flight] {
	return checkpoint.CodecFunc(
		func(dst []byte, f flight) ([]byte, error) {
			b, err := json.Marshal(f)
			return append(dst, b...), err
		},
		func(src []byte) (f flight, err error) { return f, json.Unmarshal(src, &f) })
}

func codecs(t testing.TB) map[string]checkpoint.Codec[flight] {
	t.Helper()
	return map[string]checkpoint.Codec[flight]{
		"default": mustDefault[flight](t),
		"json":    checkpoint.JSON[flight](),
		"gob":     checkpoint.Gob[flight](),
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
				for i := range src { // nothing of src is kept
					src[i] = 0xff
				}
				assert.Equal(t, want, got)
			}
			assert.Equal(t, "before", string(dst[:6]))

			// Nothing is left over from one value in the next.
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

// What one codec has stored, another does not take for its own.
func TestSchemasTellCodecsApart(t *testing.T) {
	all := codecs(t)
	for stored, from := range all {
		state, err := checkpoint.MarshalState(from, someFlight(3))
		require.NoError(t, err)
		for name, c := range all {
			got, err := checkpoint.UnmarshalState(c, state)
			if name == stored {
				require.NoError(t, err)
				assert.Equal(t, someFlight(3), got)
				continue
			}
			var codecErr *checkpoint.CodecError
			require.ErrorAs(t, err, &codecErr, "stored with %s, read with %s", stored, name)
			assert.Contains(t, err.Error(), "checkpoint: codec of checkpoint_test.flight: ")
		}
	}
}

func TestDefaultCodecErrors(t *testing.T) {
	type cache struct{ hits int }
	type row struct {
		ID    int
		Inner []struct{ Cache cache }
	}
	_, err := checkpoint.DefaultCodec[row]()
	var codecErr *checkpoint.CodecError
	require.ErrorAs(t, err, &codecErr)
	assert.Equal(t, "checkpoint: codec of checkpoint_test.row: .Inner[].Cache.hits: the type cannot be stored: "+
		"the field is unexported, and checkpoint_test.cache has no marshaling methods", err.Error())
	assert.Equal(t, ".Inner[].Cache.hits", codecErr.Path)
	assert.Equal(t, "checkpoint_test.row", codecErr.Type.String())

	_, err = mustDefault[any](t).Append(nil, row{})
	assert.EqualError(t, err, "checkpoint: codec of interface {}: a value of type checkpoint_test.row is in an interface: "+
		"that type was not registered before the codec was made")

	_, err = mustDefault[flight](t).Decode([]byte{1, 2, 3})
	assert.EqualError(t, err, "checkpoint: codec of checkpoint_test.flight: .From: it should go on for 3 bytes (at byte 3 of 3)")

	assert.PanicsWithError(t, "checkpoint: codec of error: the type cannot be registered: error is an interface: register the types that it will hold",
		func() { checkpoint.Register[error]() })
}

type panics struct{ x int }

func (panics) MarshalBinary() ([]byte, error)  { panic("cannot write") }
func (*panics) UnmarshalBinary(b []byte) error { panic(errCannotRead) }

var errCannotRead = errors.New("cannot read")

func TestPanicsOfUserCode(t *testing.T) {
	c := mustDefault[panics](t)
	_, err := c.Append(nil, panics{})
	var p *checkpoint.PanicError
	require.ErrorAs(t, err, &p)
	assert.Equal(t, "cannot write", p.Value)
	assert.Contains(t, string(p.Stack), "MarshalBinary")
	assert.Regexp(t, `panic in user code: cannot write \(at codec_test\.go:\d+ checkpoint_test\.panics\.MarshalBinary\)`, err)
	assert.Contains(t, fmt.Sprintf("%+v", p), p.Error()+"\ngoroutine ")
	_, err = c.Decode([]byte{0})
	require.ErrorAs(t, err, &p)
	require.ErrorIs(t, err, errCannotRead)

	bad := checkpoint.CodecFunc(func([]byte, int) ([]byte, error) { panic("append") }, func([]byte) (int, error) { panic("decode") })
	w := checkpoint.NewRecordWriter(nil)
	require.ErrorAs(t, checkpoint.AppendRecord(w, checkpoint.Record{}, bad, 1), &p)
	_, err = checkpoint.DecodeRecord(bad, checkpoint.Record{})
	require.ErrorAs(t, err, &p)
	assert.Zero(t, w.Len())
	assert.Panics(t, func() { checkpoint.CodecFunc[int](nil, nil) })
}

// The versions of a program: what is stored with one is read with the next.
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
	state, err := checkpoint.MarshalState(mustDefault[v1](t), v1{7, []string{"x"}, "n"})
	require.NoError(t, err)
	got, err := checkpoint.UnmarshalState(mustDefault[v2](t), state)
	require.NoError(t, err)
	assert.Equal(t, v2{Name: "n", ID: 7}, got)
	_, err = checkpoint.UnmarshalState(mustDefault[v3](t), state)
	assert.EqualError(t, err, "checkpoint: codec of checkpoint_test.v3: .ID: the stored values do not fit: it was stored as int, and is string now")
}

// What the docs say of the others, so that it stays true.
func TestWhyNotGobOrJSON(t *testing.T) {
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
	b, err := checkpoint.Gob[doc]().Append(nil, v)
	require.NoError(t, err)
	got, err := checkpoint.Gob[doc]().Decode(b)
	require.NoError(t, err)
	assert.Nil(t, got.Empty)
	assert.Nil(t, got.Zero)
	assert.Zero(t, got.hidden)
	require.Error(t, gob.NewEncoder(nopWriter{}).Encode([]*int{nil}))

	b, err = checkpoint.JSON[doc]().Append(nil, v)
	require.NoError(t, err)
	got, err = checkpoint.JSON[doc]().Decode(b)
	require.NoError(t, err)
	assert.Equal(t, "a\ufffd", got.Text)
	assert.Equal(t, 5.0, got.Any)
	_, err = checkpoint.JSON[doc]().Append(nil, doc{NaN: math.NaN()})
	require.Error(t, err)

	_, err = checkpoint.DefaultCodec[doc]()
	require.ErrorContains(t, err, ".hidden")
}

type nopWriter struct{}

func (nopWriter) Write(p []byte) (int, error) { return len(p), nil }

func TestGobAndJSONOfInterfaces(t *testing.T) {
	for name, c := range map[string]checkpoint.Codec[any]{"gob": checkpoint.Gob[any](), "json": checkpoint.JSON[any](), "default": mustDefault[any](t)} {
		b, err := c.Append([]byte("x"), "text <&>")
		require.NoError(t, err, name)
		got, err := c.Decode(b[1:])
		require.NoError(t, err, name)
		assert.Equal(t, "text <&>", got, name)
	}
}

// encoding/gob panics on it, in some types.
func TestGobOfANilPointerInASlice(t *testing.T) {
	type point struct{ X int }
	type points struct {
		One *int
		All []*point
	}
	b, err := checkpoint.Gob[points]().Append([]byte("x"), points{All: []*point{nil}})
	require.ErrorContains(t, err, "nil")
	require.Equal(t, "x", string(b))
}

func TestRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 20).Draw(t, "records")
		schema := rapid.SliceOf(rapid.Byte()).Draw(t, "schema")
		w := checkpoint.NewRecordWriter(schema)
		var want []checkpoint.Record
		for range n {
			r := checkpoint.Record{
				Kind:     rapid.Byte().Draw(t, "kind"),
				Attempts: rapid.IntMin(0).Draw(t, "attempts"),
				Spent:    time.Duration(rapid.Int64().Draw(t, "spent")),
				Value:    rapid.SliceOf(rapid.Byte()).Draw(t, "value"),
			}
			if rapid.Bool().Draw(t, "started") {
				r.First = time.Unix(rapid.Int64().Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")).UTC()
			}
			require.NoError(t, w.Append(r))
			want = append(want, r)
		}
		require.Equal(t, n, w.Len())
		r, err := checkpoint.ReadRecords(w.State())
		require.NoError(t, err)
		require.Equal(t, append([]byte{}, schema...), r.Schema())
		require.Equal(t, want, readAll(t, r))
	})
}

func readAll(t require.TestingT, r *checkpoint.RecordReader) (all []checkpoint.Record) {
	for {
		rec, err := r.Next()
		if err != nil {
			require.EqualError(t, err, "EOF")
			_, again := r.Next()
			require.Equal(t, err, again)
			return all
		}
		all = append(all, rec)
	}
}

// Large states come in pieces, and the pieces do not grow by copying.
func TestRecordsInPieces(t *testing.T) {
	w := checkpoint.NewRecordWriter(nil)
	value := make([]byte, 1000)
	const n = 10_000
	for i := range n {
		binary.LittleEndian.PutUint32(value, uint32(i))
		require.NoError(t, w.Append(checkpoint.Record{Kind: 1, Attempts: i, Value: value}))
	}
	state := w.State()
	assert.Greater(t, len(state), 9)
	for _, piece := range state[1 : len(state)-1] {
		assert.Equal(t, 1<<20, cap(piece))
	}
	r, err := checkpoint.ReadRecords(state)
	require.NoError(t, err)
	all := readAll(t, r)
	require.Len(t, all, n)
	for i, rec := range all {
		require.EqualValues(t, i, binary.LittleEndian.Uint32(rec.Value))
		require.Equal(t, i, rec.Attempts)
	}
}

func TestRecordsNoticeEveryCut(t *testing.T) {
	w := checkpoint.NewRecordWriter([]byte("schema"))
	require.NoError(t, w.Append(checkpoint.Record{Kind: 1, Attempts: 2, First: time.Unix(5, 6), Spent: 7, Value: []byte("value")}))
	require.NoError(t, w.Append(checkpoint.Record{}))
	require.Error(t, w.Append(checkpoint.Record{Attempts: -1}))
	whole := w.State().Bytes()
	for n := range whole {
		_, err := drain(checkpoint.State{whole[:n]})
		require.ErrorIs(t, err, checkpoint.ErrRecords, "cut after %d", n)
	}
	n, err := drain(checkpoint.State{whole})
	require.NoError(t, err)
	assert.Equal(t, 2, n)
	first := 8 + 4 + int(binary.LittleEndian.Uint32(whole[8:]))
	_, err = drain(checkpoint.State{whole[:8], whole[first:]})
	require.ErrorIs(t, err, checkpoint.ErrRecords, "a record is missing")
	_, err = drain(checkpoint.State{whole, {0}})
	require.ErrorIs(t, err, checkpoint.ErrRecords)

	_, err = checkpoint.UnmarshalState(checkpoint.JSON[int](), checkpoint.State{whole})
	require.Error(t, err)
	_, err = checkpoint.UnmarshalState(mustInt(), checkpoint.NewRecordWriter(nil).State())
	require.ErrorIs(t, err, checkpoint.ErrRecords, "no value")
	two := checkpoint.NewRecordWriter(nil)
	require.NoError(t, two.Append(checkpoint.Record{Value: []byte{1}}))
	require.NoError(t, two.Append(checkpoint.Record{Value: []byte{1}}))
	_, err = checkpoint.UnmarshalState(mustInt(), two.State())
	require.ErrorIs(t, err, checkpoint.ErrRecords, "two values")
}

// mustInt is a codec without a schema.
func mustInt() checkpoint.Codec[int] {
	return checkpoint.CodecFunc(
		func(dst []byte, v int) ([]byte, error) { return append(dst, byte(v)), nil },
		func(src []byte) (int, error) { return len(src), nil })
}

func drain(s checkpoint.State) (n int, err error) {
	r, err := checkpoint.ReadRecords(s)
	if err != nil {
		return 0, err
	}
	for {
		if _, err := r.Next(); err != nil {
			if err.Error() == "EOF" {
				err = nil
			}
			return n, err
		}
		n++
	}
}

// A codec that fails in the middle leaves no trace.
func TestRecordsOfACodecThatFails(t *testing.T) {
	trouble := errors.New("not this one")
	c := checkpoint.CodecFunc(
		func(dst []byte, v int) ([]byte, error) {
			dst = append(dst, "half"...)
			if v == 1 {
				return dst, trouble
			}
			return append(dst, "whole"...), nil
		},
		func([]byte) (int, error) { return 0, nil })
	w := checkpoint.NewRecordWriter(nil)
	for v := range 3 {
		err := checkpoint.AppendRecord(w, checkpoint.Record{Kind: uint8(v)}, c, v)
		assert.Equal(t, v == 1, errors.Is(err, trouble))
	}
	short := checkpoint.CodecFunc(func([]byte, int) ([]byte, error) { return nil, nil }, func([]byte) (int, error) { return 0, nil })
	require.Error(t, checkpoint.AppendRecord(w, checkpoint.Record{}, short, 1))
	r, err := checkpoint.ReadRecords(w.State())
	require.NoError(t, err)
	all := readAll(t, r)
	require.Len(t, all, 2)
	for i, kind := range []uint8{0, 2} {
		assert.Equal(t, checkpoint.Record{Kind: kind, Value: []byte("halfwhole")}, all[i])
	}
}

func FuzzRecords(f *testing.F) {
	w := checkpoint.NewRecordWriter([]byte("schema"))
	_ = w.Append(checkpoint.Record{Kind: 1, Attempts: 2, First: time.Unix(5, 6), Spent: 7, Value: []byte("value")})
	_ = w.Append(checkpoint.Record{})
	f.Add(w.State().Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := checkpoint.ReadRecords(checkpoint.State{b})
		if err != nil {
			require.ErrorIs(t, err, checkpoint.ErrRecords)
			return
		}
		again := checkpoint.NewRecordWriter(r.Schema())
		for {
			rec, err := r.Next()
			if err != nil {
				if err.Error() != "EOF" {
					require.ErrorIs(t, err, checkpoint.ErrRecords)
					return
				}
				break
			}
			require.NoError(t, again.Append(rec))
		}
		n, err := drain(again.State())
		require.NoError(t, err)
		require.Equal(t, again.Len(), n)
	})
}

func fuzzCodec(f *testing.F, c checkpoint.Codec[flight]) {
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

func FuzzDefaultCodec(f *testing.F) { fuzzCodec(f, mustDefault[flight](f)) }
func FuzzJSONCodec(f *testing.F)    { fuzzCodec(f, checkpoint.JSON[flight]()) }
func FuzzGobCodec(f *testing.F)     { fuzzCodec(f, checkpoint.Gob[flight]()) }

// FuzzUnmarshalState reads hostile states: a hostile schema, and hostile values under it.
func FuzzUnmarshalState(f *testing.F) {
	c := mustDefault[flight](f)
	state, err := checkpoint.MarshalState(c, someFlight(1))
	require.NoError(f, err)
	f.Add(state.Bytes())
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = checkpoint.UnmarshalState(c, checkpoint.State{b}) })
}
