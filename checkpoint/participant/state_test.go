package participant_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/internal/guard"
)

type position struct {
	Topic   string
	Offsets map[int32]int64
}

func positions() codec.Codec[position] { return codec.Default[position]() }

var somewhere = position{"flights", map[int32]int64{0: 12, 1: 1 << 40}}

func TestMarshalState_BytesAndSizeOfOneValue(t *testing.T) {
	for name, c := range map[string]codec.Codec[position]{
		"default": positions(), "JSON": codec.JSON[position](), "Gob": codec.Gob[position](),
	} {
		state, err := participant.MarshalState(c, somewhere)
		require.NoError(t, err, name)
		got, err := participant.UnmarshalState(c, state)
		require.NoError(t, err, name)
		assert.Equal(t, somewhere, got, name)
		whole := state.Bytes()
		assert.EqualValues(t, len(whole), state.Size())
		got, err = participant.UnmarshalState(c, participant.State{whole[:1], nil, whole[1:7], whole[7:]})
		require.NoError(t, err, "a store may cut it elsewhere")
		assert.Equal(t, somewhere, got, name)
	}
}

func TestStateNoticesEveryCut(t *testing.T) {
	// A codec without a schema, which decodes any bytes.
	c := codec.Func(
		func(dst []byte, v int) ([]byte, error) { return append(dst, make([]byte, v)...), nil },
		func(src []byte) (int, error) { return len(src), nil })
	state, err := participant.MarshalState(c, 5)
	require.NoError(t, err)
	whole := state.Bytes()
	v, err := participant.UnmarshalState(c, participant.State{whole})
	require.NoError(t, err)
	require.Equal(t, 5, v)
	for n := range whole {
		_, err := participant.UnmarshalState(c, participant.State{whole[:n]})
		require.ErrorContains(t, err, "participant: not a state of one value: it is cut off", "cut after %d", n)
	}
	_, err = participant.UnmarshalState(c, participant.State{whole, {0}})
	require.ErrorContains(t, err, "bytes are left over")
	whole[0] = 1
	_, err = participant.UnmarshalState(c, participant.State{whole})
	require.ErrorContains(t, err, "unknown version 1")

	// A codec with a schema.
	state, err = participant.MarshalState(positions(), somewhere)
	require.NoError(t, err)
	_, err = participant.UnmarshalState(c, state)
	var wrong *codec.Error
	require.ErrorAs(t, err, &wrong, "another codec")
}

// A6: an error or a panic of a codec becomes an error.
func TestMarshalState_CodecThatFails(t *testing.T) {
	trouble := errors.New("not this one")
	_, err := participant.MarshalState(codec.Func(
		func(dst []byte, _ int) ([]byte, error) { return append(dst, "half"...), trouble },
		func([]byte) (int, error) { return 0, nil }), 1)
	require.ErrorIs(t, err, trouble)

	bad := codec.Func(func([]byte, int) ([]byte, error) { panic("append") }, func([]byte) (int, error) { panic("decode") })
	_, err = participant.MarshalState(bad, 1)
	var broken *guard.PanicError
	require.ErrorAs(t, err, &broken)
	require.ErrorContains(t, err, "panic in user code: append")
	_, err = participant.UnmarshalState(bad, participant.State{{2, 0, 0}})
	require.ErrorAs(t, err, &broken)
	require.ErrorContains(t, err, "panic in user code: decode")
}

// FuzzUnmarshalState reads hostile states: a hostile schema, and hostile values under it.
func FuzzUnmarshalState(f *testing.F) {
	c := positions()
	state, err := participant.MarshalState(c, somewhere)
	require.NoError(f, err)
	f.Add(state.Bytes())
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = participant.UnmarshalState(c, participant.State{b}) })
}
