package hbase

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tsuna/gohbase/hrpc"
	"github.com/tsuna/gohbase/region"
)

// sent returns a write that gohbase has begun to send.
func sent(t *testing.T) *write {
	t.Helper()
	m, err := hrpc.NewIncStrSingle(t.Context(), "t", "k", "f", "count", 1)
	require.NoError(t, err)
	w := newWrite(t.Context(), m)
	t.Cleanup(w.finish)
	w.SetRegion(region.NewInfo(1, nil, []byte("t"), []byte("t,,1.x."), nil, nil))
	w.SerializeCellBlocks()
	return w
}

// gohbase may try again before relay has ended the context.
func TestWrite_RegionAfterSending(t *testing.T) {
	w := sent(t)
	require.NoError(t, w.Context().Err())
	w.SetRegion(region.NewInfo(2, nil, []byte("t"), []byte("t,,2.x."), nil, nil))
	require.ErrorIs(t, w.Context().Err(), context.Canceled, "gohbase could send the write again")
	require.EqualValues(t, 1, w.Region().ID(), "the connection may still read the region")
}

// The result of a write whose connection was closed is not the server's.
func TestWrite_AnswerAfterAStall(t *testing.T) {
	w := sent(t)
	w.keep(hrpc.RPCResult{Error: errors.New("the connection was closed")})
	_, ok := w.answer()
	require.True(t, ok)
	w.isStalled = true
	_, ok = w.answer()
	require.False(t, ok)
}
