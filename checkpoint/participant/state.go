package participant

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/varint"
)

// State is the data that a participant receives after a restart, in its own encoding.
//
// A large state need not be copied into one piece. A store may return it cut elsewhere.
type State [][]byte

// Size returns the number of bytes.
func (s State) Size() int64 {
	var n int64
	for _, piece := range s {
		n += int64(len(piece))
	}
	return n
}

// Bytes returns the state in a single piece. It copies if there are several.
func (s State) Bytes() []byte {
	if len(s) == 1 {
		return s[0]
	}
	return slices.Concat(s...)
}

// stateVersion is the first byte of a state of one value:
//
//	version byte | schema | value
//
// where schema and value are preceded by their lengths.
const stateVersion = 2

// MarshalState returns a state that holds a single small value, such as a position, with
// the schema of its codec. A panic of the codec becomes an error.
func MarshalState[T any](c codec.Codec[T], v T) (_ State, err error) {
	defer recoverTo(&err)
	value, err := c.Append(nil, v)
	if err != nil {
		return nil, err
	}
	b := varint.AppendBytes([]byte{stateVersion}, codec.SchemaOf(c))
	b = binary.AppendUvarint(b, uint64(len(value)))
	return State{b, value}, nil
}

// UnmarshalState returns the value of a state from [MarshalState]. It fails for another
// format, a damaged state, a codec that does not fit, and a panic of the codec.
func UnmarshalState[T any](c codec.Codec[T], state State) (v T, err error) {
	defer recoverTo(&err)
	r := varint.Reader{Rest: state.Bytes()}
	version := r.Byte()
	schema := r.Bytes()
	value := r.Bytes()
	switch {
	case r.Err == nil && version != stateVersion:
		r.Err = fmt.Errorf("unknown version %d", version)
	case r.Err == nil && len(r.Rest) > 0:
		r.Err = errors.New("bytes are left over")
	}
	if r.Err != nil {
		return v, fmt.Errorf("participant: not a state of one value: %w", r.Err)
	}
	c, err = codec.WithSchema(c, schema)
	if err != nil {
		return v, err
	}
	return c.Decode(value)
}

func recoverTo(err *error) {
	if r := recover(); r != nil {
		*err = guard.Recovered("participant", r)
	}
}
