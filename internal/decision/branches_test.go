package decision

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

type ownError struct{}

func (ownError) Error() string { return "own" }

func TestMayHaveReason(t *testing.T) {
	text := errors.New("text")
	require.False(t, mayHaveReason(text))
	require.False(t, mayHaveReason(fmt.Errorf("a: %w", fmt.Errorf("b: %w", text))))
	require.True(t, mayHaveReason(ownError{}))
	require.True(t, mayHaveReason(fmt.Errorf("a: %w", ownError{})))
	require.True(t, mayHaveReason(errors.Join(text, ownError{})))
}
