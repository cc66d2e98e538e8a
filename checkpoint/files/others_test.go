package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/testing/crashfs"
)

// Tests for files to which another program writes, and for damaged parts: all bytes that
// are cut off are kept.

// put replaces the content of a file, without a sync.
func put(t *testing.T, fsys *crashfs.FS, name, content string) {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	require.NoError(t, err)
	_, err = f.Write([]byte(content))
	require.NoError(t, errors.Join(err, f.Close()))
}

// begunOutput has committed "zero", and prepared "one" and "two" in a part each.
func begunOutput(t *testing.T) (fsys *crashfs.FS, o *Output[string], state []byte) {
	t.Helper()
	fsys = newOutputDisk(t)
	o = newCrashOutput(fsys)
	require.NoError(t, o.FreshStart(ctx))
	require.NoError(t, o.Write(ctx, "zero"))
	require.NoError(t, o.Commit(ctx, must(o.Prepare(ctx))))
	require.NoError(t, o.Write(ctx, "one"))
	must(o.Prepare(ctx))
	require.NoError(t, o.Write(ctx, "two"))
	return fsys, o, must(o.Prepare(ctx))
}

// found has bytes that may follow "zero\n" when "one\ntwo\n" is to be published.
var found = []struct {
	behind string
	cut    string // bytes that do not belong to the run
}{
	{"", ""},
	{"o", ""},
	{"one\n", ""},
	{"one\ntw", ""},
	{"one\ntwo\n", ""},
	{"\x00\x00\x00\x00\x00\x00\x00\x00", ""}, // by a power cut
	{"one\n\x00\x00\x00\x00", ""},
	{"by hand\n", "by hand\n"},
	{"one\nby hand\n", "one\nby hand\n"},
	{"one\ntwo\nby hand\n", "by hand\n"},
	{"one\nto", "one\nto"},
	{"\x00\x00\x00\x00\x00\x00\x00\x00x", "x"},
}

func TestFileOutputCommitCutsOffOnlyItsOwn(t *testing.T) {
	for _, tt := range found {
		t.Run(fmt.Sprintf("%q", tt.behind), func(t *testing.T) {
			fsys, o, state := begunOutput(t)
			put(t, fsys, outputPath, "zero\n"+tt.behind)
			err := o.Commit(ctx, state)
			if tt.cut == "" {
				require.NoError(t, err)
				require.Equal(t, map[string]string{"/out/": "", outputPath: "zero\none\ntwo\n"}, fsys.Files())
				return
			}
			require.ErrorIs(t, err, checkpoint.ErrFenced, "another try cannot succeed")
			require.ErrorContains(t, err, fmt.Sprintf("%s has %d bytes, but this run has left it with 5", outputPath, 5+len(tt.behind)))
			require.Equal(t, "zero\n"+tt.behind, fsys.Files()[outputPath])
			require.NoError(t, o.Close())

			again := newCrashOutput(fsys)
			again.LogTo(quiet())
			require.NoError(t, again.Restore(ctx, state), "a restart goes on")
			require.Equal(t, map[string]string{"/out/": "", outputPath: "zero\none\ntwo\n", outputPath + ".cut-1": tt.cut}, fsys.Files())
		})
	}
}

func TestFileOutputRestoreKeepsWhatIsNotItsOwn(t *testing.T) {
	for _, tt := range found {
		t.Run(fmt.Sprintf("%q", tt.behind), func(t *testing.T) {
			fsys, _, state := begunOutput(t)
			put(t, fsys, outputPath, "zero\n"+tt.behind)
			var book bytes.Buffer
			o := newCrashOutput(fsys)
			o.LogTo(slog.New(slog.NewTextHandler(&book, nil)))
			require.NoError(t, o.Restore(ctx, state))
			want := map[string]string{"/out/": "", outputPath: "zero\none\ntwo\n"}
			if tt.cut != "" {
				want[outputPath+".cut-1"] = tt.cut
				require.Contains(t, book.String(), fmt.Sprintf("bytes=%d length=%d", len(tt.cut), 5+len(tt.behind)-len(tt.cut)))
			} else {
				require.Empty(t, book.String())
			}
			require.Equal(t, want, fsys.Files())
		})
	}
}

// A checkpoint without new elements does not cut off bytes of other programs, either.
func TestFileOutputCommitOfNothingCutsNothingOff(t *testing.T) {
	fsys := newOutputDisk(t)
	o := newCrashOutput(fsys)
	require.NoError(t, o.FreshStart(ctx))
	put(t, fsys, outputPath, "by hand\n")
	require.ErrorIs(t, o.Commit(ctx, must(o.Prepare(ctx))), checkpoint.ErrFenced)
	require.Equal(t, "by hand\n", fsys.Files()[outputPath])
}

