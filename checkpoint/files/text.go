package files

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/weirflow/weir/internal/vfs"
)

// ErrLineTooLong reports a line, or a record of a CSV file, longer than [WithMaxLine].
// The input ends with it.
var ErrLineTooLong = errors.New("too long: is it a text file? files.WithMaxLine allows longer lines")

// DefaultMaxLine is the longest line or CSV record without [WithMaxLine]: 16 MiB.
const DefaultMaxLine = 16 << 20

// InputOption configures [OpenLines] and [OpenCSV].
type InputOption func(*inputConfig)

type inputConfig struct{ maxLine int }

// WithMaxLine limits a line, or a record of a CSV file with the blank lines before it, to
// n bytes including its line end. A longer line is [ErrLineTooLong]. The input keeps one
// line in memory. Default [DefaultMaxLine]. WithMaxLine panics if n is below 1.
func WithMaxLine(n int) InputOption {
	if n < 1 {
		panic(fmt.Sprintf("files: WithMaxLine: %d bytes are too few for a line", n))
	}
	return func(c *inputConfig) { c.maxLine = n }
}

func configOf(options []InputOption) inputConfig {
	c := inputConfig{maxLine: DefaultMaxLine}
	for _, option := range options {
		option(&c)
	}
	return c
}

// checkStart returns the length of the byte order mark at the start of a file, or an
// error if the first bytes are not UTF-8 text.
func checkStart(f *os.File) (mark int64, err error) {
	start := make([]byte, vfs.TextStart)
	n, err := f.ReadAt(start, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("checkpoint: %w", err)
	}
	size, err := vfs.CheckText(start[:n], f.Name())
	if err != nil {
		return 0, fmt.Errorf("checkpoint: %w", err)
	}
	return int64(size), nil
}
