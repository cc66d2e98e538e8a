package files

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/testing/crashfs"
)

const outputPath = "/out/lines"

var ctx = context.Background()

// startOutput returns an output that was restored from a state, or started afresh if
// state is nil.
func startOutput(o *Output[string], state []byte) error {
	if state == nil {
		return o.FreshStart(ctx)
	}
	return o.Restore(ctx, state)
}

func newCrashOutput(fsys *crashfs.FS) *Output[string] {
	o := NewLineOutput(outputPath)
	o.fs = fsys
	return o
}

func newOutputDisk(t testing.TB) *crashfs.FS {
	t.Helper()
	fsys := crashfs.New()
	require.NoError(t, fsys.Mkdir("/out", 0o755))
	fsys.Settle()
	return fsys
}

// storedState is a state in a store, and the content of the file once it is committed.
type storedState struct {
	state []byte // nil before the first
	want  string
}

// outputLife writes, prepares and commits. At every call of the file system it calls
// check with the disk and the states that a store may hold then, the newest last.
type outputLife struct {
	fs     *crashfs.FS
	stored []storedState
	check  func(where string)
}

func (l *outputLife) run(name string, step func() error) error {
	l.fs.OnCall(func(c crashfs.Call) *crashfs.Fault {
		if c.Changes() {
			l.check(fmt.Sprintf("%s, before %v", name, c))
		}
		return nil
	})
	err := step()
	l.fs.OnCall(nil)
	l.check(name + ", at the end")
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return err
}

func (l *outputLife) live() error {
	o := newCrashOutput(l.fs)
	last := l.stored[len(l.stored)-1]
	if err := l.run("restore", func() error { return startOutput(o, last.state) }); err != nil {
		return err
	}
	all := last.want
	for i := range 4 {
		if i != 2 { // one checkpoint is without new elements
			for j := range 2 {
				v := fmt.Sprintf("%d%c", i, 'a'+j)
				all += v + "\n"
				if err := l.run("write", func() error { return o.Write(ctx, v) }); err != nil {
					return err
				}
			}
		}
		var state []byte
		if err := l.run("prepare", func() (err error) { state, err = o.Prepare(ctx); return err }); err != nil {
			return err
		}
		if i == 0 {
			continue // aborted: covered by the next
		}
		l.stored = append(l.stored, storedState{state, all})
		if i == 3 {
			break // stored, and not committed
		}
		if err := l.run("commit", func() error { return o.Commit(ctx, state) }); err != nil {
			return err
		}
	}
	return l.run("close", o.Close)
}

// restores returns an error if an output that is restored on a disk does not have the
// content of the state, or does not continue from there.
func restores(fsys *crashfs.FS, s storedState) error {
	before := fsys.Files()
	o := newCrashOutput(fsys)
	if err := startOutput(o, s.state); err != nil {
		return fmt.Errorf("%w\nfiles: %q", err, before)
	}
	files := fsys.Files()
	if got := files[outputPath]; got != s.want {
		return fmt.Errorf("restored %q, want %q\nfiles: %q", got, s.want, before)
	}
	maps.DeleteFunc(files, func(name, _ string) bool { return strings.Contains(name, ".cut-") })
	if len(files) != 2 {
		return fmt.Errorf("left behind: %q", files)
	}
	if err := o.Write(ctx, "next"); err != nil {
		return err
	}
	state, err := o.Prepare(ctx)
	if err != nil {
		return err
	}
	if err := o.Commit(ctx, state); err != nil {
		return err
	}
	if got := fsys.Files()[outputPath]; got != s.want+"next\n" {
		return fmt.Errorf("after the next commit: %q", got)
	}
	return nil
}

