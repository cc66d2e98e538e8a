package guard_test

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/guard"
)

// stackOf returns the stack of a panic, or of a Goexit, in the deferred function that
// recovers.
func stackOf(breaks func()) (stack []byte) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			_ = recover()
			stack = debug.Stack()
		}()
		breaks()
	}()
	<-done
	return stack
}

type client struct{ rows map[string]int }

func (c *client) get(key string) { c.rows[key] = 1 }

func TestFrame(t *testing.T) {
	var missing *client
	tests := []struct {
		name   string
		breaks func()
		want   string // the function; it is in this file
	}{
		{"panic", func() { panic("boom") }, "guard_test.TestFrame.func1"},
		{"Goexit", runtime.Goexit, "guard_test.stackOf.func1"},
		{"nil pointer", func() { missing.get("LHR") }, "guard_test.(*client).get"},
		{"nil map", func() { (&client{}).get("LHR") }, "guard_test.(*client).get"},
		{"in the standard library", func() { _ = strings.Repeat("x", -1) }, "guard_test.TestFrame.func4"},
		{"again", func() {
			defer func() { panic(recover()) }()
			panic("boom")
		}, "guard_test.TestFrame.func5.1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			frame := guard.Frame(stackOf(tt.breaks))
			require.Regexp(t, `^panics_test\.go:\d+ `, frame)
			_, function, _ := strings.Cut(frame, " ")
			require.Equal(t, tt.want, function)
		})
	}
}

// Frame finds the function of the user in all forms of a stack.
func TestFrame_InStack(t *testing.T) {
	const head = "goroutine 7 [running]:\n" +
		"runtime/debug.Stack()\n\t/go/src/runtime/debug/stack.go:26 +0x5e\n" +
		"github.com/weirflow/weir/asyncop.newPanicError({0x1, 0x2})\n\t/weir/asyncop/errors.go:204 +0x65\n" +
		"panic({0x1?, 0x2?})\n\t/go/src/runtime/panic.go:783 +0x132\n"
	const main = "main.lookup(...)\n\t/home/ann/lookup.go:42\n"
	const trimmed = "goroutine 7 [running]:\nruntime/debug.Stack()\n\truntime/debug/stack.go:26 +0x5e\n" +
		"panic({0x1, 0x2})\n\truntime/panic.go:783 +0x132\nstrings.Repeat({0x1, 0x2}, 0x3)\n\tstrings/strings.go:3 +0x1\n"
	defer guard.SetMainModule("app")()
	tests := []struct{ name, stack, want string }{
		{"none", "", ""},
		{"not a stack", "boom", ""},
		{"user", head + main, "lookup.go:42 main.lookup"},
		{
			"generic method", head + "example.com/app/db.(*Table[...]).Get(0x1, {0x2, 0x3})\n\t/home/ann/db/table.go:7 +0x1\n" + main,
			"table.go:7 db.(*Table[...]).Get",
		},
		{
			"ours", head + "github.com/weirflow/weir/strategies.FixedDelay[...](0x1)\n\t/weir/strategies/fixed.go:3 +0x1\n" + main,
			"lookup.go:42 main.lookup",
		},
		{
			"our programs", head + "github.com/weirflow/weir/examples/hbase-like/internal/cli.Run()\n\t/weir/examples/run.go:3 +0x1\n" + main,
			"run.go:3 cli.Run",
		},
		{"library", head + "strings.Repeat({0x1, 0x2}, 0x3)\n\t/go/src/strings/strings.go:3 +0x1\n" + main, "lookup.go:42 main.lookup"},
		{"windows", head + "main.lookup(...)\n\tC:/Users/Ann/lookup.go:42 +0x1\n", "lookup.go:42 main.lookup"},
		{"trimmed paths", trimmed + "main.lookup()\n\texample.com/app/lookup.go:42 +0x1\n", "lookup.go:42 main.lookup"},
		{"trimmed paths, go run lookup.go", trimmed + "main.lookup()\n\t./lookup.go:42 +0x1\n", "lookup.go:42 main.lookup"},
		{"trimmed paths, main module", trimmed + "app/db.Get()\n\tapp/db/table.go:7 +0x1\n", "table.go:7 db.Get"},
		{"nothing of the user's", head + "created by main.main in goroutine 1\n\t/home/ann/main.go:3 +0x1\n", ""},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, guard.Frame([]byte(tt.stack)), tt.name)
	}
}

type brokenError struct{ stack []byte }

func (e brokenError) Error() string { return guard.Message(errors.New("boom"), e.stack) }

func (e brokenError) Format(f fmt.State, verb rune) { guard.Format(f, verb, e.Error(), e.stack) }

func TestFormat(t *testing.T) {
	stack := "main.lookup()\n\t/home/ann/lookup.go:42 +0x1\n"
	err := brokenError{[]byte(stack)}
	const message = "panic in user code: boom (at lookup.go:42 main.lookup)"
	require.Equal(t, message, fmt.Sprintf("%v", err))
	require.Equal(t, message, fmt.Sprintf("%s", err))
	require.Equal(t, `"`+message+`"`, fmt.Sprintf("%q", err))
	require.Equal(t, message+"\n"+strings.TrimSuffix(stack, "\n"), fmt.Sprintf("%+v", err))
	require.Equal(t, "panic in user code: boom", fmt.Sprintf("%+v", brokenError{}))
}
