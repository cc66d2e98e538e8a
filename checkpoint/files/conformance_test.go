package files_test

import (
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
