package guard_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/guard"
)

var errTest = errors.New("test")

// A6: whatever f does, Call returns.
func TestCall(t *testing.T) {
	broken := func(recovered any) error { return fmt.Errorf("broken: %v", recovered) }
	require.NoError(t, guard.Call(func() error { return nil }, broken))
	require.Equal(t, errTest, guard.Call(func() error { return errTest }, broken))
	require.EqualError(t, guard.Call(func() error { panic("boom") }, broken), "broken: boom")
	require.EqualError(t, guard.Call(func() error { runtime.Goexit(); return nil }, broken), "broken: <nil>")
}
