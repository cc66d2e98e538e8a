package files_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
)

const bom = "\xef\xbb\xbf"

// written returns the path of a file with this text.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// all reads the rest of an input.
func all[T any](t *testing.T, in checkpoint.Input[T]) (got []T) {
	t.Helper()
	for {
		v, err := in.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		got = append(got, v)
	}
}

// Excel writes a byte order mark before "CSV UTF-8". It does not belong to the name of
// the first column, which may be in quotes.
func TestOpenCSV_ByteOrderMark(t *testing.T) {
	for _, header := range []string{"id,name", `"id",name`, `"id","name"`} {
		in, err := files.OpenCSV(written(t, bom+header+"\r\n1,Ann\r\n2,Bob\r\n"))
		require.NoError(t, err, header)
		require.Equal(t, []string{"id", "name"}, in.Header())
		at := in.Position()
		require.Equal(t, [][]string{{"1", "Ann"}, {"2", "Bob"}}, all(t, in))
		require.NoError(t, in.Seek(at))
		require.Equal(t, [][]string{{"1", "Ann"}, {"2", "Bob"}}, all(t, in))
		require.Equal(t, 3, in.Line())
		require.NoError(t, in.Close())
	}
}

func TestOpenLines_ByteOrderMark(t *testing.T) {
	for text, want := range map[string][]string{
		bom + "one\ntwo\n":    {"one", "two"},
		bom + "\n\ntwo":       {"", "", "two"},
		bom + bom + "one\n":   {bom + "one"}, // only the first is a mark
		"one\n" + bom + "two": {"one", bom + "two"},
		bom:                   nil,
		bom[:2] + "\n":        {bom[:2]},
	} {
		path := written(t, text)
		in, err := files.OpenLines(path)
		require.NoError(t, err)
		positions := [][]byte{in.Position()}
		for range want {
			_, err := in.Next()
			require.NoError(t, err)
			positions = append(positions, in.Position())
		}
		_, err = in.Next()
		require.ErrorIs(t, err, io.EOF)
		for read, at := range positions {
			require.NoError(t, in.Seek(at))
			got := all(t, in)
			require.True(t, slices.Equal(want[read:], got), "%q, after %d lines: %q", text, read, got)
		}
		require.NoError(t, in.Close())
	}
}

func TestInputsWithAByteOrderMark_FollowTheRules(t *testing.T) {
	path := written(t, bom+"id,text\n1,one\n2,two\n3,\"th\nree\"\n")
	t.Run("lines", func(t *testing.T) {
		checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[string] {
			in, err := files.OpenLines(path)
			require.NoError(t, err)
			return in
		}, nil)
	})
	t.Run("CSV", func(t *testing.T) {
		checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[[]string] {
			in, err := files.OpenCSV(path)
			require.NoError(t, err)
			return in
		}, func(a, b []string) bool { return strings.Join(a, ",") == strings.Join(b, ",") })
	})
}

// A position after the mark, before the first line, is the start of a line.
func TestOpenLines_ByteOrderMarkInAFileThatGrows(t *testing.T) {
	path := written(t, "")
	in, err := files.OpenLines(path)
	require.NoError(t, err)
	defer in.Close()
	_, err = in.Next()
	require.ErrorIs(t, err, io.EOF)
	for _, part := range []string{bom, "\n", "two\n"} {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		require.NoError(t, err)
		_, err = f.WriteString(part)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		if part == bom {
			_, err = in.Next()
			require.ErrorIs(t, err, io.EOF)
			require.NoError(t, in.Seek(in.Position()))
		}
	}
	require.Equal(t, []string{"", "two"}, all(t, in))
}

// A file that is not UTF-8 text is refused. The error has its name and the remedy.
func TestOpen_FileThatIsNotText(t *testing.T) {
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	_, err := io.WriteString(w, "id,name\n1,Ann\n2,Bob\n")
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for name, c := range map[string]struct{ text, want, remedy string }{
		"gzip":                     {zipped.String(), "gzip", "gunzip"},
		"zstd":                     {"\x28\xb5\x2f\xfdrest", "zstd", "zstd -d"},
		"xz":                       {"\xfd7zXZ\x00rest", "xz", "xz -d"},
		"bzip2":                    {"BZh91AY&SYrest", "bzip2", "bzip2 -d"},
		"zip":                      {"PK\x03\x04rest", "zip", "Excel"},
		"UTF-16, little endian":    {"\xff\xfei\x00d\x00\n\x00", "UTF-16", "iconv -f UTF-16"},
		"UTF-16, big endian":       {"\xfe\xff\x00i\x00d\x00\n", "UTF-16", "iconv -f UTF-16"},
		"UTF-32":                   {"\xff\xfe\x00\x00i\x00\x00\x00", "UTF-32", "iconv -f UTF-32"},
		"UTF-16 without a mark":    {"i\x00d\x00\n\x00", "UTF-16", "iconv -f UTF-16LE"},
		"UTF-16BE without a mark ": {"\x00i\x00d\x00\n", "UTF-16", "iconv -f UTF-16BE"},
	} {
		t.Run(name, func(t *testing.T) {
			path := written(t, c.text)
			_, lines := files.OpenLines(path)
			_, records := files.OpenCSV(path)
			for _, err := range []error{lines, records} {
				require.ErrorContains(t, err, path)
				require.ErrorContains(t, err, c.want)
				require.ErrorContains(t, err, c.remedy)
			}
		})
	}
	// Text whose first bytes are similar.
	for _, text := range []string{"", "B", "BZh", "PK", "a\x00b\n", "\xff\n", "\x1f\n", "PK\x03\n"} {
		in, err := files.OpenLines(written(t, text))
		require.NoError(t, err, "%q", text)
		require.Equal(t, strings.TrimSuffix(text, "\n"), strings.Join(all(t, in), "\n"))
		require.NoError(t, in.Close())
	}
}

