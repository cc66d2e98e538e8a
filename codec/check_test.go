package codec_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/codec"
)

type (
	hidden  struct{ id string }
	partly  struct{ Lines []hidden }
	leftOut struct {
		N  int
		id string `json:"-"`
	}
	document struct {
		Fields map[string]any
		List   []any
		Tree   map[string][]map[string]any
		Raw    json.RawMessage
		At     time.Time
		Sum    *big.Int
		Next   *document
	}
)

// Law W6: a type whose values JSON drops or changes is refused, with the path to the lost
// part.
func TestCheckType_JSON(t *testing.T) {
	_, _ = hidden{}.id, leftOut{}.id
	for want, err := range map[string]error{
		"codec of codec_test.hidden: .id: JSON leaves out the unexported field":         codec.CheckType(codec.JSON[hidden]()),
		"codec of codec_test.partly: .Lines[].id: JSON leaves out the unexported field": codec.CheckType(codec.JSON[partly]()),
		".id: JSON leaves out the unexported field":                                     codec.CheckType(codec.JSON[map[string]*hidden]()),
		".A: JSON does not keep which type an interface holds":                          codec.CheckType(codec.JSON[struct{ A any }]()),
		".E: JSON does not keep which type an interface holds":                          codec.CheckType(codec.JSON[struct{ E error }]()),
		"[]: JSON does not keep which type an interface holds":                          codec.CheckType(codec.JSON[map[string]fmt.Stringer]()),
		"codec of interface {}: JSON does not keep which type an interface holds":       codec.CheckType(codec.JSON[any]()),
		".F: JSON has no form for func()":                                               codec.CheckType(codec.JSON[struct{ F func() }]()),
		"codec_test.written has MarshalJSON and no":                                     codec.CheckType(codec.JSON[written]()),
	} {
		require.ErrorContains(t, err, want)
		require.ErrorAs(t, err, new(*codec.Error))
	}
	require.NoError(t, codec.CheckType(codec.JSON[leftOut]()), "the tag says that the field is left out")
	require.NoError(t, codec.CheckType(codec.JSON[document]()), "a document of unknown form")
	require.NoError(t, codec.CheckType(codec.JSON[*document]()))
	require.NoError(t, codec.CheckType(codec.JSON[int]()))
	require.NoError(t, codec.CheckType(codec.Default[*leftOut]()))
}

// Law W6: a type whose values gob drops or changes is refused, too.
func TestCheckType_Gob(t *testing.T) {
	for want, err := range map[string]error{
		".Lines[].id: gob leaves out the unexported field": codec.CheckType(codec.Gob[partly]()),
		".id: gob leaves out the unexported field":         codec.CheckType(codec.Gob[map[string]*hidden]()),
		".F: gob leaves out a func":                        codec.CheckType(codec.Gob[struct{ F func() }]()),
		".C[key]: gob leaves out a chan":                   codec.CheckType(codec.Gob[struct{ C map[chan int]int }]()),
		".P: gob decodes a pointer to a zero value as nil": codec.CheckType(codec.Gob[struct{ P *int }]()),
	} {
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, codec.CheckType(codec.Gob[*flight]()))
	require.NoError(t, codec.CheckType(codec.Gob[struct {
		At   time.Time
		Sum  *big.Int
		Next *flight
	}]()))
}

// Codecs of users decide themselves which parts they keep.
func TestCheckType_Func(t *testing.T) {
	c := codec.Func(func(dst []byte, v hidden) ([]byte, error) { return append(dst, v.id...), nil },
		func(src []byte) (hidden, error) { return hidden{string(src)}, nil })
	require.NoError(t, codec.CheckType(c))
}
