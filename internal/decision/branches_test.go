package decision

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

type ownError struct{}

func (ownError) Error() string { return "own" }

func TestIsPlain(t *testing.T) {
	text := errors.New("text")
	require.True(t, isPlain(text))
	require.True(t, isPlain(fmt.Errorf("a: %w", fmt.Errorf("b: %w", text))))
	require.False(t, isPlain(ownError{}))
	require.False(t, isPlain(fmt.Errorf("a: %w", ownError{})))
	require.False(t, isPlain(errors.Join(text, ownError{})))
}
