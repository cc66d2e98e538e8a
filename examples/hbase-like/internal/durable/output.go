package durable

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

// Output is the file of enriched flights together with the flights given up, in one
// state.
type Output struct {
	file   *files.Output[[]byte]
	kind   kind
	book   *ledger.Ledger
	lines  int // without the header
	before int // flights written or given up by earlier runs
	older  int // lines written by earlier runs
}

var (
	_ checkpoint.Output[[]byte] = (*Output)(nil)
	_ checkpoint.FreshStarter   = (*Output)(nil)
)

// kind has the settings that determine the file, and so must stay the same.
type kind struct {
	Path    string         `json:"path"`
	Format  flights.Format `json:"format"`
	Ordered bool           `json:"ordered"`
}

func (k kind) String() string {
	mode := "unordered"
	if k.Ordered {
		mode = "ordered"
	}
	return fmt.Sprintf("-out %s -format %s -mode %s", k.Path, k.Format, mode)
}

type outputState struct {
	Kind    kind          `json:"kind"`
	Lines   int           `json:"lines"`
	GivenUp []ledger.Lost `json:"givenUp"`
	File    []byte        `json:"file"`
}

// NewOutput returns the output to a file, which is untouched until Restore or FreshStart.
func NewOutput(name string, format flights.Format, ordered bool, in *Input) (*Output, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		_, err = os.Stat(filepath.Dir(path)) // the file need not exist
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("-out %s: not a regular file, which -checkpoint needs to cut it back after a crash", name)
	}
	if err != nil {
		return nil, fmt.Errorf("-out %s: %w", name, err)
	}
	if IsSameFile(in.name, path) {
		return nil, fmt.Errorf("-out %s would overwrite the input", name)
	}
	return &Output{
		file: files.NewOutput(path, func(dst, line []byte) ([]byte, error) { return append(dst, line...), nil }),
		kind: kind{Path: path, Format: format, Ordered: ordered},
		book: in.book,
	}, nil
}

// IsSameFile reports whether two names are of the same file.
func IsSameFile(a, b string) bool {
	infoA, err := os.Stat(a)
	if err != nil {
		return false
	}
	infoB, err := os.Stat(b)
	return err == nil && os.SameFile(infoA, infoB)
}

// RefuseContent returns an error if an output's file is not empty, for a run without a
// checkpoint.
func RefuseContent(name string) error {
	info, err := os.Stat(name)
	if err == nil && info.Size() > 0 {
		return fmt.Errorf("-out %s is not empty, and there is no checkpoint to go on from: remove it to start afresh", name)
	}
	return nil
}

// Lock locks the file until unlock is called.
func (o *Output) Lock() (unlock func() error, err error) { return o.file.Lock() }

// Resumed returns how many flights earlier runs have written or given up.
func (o *Output) Resumed() int { return o.before }

// ResumedLines returns how many lines earlier runs have written.
func (o *Output) ResumedLines() int { return o.older }

// FreshStart implements [checkpoint.FreshStarter]. It writes the header.
func (o *Output) FreshStart(ctx context.Context) error {
	if err := RefuseContent(o.kind.Path); err != nil {
		return err
	}
	if err := o.file.FreshStart(ctx); err != nil {
		return err
	}
	return o.file.Write(ctx, o.kind.Format.Header())
}

// Restore implements [checkpoint.Output]. The input must already be at its position, so
// that the book has the flights before it.
func (o *Output) Restore(ctx context.Context, state []byte) error {
	var s outputState
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	if s.Kind != o.kind {
		return fmt.Errorf("the checkpoint is of other flags: they were %v, now they are %v; "+
			"another output needs another -checkpoint directory", s.Kind, o.kind)
	}
	o.lines, o.older = s.Lines, s.Lines
	o.before = s.Lines + o.book.Restore(s.GivenUp)
	return o.file.Restore(ctx, s.File)
}

// Write implements [checkpoint.Output].
func (o *Output) Write(ctx context.Context, line []byte) error {
	o.lines++
	return o.file.Write(ctx, line)
}

// Prepare implements [checkpoint.Output]. The barrier has passed both look-ups, so the
// book has every flight that they gave up before it, and perhaps later ones, which
// ledger.Restore handles.
func (o *Output) Prepare(ctx context.Context) ([]byte, error) {
	file, err := o.file.Prepare(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(outputState{Kind: o.kind, Lines: o.lines, GivenUp: o.book.Lost(), File: file})
}

// Commit implements [checkpoint.Output].
func (o *Output) Commit(ctx context.Context, state []byte) error {
	var s outputState
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	return o.file.Commit(ctx, s.File)
}

// Close implements [checkpoint.Output].
func (o *Output) Close() error { return o.file.Close() }
