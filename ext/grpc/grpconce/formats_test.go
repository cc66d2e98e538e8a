package grpconce

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weirflow/weir/internal/testing/golden"
)

// A stored reply and a stored error (law W4).
func TestFormats(t *testing.T) {
	want := wrapperspb.String("done")
	b, err := Encode(want, nil)
	require.NoError(t, err)
	reply, isError, err := decode(golden.Written(t, "reply", b))
	require.NoError(t, err)
	require.NoError(t, isError)
	require.True(t, proto.Equal(want, reply))

	b, err = Encode(nil, status.Error(codes.NotFound, "no order 17"))
	require.NoError(t, err)
	_, isError, err = decode(golden.Written(t, "status", b))
	require.NoError(t, err)
	require.Equal(t, codes.NotFound, status.Code(isError))
}
