package files

import (
	"bufio"
	"encoding/csv"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// If a part of a line cannot be read, Next does not return the rest as a line.
func TestLineThatCannotBeRead(t *testing.T) {
	path := t.TempDir() + "/in"
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	in := must(OpenLines(path))
	in.read = bufio.NewReader(io.MultiReader(strings.NewReader("one\npart of"), iotest.ErrReader(assert.AnError)))
	require.Equal(t, "one", must(in.Next()))
	at := in.Position()
	_, err := in.Next()
	require.ErrorIs(t, err, assert.AnError)
	require.Equal(t, at, in.Position())
	require.NoError(t, in.Close())
}

// A program may close an input that the source closes, too.
func TestFileInputsAreClosedTwice(t *testing.T) {
	path := t.TempDir() + "/in"
	require.NoError(t, os.WriteFile(path, []byte("a,b\n"), 0o600))
	for _, in := range []io.Closer{must(OpenLines(path)), must(OpenCSV(path))} {
		require.NoError(t, in.Close())
		require.NoError(t, in.Close())
	}
}

// An error names the line of the file even after Seek, and the following records can be
// read.
func TestCSV_ErrorNamesTheLine(t *testing.T) {
	path := t.TempDir() + "/in"
	require.NoError(t, os.WriteFile(path, []byte("a,b\n1,1\n2,2\n3\n4,4\n"), 0o600))
	in := must(OpenCSV(path))
	defer in.Close()
	for range 2 {
		must(in.Next())
	}
	at := in.Position()
	for range 2 {
		require.NoError(t, in.Seek(at))
		bad, err := in.Next()
		require.Equal(t, []string{"3"}, bad)
		require.ErrorIs(t, err, csv.ErrFieldCount)
		require.ErrorContains(t, err, "record on line 4")
		require.Equal(t, 4, in.Line())
		behind := in.Position()
		require.Equal(t, []string{"4", "4"}, must(in.Next()))
		require.NoError(t, in.Seek(behind))
		must(in.Next())
		require.Equal(t, 5, in.Line())
	}
}
