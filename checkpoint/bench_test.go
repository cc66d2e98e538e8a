package checkpoint_test

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
)

var quietly = checkpoint.WithStoreLogger(slog.New(slog.DiscardHandler))

// elements returns the state of n elements of 100 bytes.
func elements(b *testing.B, n int) checkpoint.State {
	b.Helper()
	w := checkpoint.NewRecordWriter(nil)
	value := make([]byte, 100)
	for i := range n {
		value[0], value[1], value[2] = byte(i), byte(i>>8), byte(i>>16)
		require.NoError(b, w.Append(checkpoint.Record{Kind: 1, Attempts: 1, Value: value}))
	}
	return w.State()
}

func forEachSize(b *testing.B, f func(b *testing.B, n int)) {
	b.Helper()
	for _, n := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("elements=%d", n), func(b *testing.B) {
			if testing.Short() && n > 100_000 {
				b.Skip("too large for -short")
			}
			f(b, n)
		})
	}
}

// BenchmarkSave is a checkpoint on the disk, syncs included.
func BenchmarkSave(b *testing.B) {
	forEachSize(b, func(b *testing.B, n int) {
		state := elements(b, n)
		d, err := checkpoint.OpenDir(b.TempDir(), checkpoint.WithKeepLast(1), quietly)
		require.NoError(b, err)
		defer d.Close()
		b.SetBytes(state.Size())
		b.ReportAllocs()
		id := uint64(0)
		for b.Loop() {
			id++
			if err := d.Save(b.Context(), &checkpoint.Snapshot{ID: id, States: map[string]checkpoint.State{"op": state}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	forEachSize(b, func(b *testing.B, n int) {
		state := elements(b, n)
		d, err := checkpoint.OpenDir(b.TempDir(), quietly)
		require.NoError(b, err)
		defer d.Close()
		require.NoError(b, d.Save(b.Context(), &checkpoint.Snapshot{ID: 1, States: map[string]checkpoint.State{"op": state}}))
		b.SetBytes(state.Size())
		b.ReportAllocs()
		for b.Loop() {
			if _, err := d.Load(b.Context(), 1); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRecords is the encoding of the elements of an operator into its state, and back.
func BenchmarkRecords(b *testing.B) {
	forEachSize(b, func(b *testing.B, n int) {
		c := mustDefault[flight](b)
		f := someFlight(1)
		var state checkpoint.State
		b.Run("op=write", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w := checkpoint.NewRecordWriter(checkpoint.SchemaOf(c))
				for range n {
					if err := checkpoint.AppendRecord(w, checkpoint.Record{Kind: 1, Attempts: 1, First: f.Takeoff}, c, f); err != nil {
						b.Fatal(err)
					}
				}
				state = w.State()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/element")
			b.ReportMetric(float64(state.Size())/float64(n), "B/element")
		})
		b.Run("op=read", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := checkpoint.ReadRecords(state)
				if err != nil {
					b.Fatal(err)
				}
				for range n {
					rec, err := r.Next()
					if err != nil {
						b.Fatal(err)
					}
					if _, err := checkpoint.DecodeRecord(c, rec); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/element")
		})
	})
}

// BenchmarkCodec compares the codecs on one element.
func BenchmarkCodec(b *testing.B) {
	benchCodec(b, "type=flight/codec=default", mustDefault[flight](b), someFlight(1))
	benchCodec(b, "type=flight/codec=json", checkpoint.JSON[flight](), someFlight(1))
	benchCodec(b, "type=flight/codec=gob", checkpoint.Gob[flight](), someFlight(1))
	benchCodec(b, "type=string/codec=default", mustDefault[string](b), "a key of a row")
	benchCodec(b, "type=int/codec=default", mustDefault[int](b), 1234567)
	benchCodec(b, "type=pointer/codec=default", mustDefault[*flight](b), ptr(someFlight(1)))
	benchCodec[any](b, "type=any/codec=default", mustDefault[any](b), "a key of a row")
	benchCodec(b, "type=map/codec=default", mustDefault[map[string]any](b), map[string]any{"id": 1.0, "name": "x", "tags": []any{"a", "b"}})
	benchCodec(b, "type=map/codec=json", checkpoint.JSON[map[string]any](), map[string]any{"id": 1.0, "name": "x", "tags": []any{"a", "b"}})
}

func ptr[T any](v T) *T { return &v }

func benchCodec[T any](b *testing.B, name string, c checkpoint.Codec[T], v T) {
	b.Helper()
	var src []byte
	b.Run(name+"/op=append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var err error
			if src, err = c.Append(src[:0], v); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(src)), "B/element")
	})
	b.Run(name+"/op=decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Decode(src); err != nil {
				b.Fatal(err)
			}
		}
	})
}