// A file that was empty when it was opened is checked later, too.
func TestOpenLines_GzipWrittenLater(t *testing.T) {
	path := written(t, "")
	in, err := files.OpenLines(path)
	require.NoError(t, err)
	defer in.Close()
	require.NoError(t, os.WriteFile(path, []byte("\x1f\x8b\x08\x00\x00\n"), 0o600))
	_, err = in.Next()
	require.ErrorContains(t, err, "gzip")
}

func TestOpenCSV_EmptyFile(t *testing.T) {
	for _, text := range []string{"", bom, "\n\n"} {
		path := written(t, text)
		_, err := files.OpenCSV(path)
		require.ErrorContains(t, err, path)
		require.ErrorContains(t, err, "does not have a header")
	}
}

func TestWithMaxLine_Lines(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", ""} {
		exact := strings.Repeat("x", 10-len(end)) + end
		in, err := files.OpenLines(written(t, "first\n"+exact), files.WithMaxLine(10))
		require.NoError(t, err)
		require.Equal(t, []string{"first", strings.TrimRight(exact, "\r\n")}, all(t, in))
		require.NoError(t, in.Close())

		path := written(t, "first\nx"+exact+"next\n")
		in, err = files.OpenLines(path, files.WithMaxLine(10))
		require.NoError(t, err)
		_, err = in.Next()
		require.NoError(t, err)
		at := in.Position()
		for range 2 { // the rest of the line is not returned as a line
			_, err = in.Next()
			require.ErrorIs(t, err, files.ErrLineTooLong)
			require.ErrorContains(t, err, path+": line 2 has more than 10 bytes")
			require.ErrorContains(t, err, "WithMaxLine")
		}
		require.Equal(t, at, in.Position())
		require.NoError(t, in.Close())
	}
	assert.Panics(t, func() { files.WithMaxLine(0) })
}

// The default limit keeps a file without line ends from being read into memory.
func TestOpenLines_FileWithoutLineEnds(t *testing.T) {
	path := written(t, "")
	require.NoError(t, os.Truncate(path, 200<<20))
	in, err := files.OpenLines(path)
	require.NoError(t, err)
	defer in.Close()
	_, err = in.Next()
	require.ErrorIs(t, err, files.ErrLineTooLong)
	require.ErrorContains(t, err, "more than 16777216 bytes")

	_, err = files.OpenCSV(path)
	require.ErrorIs(t, err, files.ErrLineTooLong)
}

func TestWithMaxLine_CSV(t *testing.T) {
	open := func(text string, most int) (*files.CSVInput, error) {
		return files.OpenCSV(written(t, text), files.WithMaxLine(most))
	}
	for _, size := range []int{100, 4096, 10_000} {
		for _, end := range []string{"\n", "\r\n", ""} {
			exact := `1,"` + strings.Repeat("x\n", size)[:size-4-len(end)] + `"` + end
			require.Len(t, exact, size)
			in, err := open("id,text\n"+exact, size)
			require.NoError(t, err)
			require.Len(t, all(t, in), 1)
			require.NoError(t, in.Close())

			in, err = open("id,text\n2,two\n"+strings.Replace(exact, "x", "xx", 1), size)
			require.NoError(t, err)
			_, err = in.Next()
			require.NoError(t, err)
			at := in.Position()
			for range 2 {
				_, err = in.Next()
				require.ErrorIs(t, err, files.ErrLineTooLong, "size %d, end %q", size, end)
				require.ErrorContains(t, err, "record after line 2 has more than")
			}
			require.Equal(t, at, in.Position())
			require.NoError(t, in.Close())
		}
	}
	// A record with an unclosed quote ends at the end of the file.
	in, err := open("id,text\n1,\"open\n"+strings.Repeat("2,two\n", 100_000), 1000)
	require.NoError(t, err)
	defer in.Close()
	_, err = in.Next()
	require.ErrorIs(t, err, files.ErrLineTooLong)
	// The limit is per record: many short records are read.
	in, err = open("id,text\n"+strings.Repeat("2,two\n", 10_000), 10)
	require.NoError(t, err)
	defer in.Close()
	require.Len(t, all(t, in), 10_000)
}
