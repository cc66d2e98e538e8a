package checkpoint_test

import (
	"log/slog"
	"testing"

	"github.com/benbjohnson/clock"
	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/checkpoint/participant"
)

func TestArguments(t *testing.T) {
	c := must(NewCoordinator(checkpointtest.NewMemoryStore()))
	var (
		noInput  *files.LineInput
		noOutput *files.Output[string]
		noStore  *files.DirStore
		noClock  *clock.Mock
	)
	for want, f := range map[string]func(){
		"checkpoint: NewCoordinator: nil store":                    func() { _, _ = NewCoordinator(nil) },
		"checkpoint: NewCoordinator: nil store ":                   func() { _, _ = NewCoordinator(noStore) },
		"checkpoint: NewCoordinator: option 1 is nil":              func() { _, _ = NewCoordinator(checkpointtest.NewMemoryStore(), WithInterval(0), nil) },
		"checkpoint: WithClock: nil clock":                         func() { WithClock(nil) },
		"checkpoint: WithClock: nil clock ":                        func() { WithClock(noClock) },
		"checkpoint: WithLogger: nil logger":                       func() { WithLogger(nil) },
		"checkpoint: WithInterval: negative interval: -1ns":        func() { WithInterval(-1) },
		"checkpoint: WithTimeout: must be positive, got 0s":        func() { WithTimeout(0) },
		"checkpoint: KeepLast: at least 1 must be kept, got 0":     func() { new(files.DirStore).KeepLast(0) },
		"checkpoint: NewSource: nil coordinator":                   func() { NewSource(nil, "x", checkpointtest.NewSliceInput([]int{1})) },
		"checkpoint: NewSource: nil input":                         func() { NewSource[int](c, "x", nil) },
		"checkpoint: NewSource: nil input ":                        func() { NewSource(c, "x", noInput) },
		"checkpoint: NewSink: nil coordinator":                     func() { NewSink(nil, "x", files.NewLineOutput("x")) },
		"checkpoint: NewSink: nil output":                          func() { NewSink[int](c, "x", nil) },
		"checkpoint: NewSink: nil output ":                         func() { NewSink(c, "x", noOutput) },
		"checkpoint: NewOutput: nil encode":                        func() { files.NewOutput[int]("x", nil) },
		"checkpoint: NewOutput: empty path":                        func() { files.NewOutput("", func(b []byte, _ int) ([]byte, error) { return b, nil }) },
		"checkpoint: NewLineOutput: empty path":                    func() { files.NewLineOutput("") },
		"checkpointtest: NewChannelInput: nil channel":             func() { checkpointtest.NewChannelInput[int](nil) },
		"checkpoint: Finish: not a final kind: periodic":           func() { _ = c.Finish(t.Context(), Periodic) },
		"checkpoint: Finish: not a final kind: Kind(4)":            func() { _ = c.Finish(t.Context(), 4) },
		"checkpoint: RequestFinal: not a final kind: end of input": func() { c.Host().RequestFinal(participant.EndOfInput) },
		"checkpoint: Fail: nil reason":                             func() { c.Host().Fail("x", nil) },
		"checkpoint: Refuse: nil reason":                           func() { c.Host().Refuse("x", nil) },
	} {
		require.PanicsWithValue(t, trimmed(want), f, want)
	}
	require.NotPanics(t, func() { WithLogger(slog.Default()); WithClock(clock.New()) })

	_, err := files.OpenDir("")
	require.EqualError(t, err, "checkpoint: opening a directory: its path is empty")
	for _, open := range []func(string) error{
		func(path string) error { _, err := files.OpenLines(path); return err },
		func(path string) error { _, err := files.OpenCSV(path); return err },
	} {
		require.ErrorContains(t, open(""), "checkpoint: open : ")
		require.ErrorContains(t, open(t.TempDir()+"/none"), "/none")
	}
	c.Host().Register("none", nil)
	require.EqualError(t, c.Start(), `checkpoint: participant "none" is nil`, "what panicked has not registered")
	require.NoError(t, c.Close())
}

// trimmed lets a table have a message twice.
func trimmed(s string) string {
	if s[len(s)-1] == ' ' {
		return s[:len(s)-1]
	}
	return s
}
