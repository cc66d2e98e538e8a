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

// A6: whatever one does, the others are done.
func TestEach(t *testing.T) {
	broken := func(recovered any) error { return fmt.Errorf("broken: %v", recovered) }
	for range 2 {
		var done []int
		errs := guard.Each(6, func(i int) error {
			done = append(done, i)
			switch i {
			case 1:
				return errTest
			case 2, 5:
				panic("boom")
			case 3:
				runtime.Goexit()
			}
			return nil
		}, broken)
		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, done)
		require.NoError(t, errs[0])
		require.Equal(t, errTest, errs[1])
		require.EqualError(t, errs[2], "broken: boom")
		require.EqualError(t, errs[3], "broken: <nil>")
		require.NoError(t, errs[4])
		require.EqualError(t, errs[5], "broken: boom")
	}
	require.Empty(t, guard.Each(0, func(int) error { return errTest }, broken))
	require.Less(t, testing.AllocsPerRun(10, func() { guard.Each(100, func(int) error { return nil }, broken) }), 10.0)
}

// A6: a panic ends at the guard, Goexit does not, and both are reported.
func TestGuard(t *testing.T) {
	call := func(f func()) (got []any) {
		defer func() { require.Nil(t, recover()) }()
		var g guard.Guard
		defer g.Close(func(recovered any) { got = append(got, recovered) })
		f()
		g.Returned()
		return nil
	}
	require.Empty(t, call(func() {}))
	require.Equal(t, []any{"boom"}, call(func() { panic("boom") }))
	var exited []any
	done := make(chan struct{})
	go func() {
		defer close(done)
		var g guard.Guard
		defer g.Close(func(recovered any) { exited = append(exited, recovered) })
		runtime.Goexit()
	}()
	<-done
	require.Equal(t, []any{nil}, exited)
}
