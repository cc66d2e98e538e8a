package codec_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/codec/codectest"
)

func TestCodecsFollowTheRules(t *testing.T) {
	type sample struct {
		Name   string
		Values []float64
		Labels map[string]int
		Next   *sample
	}
	samples := []sample{
		{},
		{Name: "a", Values: []float64{1, -2.5}, Next: &sample{Name: "b"}},
		{Labels: map[string]int{"x": 1, "y": -1}},
		{Name: strings.Repeat("long ", 300)},
	}
	fields, text := codec.Default[sample](), codec.Default[string]()
	for name, c := range map[string]codec.Codec[sample]{
		"fields": fields, "JSON": codec.JSON[sample](), "gob": codec.Gob[sample](),
		"two functions": codec.Func(
			func(dst []byte, v sample) ([]byte, error) {
				b, err := json.Marshal(v)
				return append(dst, b...), err
			},
			func(src []byte) (v sample, err error) { return v, json.Unmarshal(src, &v) }),
	} {
		t.Run(name, func(t *testing.T) { codectest.Run(t, c, nil, samples...) })
	}
	t.Run("text", func(t *testing.T) { codectest.Run(t, text, nil, "", "one", "<é>\x00") })
}