// The lengths of all parts are checked before the file is cut: here an earlier attempt
// has appended the first part.
func TestFileOutputMeasuresItsPartsFirst(t *testing.T) {
	for name, tt := range map[string]struct {
		damage func(fsys *crashfs.FS) error
		want   string
	}{
		"missing": {func(fsys *crashfs.FS) error { return fsys.Remove(outputPath + ".part-2") }, "file does not exist"},
		"shorter": {func(fsys *crashfs.FS) error { put(t, fsys, outputPath+".part-2", "t"); return nil }, ".part-2 has 1 bytes, but had 4"},
		"longer":  {func(fsys *crashfs.FS) error { put(t, fsys, outputPath+".part-2", "two\n2"); return nil }, ".part-2 has 5 bytes, but had 4"},
	} {
		t.Run(name, func(t *testing.T) {
			fsys, o, state := begunOutput(t)
			put(t, fsys, outputPath, "zero\none\n")
			require.NoError(t, tt.damage(fsys))
			before := fsys.Files()
			require.ErrorContains(t, o.Commit(ctx, state), tt.want)
			require.Equal(t, before, fsys.Files())
			if name == "missing" {
				tt.want = "is it another file?" // without its parts, the state must have been published
			}
			require.ErrorContains(t, newCrashOutput(fsys).Check(state), tt.want)
			require.ErrorContains(t, newCrashOutput(fsys).Restore(ctx, state), tt.want)
			require.Equal(t, before, fsys.Files())
		})
	}
}

// Long parts are compared as a whole.
func TestFileOutputComparesLongParts(t *testing.T) {
	for _, at := range []int{0, 8<<10 - 1, 8 << 10, 30_000} {
		fsys := newOutputDisk(t)
		o := newCrashOutput(fsys)
		require.NoError(t, o.FreshStart(ctx))
		line := strings.Repeat("x", 30_000)
		require.NoError(t, o.Write(ctx, line))
		state := must(o.Prepare(ctx))
		behind := []byte(line + "\n")
		behind[at] = 'y'
		put(t, fsys, outputPath, string(behind))
		require.ErrorIs(t, o.Commit(ctx, state), checkpoint.ErrFenced)
		put(t, fsys, outputPath, line)
		require.NoError(t, o.Commit(ctx, state))
		require.Equal(t, line+"\n", fsys.Files()[outputPath])
	}
}

func TestFileOutputWithOverwriteKeepsNothing(t *testing.T) {
	fsys := newOutputDisk(t)
	put(t, fsys, outputPath, "old\n")
	require.NoError(t, newCrashOutput(fsys).WithOverwrite().FreshStart(ctx))
	require.Equal(t, map[string]string{"/out/": "", outputPath: ""}, fsys.Files())
}

func TestLineOutput_Lock(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	unlock := must(NewLineOutput(path).Lock())
	_, err := NewLineOutput(path).Lock()
	require.EqualError(t, err, fmt.Sprintf("checkpoint: %s is the output of another sink or run: locked by process %d", path, os.Getpid()))
	other := must(NewLineOutput(path + "2").Lock())
	require.NoError(t, other(), "of the same directory")
	if runtime.GOOS != "windows" { // where links require a privilege
		link := filepath.Join(t.TempDir(), "link")
		require.NoError(t, os.Symlink(dir, link))
		_, err = NewLineOutput(filepath.Join(link, "out")).Lock()
		require.ErrorContains(t, err, "is the output of another sink or run")
	}
	require.NoError(t, unlock())
	require.Empty(t, must(os.ReadDir(dir)), "nothing is left behind")

	require.NoError(t, os.WriteFile(path+".weir-lock", []byte("1\n"), 0o600)) // of a process that was killed
	unlock = must(NewLineOutput(path).Lock())
	require.NoError(t, unlock())
	require.Empty(t, must(os.ReadDir(dir)))

	_, err = NewLineOutput(filepath.Join(dir, "none", "out")).Lock()
	require.ErrorIs(t, err, fs.ErrNotExist)

	var book bytes.Buffer
	o := NewLineOutput(path)
	o.fs = lockless{o.fs}
	o.LogTo(slog.New(slog.NewTextHandler(&book, nil)))
	unlock, err = o.Lock()
	require.NoError(t, err)
	require.Nil(t, unlock)
	require.Contains(t, book.String(), "does not have locks")
}
