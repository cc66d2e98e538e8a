package files_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
)

func TestInputsFollowTheRules(t *testing.T) {
	name := filepath.Join(t.TempDir(), "input")
	text := "id,text\r\n1,\"two\nlines\"\n\n2,\r\n3,\"a \"\"word\"\"\"\n4,last"
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	t.Run("lines", func(t *testing.T) {
		checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[string] {
			in, err := files.OpenLines(name)
			require.NoError(t, err)
			return in
		}, nil)
	})
	t.Run("CSV", func(t *testing.T) {
		checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[[]string] {
			in, err := files.OpenCSV(name)
			require.NoError(t, err)
			return in
		}, slices.Equal)
	})
	numbers := []int{3, 1, 4, 1, 5}
	t.Run("slice", func(t *testing.T) {
		checkpointtest.RunInput(t, func(*testing.T) checkpoint.Input[int] { return checkpointtest.NewSliceInput(numbers) }, nil)
	})
	t.Run("channel", func(t *testing.T) {
		checkpointtest.RunInput(t, func(*testing.T) checkpoint.Input[int] {
			c := make(chan int, len(numbers))
			for _, v := range numbers {
				c <- v
			}
			close(c)
			return checkpointtest.NewChannelInput(c)
		}, nil)
	})
}

func TestFileOutputFollowsTheRules(t *testing.T) {
	t.Run("refuses a file that is not empty", func(t *testing.T) { fileOutputFollowsTheRules(t, files.NewLineOutput) })
	t.Run("overwrites", func(t *testing.T) {
		fileOutputFollowsTheRules(t, func(path string) *files.Output[string] {
			return files.NewLineOutput(path).WithOverwrite()
		})
	})
}

func TestNewJSONLinesOutput_Rules(t *testing.T) {
	type row struct{ Text string }
	checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[row] {
		name := filepath.Join(t.TempDir(), "rows.jsonl")
		return checkpointtest.Outlet[row]{
			Open: func() (checkpoint.Output[row], error) { return files.NewJSONLinesOutput[row](name), nil },
			Visible: func() (rows []row, err error) {
				b, err := os.ReadFile(name)
				if errors.Is(err, fs.ErrNotExist) {
					return nil, nil
				}
				for line := range strings.Lines(string(b)) {
					var r row
					if err := json.Unmarshal([]byte(line), &r); err != nil {
						return nil, err
					}
					rows = append(rows, r)
				}
				return rows, err
			},
		}
	}, func(i int) row { return row{fmt.Sprintf("line\n%d <&>", i)} }, nil)
}

func TestNewJSONLinesOutput_Text(t *testing.T) {
	name := filepath.Join(t.TempDir(), "rows.jsonl")
	o := files.NewJSONLinesOutput[any](name)
	require.NoError(t, o.FreshStart(t.Context()))
	defer func() { require.NoError(t, o.Close()) }()
	for _, v := range []any{map[string]any{"a": "<b>\n"}, 1.5, nil, json.RawMessage("[1,\n2]")} {
		require.NoError(t, o.Write(t.Context(), v))
	}
	require.ErrorContains(t, o.Write(t.Context(), func() {}), "a line of JSON: json: unsupported type: func()")
	state, err := o.Prepare(t.Context())
	require.NoError(t, err)
	require.NoError(t, o.Commit(t.Context(), state))
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, "{\"a\":\"<b>\\n\"}\n1.5\nnull\n[1,2]\n", string(text))
}

func TestFileOutputFollowsTheRulesOnATroubledDisk(t *testing.T) {
	checkpointtest.RunOutput(t, func(*testing.T) checkpointtest.Outlet[string] {
		disk := files.NewTroubledDisk()
		return checkpointtest.Outlet[string]{
			Open:    func() (checkpoint.Output[string], error) { return disk.NewOutput(), nil },
			Visible: disk.Lines,
			Fail:    disk.Fail,
		}
	}, func(i int) string { return fmt.Sprint("line ", i) }, nil)
}

func fileOutputFollowsTheRules(t *testing.T, open func(path string) *files.Output[string]) {
	t.Helper()
	checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[string] {
		name := filepath.Join(t.TempDir(), "output")
		return checkpointtest.Outlet[string]{
			Open: func() (checkpoint.Output[string], error) { return open(name), nil },
			Visible: func() ([]string, error) {
				b, err := os.ReadFile(name)
				if errors.Is(err, fs.ErrNotExist) {
					return nil, nil
				}
				lines := strings.SplitAfter(string(b), "\n")
				for i, line := range lines {
					lines[i] = strings.TrimSuffix(line, "\n")
				}
				return lines[:len(lines)-1], err
			},
		}
	}, func(i int) string { return fmt.Sprint("line ", i) }, nil)
}
