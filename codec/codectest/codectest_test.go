package codectest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/testing/suite"
)

type reading struct {
	Sensor string
	Values []float64
	Labels map[string]int
}

var readings = []reading{{}, {"a", []float64{1, -2.5}, nil}, {"ä", nil, map[string]int{"x": 1, "y": -1}}}

func TestRunAcceptsSoundCodecs(t *testing.T) {
	Run(t, codec.JSON[reading](), nil, readings...)
	t.Run("without schema", func(t *testing.T) {
		Run(t, codec.Func(
			func(dst []byte, v reading) ([]byte, error) {
				b, err := json.Marshal(v)
				return append(dst, b...), err
			},
			func(src []byte) (v reading, err error) { return v, json.Unmarshal(src, &v) }), nil, readings...)
	})
}

// wrongCodec is a correct codec of bytes, except for replaced functions.
type wrongCodec struct {
	append func(dst, v []byte) ([]byte, error)
	decode func(src []byte) ([]byte, error)
	schema func(schema []byte) error
}

func (w wrongCodec) Append(dst, v []byte) ([]byte, error) {
	if w.append != nil {
		return w.append(dst, v)
	}
	return append(dst, v...), nil
}

func (w wrongCodec) Decode(src []byte) ([]byte, error) {
	if w.decode != nil {
		return w.decode(src)
	}
	return bytes.Clone(src), nil
}

func (w wrongCodec) Schema() []byte { return []byte("bytes") }

func (w wrongCodec) WithSchema(schema []byte) (codec.Codec[[]byte], error) {
	if w.schema != nil {
		return w, w.schema(schema)
	}
	if string(schema) != "bytes" {
		return nil, errors.New("another schema")
	}
	return w, nil
}

// For each rule there is a codec that breaks it, so every rule is effective.
func TestRunFindsWrongCodecs(t *testing.T) {
	var last []byte
	var inside atomic.Int32
	met, meet := context.WithTimeout(t.Context(), time.Minute)
	defer meet()
	wrong := map[string][]wrongCodec{
		"a value comes back": {
			{decode: func(src []byte) ([]byte, error) { return bytes.Clone(src[:max(1, len(src)-1)]), nil }},
			{append: func(dst, _ []byte) ([]byte, error) { return dst, errors.New("no") }},
			{decode: func([]byte) ([]byte, error) { return nil, errors.New("no") }},
			{schema: func([]byte) error { return errors.New("no") }},
		},
		"bytes are appended": {
			{append: func(_, v []byte) ([]byte, error) { return bytes.Clone(v), nil }},
			{append: func(dst, v []byte) ([]byte, error) {
				clear(dst[:min(1, len(dst))])
				return append(dst, v...), nil
			}},
			{append: func(dst, v []byte) ([]byte, error) { return append(dst[:len(dst):len(dst)], v[:1]...), nil }},
		},
		"the buffer belongs to the caller": {{append: func(dst, v []byte) ([]byte, error) {
			if len(last) != len(v) {
				last = append(dst, v...)
				return last, nil
			}
			return append(dst, last...), nil
		}}},
		"what is decoded stays": {
			{decode: func(src []byte) ([]byte, error) { return src, nil }},
			{decode: func(src []byte) ([]byte, error) {
				v := bytes.Clone(src)
				clear(src)
				return v, nil
			}},
		},
		"damaged bytes do no harm": {
			{decode: func(src []byte) ([]byte, error) { return bytes.Clone(append(src[:1], src[1:]...)), nil }},
			{decode: func(src []byte) ([]byte, error) {
				if len(src) > 40 {
					return make([]byte, 2*memoryLimit), nil
				}
				return bytes.Clone(src), nil
			}},
		},
		"concurrent use": {{decode: func(src []byte) ([]byte, error) {
			defer inside.Add(-1)
			if inside.Add(1) > 1 {
				meet()
				return nil, errors.New("not while another call is running")
			}
			<-met.Done() // so that calls overlap under any scheduling
			return bytes.Clone(src), nil
		}}},
		"a schema of another codec is refused": {{schema: func([]byte) error { return nil }}},
		"a damaged schema does no harm": {{schema: func(schema []byte) error {
			_ = schema[4]
			return nil
		}}},
	}
	for _, rule := range codecRules[[]byte]() {
		t.Run(rule.name, func(t *testing.T) {
			require.NotEmpty(t, wrong[rule.name])
			sample := codecSample[[]byte]{equal: bytes.Equal, values: [][]byte{[]byte("one"), []byte("other")}}
			sample.codec = wrongCodec{}
			assert.NoError(t, rule.check(sample), "a sound codec")
			for i, w := range wrong[rule.name] {
				sample.codec = w
				assert.Error(t, rule.check(sample), "wrong codec %d", i)
			}
		})
	}
}

// account encodes itself by a pointer method. Its reader decodes an empty object as the
// zero value.
type account struct{ n int }

func (a *account) MarshalJSON() ([]byte, error) { return json.Marshal(map[string]int{"n": a.n}) }
func (a *account) UnmarshalJSON(b []byte) error {
	m := map[string]int{}
	err := json.Unmarshal(b, &m)
	a.n = m["n"]
	return err
}

// A codec that does not call pointer methods loses values without an error. The suite
// detects that.
func TestRunFindsMethodsThatAreNotCalled(t *testing.T) {
	of := func(marshal func(v *account) ([]byte, error)) codecSample[account] {
		return codecSample[account]{values: []account{{7}, {8}}, equal: suite.EqualOr[account](nil), codec: codec.Func(
			func(dst []byte, v account) ([]byte, error) {
				b, err := marshal(&v)
				return append(dst, b...), err
			},
			func(src []byte) (v account, err error) { return v, json.Unmarshal(src, &v) })}
	}
	require.NoError(t, of(func(v *account) ([]byte, error) { return json.Marshal(v) }).comesBack())
	err := of(func(v *account) ([]byte, error) { return json.Marshal(*v) }).comesBack()
	require.EqualError(t, err, "value 0: Decode returned {n:0}, want {n:7}")
	Run(t, codec.JSON[account](), nil, account{7}, account{8})
}