// After a power cut at any time, each stored state restores exactly its content.
func TestFileOutputSurvivesEveryCrash(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed=%t", killed), func(t *testing.T) {
			l := &outputLife{fs: newOutputDisk(t), stored: []storedState{{}}}
			disks, points := map[string]bool{}, 0
			var broken error
			look := func(where string, image *crashfs.FS) {
				for i, s := range l.stored {
					if i > 0 && len(l.stored)-i > 3 || broken != nil || s.state == nil && len(l.stored) > 1 {
						continue
					}
					key := fmt.Sprint(i, len(l.stored), image.Files())
					if disks[key] {
						continue
					}
					disks[key] = true
					if err := restores(image.Clone(), s); err != nil {
						broken = fmt.Errorf("%s, state %d of %d: %w", where, i+1, len(l.stored), err)
					}
				}
			}
			l.check = func(where string) {
				if broken != nil {
					return
				}
				points++
				if killed {
					look(where, l.fs.Clone())
					return
				}
				for image := range l.fs.Images() {
					look(where, image)
				}
			}
			for range 2 { // the second life resumes
				require.NoError(t, l.live())
			}
			require.NoError(t, broken)
			t.Logf("%d crash points, %d disks and states", points, len(disks))
		})
	}
}

// The same for a crash in Restore, on every disk that a crash in Commit may leave.
func TestFileOutputSurvivesCrashesOfRestore(t *testing.T) {
	fsys := newOutputDisk(t)
	o := newCrashOutput(fsys)
	require.NoError(t, o.FreshStart(ctx))
	require.NoError(t, o.Write(ctx, "one"))
	first := must(o.Prepare(ctx))
	require.NoError(t, o.Commit(ctx, first))
	require.NoError(t, o.Write(ctx, "two"))
	must(o.Prepare(ctx))
	require.NoError(t, o.Write(ctx, "three"))
	second := must(o.Prepare(ctx))
	require.NoError(t, o.Write(ctx, "four"))
	must(o.Prepare(ctx)) // aborted
	states := []storedState{{first, "one\n"}, {second, "one\ntwo\nthree\n"}}

	disks := map[string]*crashfs.FS{}
	collect := func(f *crashfs.FS, into map[string]*crashfs.FS) {
		for image := range f.Images() {
			into[fmt.Sprint(image.Files())] = image
		}
	}
	fsys.OnCall(func(crashfs.Call) *crashfs.Fault { collect(fsys, disks); return nil })
	require.NoError(t, o.Commit(ctx, second))
	fsys.OnCall(nil)
	collect(fsys, disks)
	checked := map[string]bool{}
	for _, disk := range disks {
		for i, s := range states {
			after := map[string]*crashfs.FS{}
			running := disk.Clone()
			running.FewTears()
			running.OnCall(func(c crashfs.Call) *crashfs.Fault {
				if c.Changes() {
					collect(running, after)
				}
				return nil
			})
			require.NoError(t, newCrashOutput(running).Restore(ctx, s.state))
			for key, image := range after {
				if key = fmt.Sprint(i, key); !checked[key] {
					checked[key] = true
					require.NoError(t, restores(image, s))
				}
			}
		}
	}
	t.Logf("%d disks, %d after restore", len(disks), len(checked))
}

func TestLineOutput_Errors(t *testing.T) {
	path := t.TempDir() + "/out"
	o := NewLineOutput(path)
	require.NoError(t, o.FreshStart(ctx))
	require.NoError(t, o.Write(ctx, "one"))
	state := must(o.Prepare(ctx))
	require.NoError(t, o.Commit(ctx, state))
	require.NoError(t, o.Commit(ctx, state), "again")
	require.ErrorContains(t, o.Commit(ctx, fileState{after: 2, parts: []part{{0, 2}}, next: 1}.encode()), "begins at 0")
	require.ErrorContains(t, o.Commit(ctx, []byte{1}), "damaged")
	require.NoError(t, o.Close())
	require.NoError(t, os.Truncate(path, 1))
	require.ErrorContains(t, NewLineOutput(path).Restore(ctx, state), "is it another file?")
	require.NoError(t, os.Remove(path))
	require.ErrorContains(t, NewLineOutput(path).Restore(ctx, state), "is not there, but had 4 bytes at the checkpoint")
	require.NoFileExists(t, path, "a failed start leaves nothing behind")
	require.Error(t, NewLineOutput(path).Restore(ctx, []byte{}))

	bad := NewOutput(path, func([]byte, int) ([]byte, error) { return nil, assert.AnError })
	require.ErrorIs(t, bad.Write(ctx, 1), assert.AnError)
	require.Panics(t, func() { NewOutput[int](path, nil) })
}

