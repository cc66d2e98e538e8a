package codec_test

import (
	"bytes"
	"encoding/gob"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
)

// BenchmarkCodec compares the codecs on one element.
func BenchmarkCodec(b *testing.B) {
	benchCodec(b, "type=flight/codec=default", codec.Default[flight](), someFlight(1))
	benchCodec(b, "type=flight/codec=json", codec.JSON[flight](), someFlight(1))
	benchCodec(b, "type=flight/codec=gob", codec.Gob[flight](), someFlight(1))
	benchCodec(b, "type=string/codec=default", codec.Default[string](), "a key of a row")
	benchCodec(b, "type=int/codec=default", codec.Default[int](), 1234567)
	benchCodec(b, "type=pointer/codec=default", codec.Default[*flight](), ptr(someFlight(1)))
	benchCodec(b, "type=map/codec=json", codec.JSON[map[string]any](), map[string]any{"id": 1.0, "name": "x", "tags": []any{"a", "b"}})
}

func ptr[T any](v T) *T { return &v }

func benchCodec[T any](b *testing.B, name string, c codec.Codec[T], v T) {
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

// BenchmarkGobStream measures the cost of a codec with state: one stream of encoding/gob
// for a list of elements.
func BenchmarkGobStream(b *testing.B) {
	const n = 10_000
	f := someFlight(1)
	b.ReportAllocs()
	var size int
	for b.Loop() {
		var out bytes.Buffer
		enc := gob.NewEncoder(&out)
		for range n {
			require.NoError(b, enc.Encode(&f))
		}
		size = out.Len()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
	b.ReportMetric(float64(size)/n, "B/element")
}
