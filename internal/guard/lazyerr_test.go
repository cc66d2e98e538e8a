package guard_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/guard"
)

var errPlain = errors.New("plain")

type panics struct{}

func (panics) Error() string { panic("broken") }

func TestWrap(t *testing.T) {
	err := guard.Wrap("open", errPlain)
	require.EqualError(t, err, "open: plain")
	require.ErrorIs(t, err, errPlain)
	var typedNil *fs.PathError
	require.EqualError(t, guard.Wrap("open", typedNil), "open: <nil>")
	require.EqualError(t, guard.Wrap("open", panics{}), "open: %!v(PANIC=Error method: broken)")
}

func TestJoin(t *testing.T) {
	err := guard.Join(errPlain, nil, fs.ErrExist)
	require.EqualError(t, err, "plain\nfile already exists")
	require.ErrorIs(t, err, errPlain)
	require.ErrorIs(t, err, fs.ErrExist)
	require.Len(t, err, 2)
	require.EqualError(t, guard.Join(errPlain, panics{}), "plain\n%!v(PANIC=Error method: broken)")
}

type detailed struct{ error }

func (detailed) Format(f fmt.State, verb rune) {
	if f.Flag('+') {
		_, _ = fmt.Fprint(f, "detailed")
		return
	}
	_, _ = fmt.Fprint(f, "short")
}

// %+v reaches the causes, which may have a stack to show.
func TestJoinFormat(t *testing.T) {
	err := detailed{errPlain}
	for format, want := range map[string]string{
		"%v": "open: short", "%s": "open: short", "%q": `"open: short"`, "%+v": "open: detailed",
	} {
		require.Equal(t, want, fmt.Sprintf(format, guard.Wrap("open", err)))
	}
	for format, want := range map[string]string{
		"%v": "plain\nshort", "%q": `"plain\nshort"`, "%+v": "plain\ndetailed",
	} {
		require.Equal(t, want, fmt.Sprintf(format, guard.Join(errPlain, err)))
	}
	require.Equal(t, "open: %!v(PANIC=Error method: broken)", fmt.Sprintf("%+v", guard.Wrap("open", panics{})))
}