// If any call of the disk fails, the output returns an error, and a restart restores the
// last stored state.
func TestFileOutputReportsEveryFault(t *testing.T) {
	for n := 0; ; n++ {
		fsys := newOutputDisk(t)
		l := &outputLife{fs: fsys, stored: []storedState{{}}, check: func(string) {}}
		failed := ""
		o := newCrashOutput(fsys)
		calls := 0
		fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
			calls++
			if calls-1 == n && c.Op != "close" {
				failed = c.String()
				return &crashfs.Fault{Err: assert.AnError, Part: c.Len / 2}
			}
			return nil
		})
		err := func() error {
			if err := o.FreshStart(ctx); err != nil {
				return err
			}
			for _, v := range []string{"one", "two"} {
				if err := o.Write(ctx, v); err != nil {
					return err
				}
				state, err := o.Prepare(ctx)
				if err != nil {
					return err
				}
				l.stored = append(l.stored, storedState{state, l.stored[len(l.stored)-1].want + v + "\n"})
				if err := o.Commit(ctx, state); err != nil {
					return err
				}
			}
			return nil
		}()
		fsys.OnCall(nil)
		if calls <= n {
			require.NoError(t, err)
			return
		}
		if failed != "" {
			require.ErrorIs(t, err, assert.AnError, failed)
		}
		require.NoError(t, restores(fsys, l.stored[len(l.stored)-1]), failed)
	}
}

// If any number of calls in a Commit fails, a repeated Commit succeeds and publishes its
// elements once, even if a power cut follows.
func TestFileOutputCommitIsRepeatable(t *testing.T) {
	for name, fault := range map[string]crashfs.Fault{
		"without effect": {Err: assert.AnError}, "with effect": {Err: assert.AnError, Done: true}, "in part": {Err: assert.AnError, Part: 2},
	} {
		for trouble := 1; trouble <= 2; trouble++ {
			t.Run(fmt.Sprintf("%s, %d in a row", name, trouble), func(t *testing.T) {
				failed := 0
				for at := 0; ; at++ {
					fsys := newOutputDisk(t)
					o := newCrashOutput(fsys)
					require.NoError(t, o.FreshStart(ctx))
					require.NoError(t, o.Write(ctx, "zero"))
					require.NoError(t, o.Commit(ctx, must(o.Prepare(ctx))))
					require.NoError(t, o.Write(ctx, "one"))
					must(o.Prepare(ctx)) // two parts
					require.NoError(t, o.Write(ctx, "two"))
					state := must(o.Prepare(ctx))
					n, hits := 0, 0
					fsys.OnCall(func(crashfs.Call) *crashfs.Fault {
						n++
						if n-1 < at || hits == trouble {
							return nil
						}
						hits++
						return &fault
					})
					var err error
					for try := 0; ; try++ {
						require.Less(t, try, 10)
						if err = o.Commit(ctx, state); err == nil {
							break
						}
						failed++
						require.ErrorIs(t, err, assert.AnError)
					}
					fsys.OnCall(nil)
					want := storedState{state, "zero\none\ntwo\n"}
					for image := range fsys.Images() {
						require.Equal(t, want.want, image.Files()[outputPath], "it is durable: call %d", at)
						require.NoError(t, restores(image, want), "call %d", at)
					}
					if hits == 0 {
						break
					}
				}
				require.Greater(t, failed, 5)
			})
		}
	}
}

