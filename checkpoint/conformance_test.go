package checkpoint_test

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
)

func TestCodecsFollowTheRules(t *testing.T) {
	type sample struct {
		Name   string
		Values []float64
		Labels map[string]int
		Next   *sample
	}
	samples := []sample{
		{},
		{Name: "a", Values: []float64{1, -2.5}, Next: &sample{Name: "b"}},
		{Labels: map[string]int{"x": 1, "y": -1}},
		{Name: strings.Repeat("long ", 300)},
	}
	fields, err := checkpoint.DefaultCodec[sample]()
	require.NoError(t, err)
	text, err := checkpoint.DefaultCodec[string]()
	require.NoError(t, err)
	for name, codec := range map[string]checkpoint.Codec[sample]{
		"fields": fields, "JSON": checkpoint.JSON[sample](), "gob": checkpoint.Gob[sample](),
		"two functions": checkpoint.CodecFunc(
			func(dst []byte, v sample) ([]byte, error) {
				b, err := json.Marshal(v)
				return append(dst, b...), err
			},
			func(src []byte) (v sample, err error) { return v, json.Unmarshal(src, &v) }),
	} {
		t.Run(name, func(t *testing.T) { checkpointtest.RunCodec(t, codec, nil, samples...) })
	}
	t.Run("text", func(t *testing.T) { checkpointtest.RunCodec(t, text, nil, "", "one", "\xff\x00") })
}

func TestInputsFollowTheRules(t *testing.T) {
	name := filepath.Join(t.TempDir(), "input")
	text := "id,text\r\n1,\"two\nlines\"\n\n2,\r\n3,\"a \"\"word\"\"\"\n4,last"
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	t.Run("lines", func(t *testing.T) {
		checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[string] {
			in, err := checkpoint.OpenLines(name)
			require.NoError(t, err)
			return in
		}, nil)
	})
	t.Run("CSV", func(t *testing.T) {
		checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[[]string] {
			in, err := checkpoint.OpenCSV(name)
			require.NoError(t, err)
			return in
		}, slices.Equal)
	})
	numbers := []int{3, 1, 4, 1, 5}
	t.Run("slice", func(t *testing.T) {
		checkpointtest.RunInput(t, func(*testing.T) checkpoint.Input[int] { return checkpoint.NewSliceInput(numbers) }, nil)
	})
	t.Run("channel", func(t *testing.T) {
		checkpointtest.RunInput(t, func(*testing.T) checkpoint.Input[int] {
			c := make(chan int, len(numbers))
			for _, v := range numbers {
				c <- v
			}
			close(c)
			return checkpoint.NewChannelInput(c)
		}, nil)
	})
}

func TestFileOutputFollowsTheRules(t *testing.T) {
	t.Run("refuses a file that is not empty", func(t *testing.T) { fileOutputFollowsTheRules(t) })
	t.Run("overwrites", func(t *testing.T) { fileOutputFollowsTheRules(t, checkpoint.WithOverwrite()) })
}

func TestFileOutputFollowsTheRulesOnATroubledDisk(t *testing.T) {
	checkpointtest.RunOutput(t, func(*testing.T) checkpointtest.Outlet[string] {
		disk := checkpoint.NewTroubledDisk()
		return checkpointtest.Outlet[string]{
			Open:    func() (checkpoint.Output[string], error) { return disk.NewOutput(), nil },
			Visible: disk.Lines,
			Fail:    disk.Fail,
		}
	}, func(i int) string { return fmt.Sprint("line ", i) }, nil)
}

func fileOutputFollowsTheRules(t *testing.T, opts ...checkpoint.FileOption) {
	t.Helper()
	checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[string] {
		name := filepath.Join(t.TempDir(), "output")
		return checkpointtest.Outlet[string]{
			Open: func() (checkpoint.Output[string], error) { return checkpoint.NewLineOutput(name, opts...), nil },
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
