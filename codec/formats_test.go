package codec_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/testing/golden"
)

type order struct {
	Number int               `json:"number"`
	Name   string            `json:"name"`
	At     time.Time         `json:"at"`
	Photo  []byte            `json:"photo"`
	Tags   map[string]string `json:"tags"`
}

// A value, with its schema in front (law W4).
func TestSchemaOf_FormatsOfCodecs(t *testing.T) {
	want := order{5, "<Ä & B>", golden.At, []byte{0, 255}, map[string]string{"a": "1", "b": "2"}}
	for name, c := range map[string]codec.Codec[order]{"json": codec.JSON[order](), "default": codec.Default[order]()} {
		schema := codec.SchemaOf(c)
		b, err := c.Append(append(schema[:len(schema):len(schema)], '\n'), want)
		require.NoError(t, err)
		stored := golden.Written(t, name, b)
		old, err := codec.WithSchema(c, stored[:len(schema)])
		require.NoError(t, err)
		got, err := old.Decode(stored[len(schema)+1:])
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
