package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The pages that are checked in are made of the comments that are checked in.
func TestPagesAreMadeOfTheCode(t *testing.T) {
	require.NoError(t, run([]string{"-check", "-root", "../../.."}))
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// A change of a comment makes the pages stale until they are written anew.
func TestPages_ChangedComment(t *testing.T) {
	root := t.TempDir()
	write(t, root, "go.mod", "module example.com/m\n")
	write(t, root, "docs/reference/x", "")
	const before = `package m

import ("errors"; "fmt")

// ErrBusy reports that a [Pool] has no room.
var ErrBusy = errors.New("m: busy")

type Pool struct{}

// AgeError reports an age.
type AgeError struct {
	Age int // in years
}

func (e *AgeError) Error() string { return fmt.Sprintf("m: %d years", e.Age) }

// PlaceError reports a place.
type PlaceError struct {
	Place string
	Full  bool
}

func (e *PlaceError) Error() string {
	s := fmt.Sprintf("place %d", 1)
	if e.Full {
		s = fmt.Sprintf("m: full: %s", e.Place)
	}
	if e.Place != "" {
		s = e.Place + ": " + s
	}
	s += fmt.Sprintf(": and more: %d", 1)
	return s
}

type Option func(*Pool)

// WithSize sets the size; the default is 8.
func WithSize(n int) Option { return nil }
`
	write(t, root, "m.go", before)
	require.NoError(t, run([]string{"-root", root}))
	require.NoError(t, run([]string{"-root", root, "-check"}))
	options, err := os.ReadFile(filepath.Join(root, "docs/reference/options.md"))
	require.NoError(t, err)
	require.Contains(t, string(options), "### m.WithSize\n\n`func WithSize(n int) Option`\n\nWithSize sets the size; the default is 8.\n")
	failures, err := os.ReadFile(filepath.Join(root, "docs/reference/errors.md"))
	require.NoError(t, err)
	require.Contains(t, string(failures), "| `m: busy` | [m.ErrBusy](#merrbusy) |\n| `m: full: …` | [m.PlaceError](#mplaceerror) |\n"+
		"| `m: … years` | [m.AgeError](#mageerror) |\n| `…: m: full: …` | [m.PlaceError](#mplaceerror) |\n")
	require.Contains(t, string(failures), "ErrBusy reports that a `Pool` has no room.\n")
	require.Contains(t, string(failures), "| `Age` | `int` | in years |\n")
	require.NotContains(t, string(failures), "and more", "the end of a message")

	write(t, root, "m.go", before+"\n// WithName sets the name.\nfunc WithName(s string) Option { return nil }\n")
	require.ErrorContains(t, run([]string{"-root", root, "-check"}), "options.md")
	require.NotContains(t, run([]string{"-root", root, "-check"}).Error(), "errors.md")
}