// Calls do not leave files open, except the part that is being written.
func TestFileOutputClosesItsFiles(t *testing.T) {
	for _, fails := range []string{"", "truncate", "sync", "read", "syncdir"} {
		fsys := newOutputDisk(t)
		open := 0
		fault := func(c crashfs.Call) *crashfs.Fault {
			switch c.Op {
			case "open":
				open++
			case "close":
				open--
			case fails:
				return &crashfs.Fault{Err: assert.AnError}
			}
			return nil
		}
		o := newCrashOutput(fsys)
		require.NoError(t, o.FreshStart(ctx))
		require.NoError(t, o.Write(ctx, "one"))
		state := must(o.Prepare(ctx))
		fsys.OnCall(fault)
		require.Equal(t, fails == "", o.Commit(ctx, state) == nil, fails)
		require.Zero(t, open, fails)
		require.NoError(t, o.Write(ctx, "two"))
		_, err := o.Prepare(ctx)
		require.Equal(t, fails != "sync" && fails != "syncdir", err == nil, fails)
		require.Zero(t, open, fails)
		require.NoError(t, o.Write(ctx, "three"))
		require.Equal(t, 1, open)
		require.NoError(t, o.Close())
		require.Zero(t, open, fails)
		require.NoError(t, o.Close())
		require.Zero(t, open, fails)
	}
}

// Restore logs the bytes that it cuts off.
func TestFileOutputSaysWhatItCutsOff(t *testing.T) {
	path := t.TempDir() + "/out"
	o := NewLineOutput(path)
	require.NoError(t, o.FreshStart(ctx))
	require.NoError(t, o.Write(ctx, "one"))
	first := must(o.Prepare(ctx))
	require.NoError(t, o.Commit(ctx, first))
	require.NoError(t, o.Write(ctx, "two"))
	second := must(o.Prepare(ctx))
	require.NoError(t, o.Commit(ctx, second))
	for _, tt := range []struct {
		state []byte
		want  string
	}{{second, ""}, {first, "bytes=4 length=4"}, {first, ""}} {
		var book bytes.Buffer
		o := NewLineOutput(path)
		o.LogTo(slog.New(slog.NewTextHandler(&book, nil)))
		require.NoError(t, o.Restore(ctx, tt.state))
		require.Equal(t, tt.want != "", strings.Contains(book.String(), "not of the checkpoint that the run resumes from"), book.String())
		require.Contains(t, book.String(), tt.want)
		require.NoError(t, o.Close())
	}
	require.Equal(t, "two\n", string(must(os.ReadFile(path+".cut-1"))), "it is kept")
	require.NoFileExists(t, path+".cut-2")
	nowhere := NewLineOutput(path + "/none").FreshStart(ctx)
	require.Error(t, nowhere)
	require.NotContains(t, nowhere.Error(), "had 0 bytes")
}

// W3: a restart that cannot keep the bytes that it cuts off, for instance on a full disk,
// does not leave an incomplete file.
func TestFileOutputLeavesNoHalfOfWhatItCutsOff(t *testing.T) {
	for _, op := range []string{"write", "sync", "close", "syncdir"} {
		fsys := newOutputDisk(t)
		o := newCrashOutput(fsys)
		require.NoError(t, o.FreshStart(ctx))
		first := must(o.Prepare(ctx))
		require.NoError(t, o.Write(ctx, "two"))
		require.NoError(t, o.Commit(ctx, must(o.Prepare(ctx))))
		require.NoError(t, o.Close())
		fsys.OnCall(func(c crashfs.Call) *crashfs.Fault {
			if c.Op == op && (c.Op == "syncdir" || strings.Contains(c.Name, ".cut-")) {
				return &crashfs.Fault{Err: syscall.ENOSPC, Part: 1}
			}
			return nil
		})
		for range 2 {
			again := newCrashOutput(fsys)
			again.LogTo(quiet())
			require.ErrorIs(t, again.Restore(ctx, first), syscall.ENOSPC, op)
			require.Equal(t, map[string]string{"/out/": "", outputPath: "two\n"}, fsys.Files(), op)
		}
	}
}

// An invalid state is refused before the file is changed.
func TestFileOutputRefusesDamagedStates(t *testing.T) {
	for name, s := range map[string]fileState{
		"a part that is not there yet": {after: 2, parts: []part{{1, 2}}, next: 1},
		"the same part twice":          {after: 4, parts: []part{{1, 2}, {1, 2}}, next: 2},
		"parts out of order":           {after: 4, parts: []part{{1, 2}, {0, 2}}, next: 2},
		"a length that is not theirs":  {after: 3, parts: []part{{0, 2}}, next: 1},
		"less than before":             {before: 3, after: 2},
		"too long":                     {before: 1 << 62, after: -1 << 63, parts: []part{{0, 1 << 62}}, next: 1},
	} {
		o := NewLineOutput(t.TempDir() + "/out")
		require.ErrorContains(t, o.Restore(ctx, s.encode()), "damaged", name)
		require.NoFileExists(t, o.path)
	}
	good := fileState{after: 2, parts: []part{{0, 2}}, next: 1}.encode()
	for n := range good {
		_, err := decodeFileState(good[:n])
		require.Error(t, err)
	}
	_, err := decodeFileState(append(good, 0))
	require.Error(t, err)
}

// An element may be empty in the file: its part is empty, and a repeated Commit does not
// need the part.
func TestFileOutputCommitsEmptyPartsAgain(t *testing.T) {
	fsys := newOutputDisk(t)
	o := NewOutput(outputPath, func(dst []byte, v string) ([]byte, error) { return append(dst, v...), nil })
	o.fs = fsys
	require.NoError(t, o.FreshStart(ctx))
	for _, v := range []string{"", "one", ""} {
		require.NoError(t, o.Write(ctx, v))
		state := must(o.Prepare(ctx))
		for range 2 {
			require.NoError(t, o.Commit(ctx, state), "%q", v)
		}
	}
	require.Equal(t, "one", fsys.Files()[outputPath])
}

func FuzzDecodeFileState(f *testing.F) {
	f.Add(fileState{before: 3, after: 10, parts: []part{{4, 7}}, next: 5}.encode())
	f.Add(fileState{}.encode())
	f.Add(fileState{before: 3, after: 3, summed: true, beforeSum: 1, afterSum: 1 << 60}.encode())
	f.Add([]byte{0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeFileState(b)
		if err != nil {
			return
		}
		require.Equal(t, b, s.encode())
		require.LessOrEqual(t, s.before, s.after)
		require.LessOrEqual(t, len(s.parts), len(b))
	})
}

func FuzzDecodeFilePosition(f *testing.F) {
	f.Add(filePosition{offset: 1 << 40, line: 3}.encode())
	f.Add(filePosition{offset: 1 << 40, line: 3, summed: true, sum: 5}.encode())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := decodeFilePosition(b); err == nil {
			require.False(t, p.offset < 0 || p.line < 0)
			require.Equal(t, b, p.encode())
		}
	})
}

// Only files with the name of a part are removed.
func TestFileOutputRemovesItsPartsOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	mine, others := []string{".part-0", ".part-7"}, []string{".part-007", ".part-", ".part-x", ".part-7.bak", ".part-18446744073709551616"}
	for _, suffix := range slices.Concat(mine, others) {
		require.NoError(t, os.WriteFile(path+suffix, nil, 0o600))
	}
	require.NoError(t, os.Mkdir(path+".part-8", 0o700))
	others = append(others, ".part-8", "/../7") // the second is a file beside it whose whole name is a number
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), "7"), nil, 0o600))
	o := NewLineOutput(path)
	require.NoError(t, o.FreshStart(ctx))
	require.NoError(t, o.Close())
	for _, suffix := range mine {
		require.NoFileExists(t, path+suffix)
	}
	for _, suffix := range others {
		_, err := os.Stat(filepath.Clean(path + suffix))
		require.NoError(t, err)
	}
}
