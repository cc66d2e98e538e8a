package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/testing/crashfs"
)

func openTest(t *testing.T, dir string, change ...func(*DirStore)) *DirStore {
	t.Helper()
	d, err := OpenDir(dir)
	require.NoError(t, err)
	d.LogTo(quiet())
	for _, f := range change {
		f(d)
	}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestDirStore_FilesAndSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := openTest(t, dir)
	assert.Equal(t, dir, d.Dir())
	for id := uint64(1); id <= 5; id++ {
		require.NoError(t, d.Save(t.Context(), crashSnapshot(id)))
	}
	assert.Equal(t, []string{
		"LOCK", "checkpoint-00000000000000000003.weir", "checkpoint-00000000000000000004.weir", "checkpoint-00000000000000000005.weir",
	}, names(t, dir))

	if runtime.GOOS != "windows" {
		for path, want := range map[string]fs.FileMode{dir: 0o700, d.path(5): 0o600} {
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Equal(t, want, info.Mode().Perm(), path)
		}
	}
	f, err := os.Open(d.path(5))
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	s, err := checkpoint.ReadSnapshot(f, info.Size())
	require.NoError(t, err)
	assert.Equal(t, clone(crashSnapshot(5)), s)
}

// OpenDir removes temporary files of a crash, and leaves other files alone.
func TestDirStoreOpenCleansUp(t *testing.T) {
	dir := t.TempDir()
	others := []string{
		"README", "checkpoint-1.weir", "checkpoint-00000000000000000000.weir", "checkpoint-00000000000000000007.weir.bak",
		"checkpoint-0000000000000000000x.weir", "checkpoint-99999999999999999999.weir", "other.tmp", "checkpoint-1.weir.tmp",
	}
	for _, name := range append(others, "checkpoint-00000000000000000007.weir.tmp") {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "checkpoint-00000000000000000008.weir"), 0o700))
	d := openTest(t, dir)
	entries, err := d.List(t.Context())
	require.NoError(t, err)
	assert.Empty(t, entries)
	assert.ElementsMatch(t, append(others, "LOCK", "checkpoint-00000000000000000008.weir"), names(t, dir))
}

// Damaged snapshots do not count for KeepLast.
func TestDirStoreKeepsSoundOnes(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	d, err := OpenDir(dir)
	require.NoError(t, err)
	d.KeepLast(2)
	d.LogTo(slog.New(slog.NewTextHandler(&log, nil)))
	defer d.Close()
	ctx := t.Context()
	ids := func() (out []uint64) {
		entries, err := d.List(ctx)
		require.NoError(t, err)
		for _, e := range entries {
			info, err := os.Stat(d.path(e.ID))
			require.NoError(t, err)
			require.Equal(t, info.Size(), e.Size)
			out = append(out, e.ID)
		}
		return out
	}
	require.NoError(t, d.Save(ctx, crashSnapshot(1)))
	require.NoError(t, d.Save(ctx, crashSnapshot(2)))
	require.NoError(t, os.Truncate(d.path(2), 30))
	s, skipped, err := checkpoint.Latest(ctx, d)
	require.NoError(t, err)
	assert.EqualValues(t, 1, s.ID)
	require.Len(t, skipped, 1)
	assert.Equal(t, checkpoint.CorruptError{Path: d.path(2), Checkpoint: 2, Reason: "it ends in the header, after 30 bytes"}, *skipped[0])
	assert.Contains(t, log.String(), "level=WARN")
	assert.Contains(t, log.String(), "checkpoint=2")
	assert.Contains(t, log.String(), "it ends in the header")

	require.NoError(t, d.Save(ctx, crashSnapshot(3)))
	assert.Equal(t, []uint64{1, 2, 3}, func() []uint64 {
		entries, err := d.List(ctx)
		require.NoError(t, err)
		var out []uint64
		for _, e := range entries {
			out = append(out, e.ID)
		}
		return out
	}())
	require.NoError(t, d.Save(ctx, crashSnapshot(4)))
	assert.Equal(t, []uint64{3, 4}, ids())
}

func TestDirStoreNamesPathInErrors(t *testing.T) {
	dir := t.TempDir()
	d := openTest(t, dir)
	ctx := t.Context()
	require.NoError(t, d.Save(ctx, crashSnapshot(1)))

	_, err := d.Load(ctx, 2)
	require.ErrorIs(t, err, checkpoint.ErrNotFound)
	assert.Equal(t, "checkpoint: not found: checkpoint 2 in "+dir, err.Error())

	require.NoError(t, os.WriteFile(d.path(1), []byte("something else"), 0o600))
	_, err = d.Load(ctx, 1)
	assert.Equal(t, "checkpoint: checkpoint 1 ("+d.path(1)+") is damaged: it ends in the preamble, after 14 bytes", err.Error())

	require.NoError(t, os.Remove(d.path(1)))
	_, err = d.Load(ctx, 1)
	require.ErrorIs(t, err, checkpoint.ErrNotFound)
	require.ErrorIs(t, err, fs.ErrNotExist)

	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = d.Load(cancelled, 1)
	require.ErrorIs(t, err, context.Canceled)

	_, err = OpenDir(filepath.Join(dir, "LOCK", "inside"))
	require.Error(t, err)
	assert.Contains(t, err.Error(), "checkpoint: opening directory "+filepath.Join(dir, "LOCK", "inside"))
	_, err = OpenDir(filepath.Join(dir, "LOCK"))
	require.ErrorContains(t, err, "not a directory")
}

// A snapshot of an unknown version does not count as damaged.
func TestDirStoreOfALaterVersion(t *testing.T) {
	d := openTest(t, t.TempDir())
	ctx := t.Context()
	require.NoError(t, d.Save(ctx, crashSnapshot(1)))
	require.NoError(t, d.Save(ctx, crashSnapshot(2)))
	b, err := os.ReadFile(d.path(2))
	require.NoError(t, err)
	b[8] = 200
	sum := crc32.Checksum(b[:12], crc32.MakeTable(crc32.Castagnoli))
	sum = (sum>>15 | sum<<17) + 0xa282ead8 // masked: see Snapshot.WriteTo
	copy(b[12:], []byte{byte(sum), byte(sum >> 8), byte(sum >> 16), byte(sum >> 24)})
	require.NoError(t, os.WriteFile(d.path(2), b, 0o600))
	_, _, err = checkpoint.Latest(ctx, d)
	var version *checkpoint.VersionError
	require.ErrorAs(t, err, &version)
	assert.Equal(t, checkpoint.VersionError{Path: d.path(2), Checkpoint: 2, Version: 200, Supported: 2}, *version)
}

// A Save that is cancelled half-way does not leave a file, and its number stays free.
func TestDirStoreSaveIsCancelled(t *testing.T) {
	dir := t.TempDir()
	cause := errors.New("it took too long")
	ctx, cancel := context.WithCancelCause(t.Context())
	const writeBuffer = 256 << 10
	writes := 0
	d := openTest(t, dir, withStepHook(func(step string) {
		if step == "write" {
			if writes++; writes == 3 {
				cancel(cause)
			}
		}
	}))
	big := &checkpoint.Snapshot{ID: 1, States: map[string]participant.State{"a": {make([]byte, 10*writeBuffer)}, "b": {make([]byte, 10)}, "c": {make([]byte, writeBuffer)}}}
	for _, name := range []string{"d", "e", "f"} {
		big.States[name] = participant.State{make([]byte, 2*writeBuffer)}
	}
	err := d.Save(ctx, big)
	require.ErrorIs(t, err, cause)
	assert.Equal(t, "checkpoint: saving checkpoint 1: it took too long", err.Error())
	assert.Equal(t, []string{"LOCK"}, names(t, dir))
	require.NoError(t, d.Save(t.Context(), big))
}

// A Save that waits for another Save can be cancelled. Close waits for a running Save.
func TestDirStoreSavesOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		goOn := make(chan struct{})
		d := openTest(t, t.TempDir(), withStepHook(func(step string) {
			if step == "rename" {
				<-goOn
			}
		}))
		saved, second, closed := make(chan error, 1), make(chan error, 1), make(chan error, 1)
		go func() { saved <- d.Save(context.Background(), crashSnapshot(1)) }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		go func() { second <- d.Save(ctx, crashSnapshot(2)) }()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-second, context.Canceled)

		go func() { closed <- d.Close() }()
		synctest.Wait()
		assert.Empty(t, closed, "Close waits for Save")
		close(goOn)
		require.NoError(t, <-saved)
		require.NoError(t, <-closed)
	})
}

func TestDirStoreStepHook(t *testing.T) {
	var steps []string
	d := openTest(t, t.TempDir(), withStepHook(func(step string) { steps = append(steps, step) }))
	d.KeepLast(1)
	require.NoError(t, d.Save(t.Context(), crashSnapshot(1)))
	require.NoError(t, d.Save(t.Context(), crashSnapshot(2)))
	assert.Equal(t, "create write sync rename syncdir create write sync rename syncdir remove", strings.Join(steps, " "))
}

// Save succeeds even if an old file cannot be removed. The next Save repeats the removal.
func TestDirStoreCannotRemove(t *testing.T) {
	l := newLife(1)
	d, err := l.open(l.fs)
	require.NoError(t, err)
	require.NoError(t, l.save(d, 1))
	refused := 0
	l.fs.OnCall(func(c crashfs.Call) *crashfs.Fault {
		if c.Op == "remove" {
			refused++
			return &crashfs.Fault{Err: syscall.EPERM}
		}
		return nil
	})
	require.NoError(t, l.save(d, 2))
	require.NoError(t, l.save(d, 3))
	assert.Equal(t, 3, refused)
	l.fs.OnCall(nil)
	entries, err := d.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, entries, 3)
	require.NoError(t, l.save(d, 4))
	entries, err = d.List(t.Context())
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	assert.Len(t, l.fs.Files(), 6, "four directories, the lock and a snapshot")
}

func TestDirStoreOnAReadOnlyDirectory(t *testing.T) {
	if os.Geteuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("permissions do not bind us")
	}
	dir := t.TempDir()
	d, err := OpenDir(dir)
	require.NoError(t, err)
	require.NoError(t, d.Save(t.Context(), crashSnapshot(1)))
	require.NoError(t, os.Chmod(dir, 0o500))
	defer func() { require.NoError(t, os.Chmod(dir, 0o700)) }()
	err = d.Save(t.Context(), crashSnapshot(2))
	require.ErrorIs(t, err, fs.ErrPermission)
	assert.ErrorContains(t, err, dir)
	s, _, err := checkpoint.Latest(t.Context(), d)
	require.NoError(t, err)
	assert.EqualValues(t, 1, s.ID)
	require.NoError(t, d.Close())
}

func TestDirStoreIsLocked(t *testing.T) {
	dir := t.TempDir()
	d := openTest(t, dir)
	_, err := OpenDir(dir)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	assert.Equal(t, LockedError{Dir: dir, PID: os.Getpid()}, *locked)
	require.NoError(t, d.Close())
	again := openTest(t, dir)
	require.NoError(t, again.Close())
}

const holdEnv = "WEIR_TEST_HOLD_DIR"

// holdDir runs in another process: it opens the directory, and saves the checkpoints
// whose numbers it reads from the standard input.
func holdDir(dir string) {
	d, err := OpenDir(dir)
	if err != nil {
		panic(err)
	}
	fmt.Println("open")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() { // until this process or its parent is killed
		id, err := strconv.ParseUint(in.Text(), 10, 64)
		if err == nil {
			err = d.Save(context.Background(), crashSnapshot(id))
		}
		fmt.Println(err)
	}
}

// holder is a process that has a directory open.
type holder struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// holdInAnotherProcess starts this program as a holder of the directory.
func holdInAnotherProcess(t *testing.T, dir string) *holder {
	t.Helper()
	h := &holder{t: t, cmd: exec.Command(os.Args[0], "-test.run=^TestHoldDir$")}
	h.cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	h.cmd.Stderr = os.Stderr
	var err error
	h.in, err = h.cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := h.cmd.StdoutPipe()
	require.NoError(t, err)
	h.out = bufio.NewReader(stdout)
	require.NoError(t, h.cmd.Start())
	t.Cleanup(h.kill)
	require.Equal(t, "open", h.line())
	return h
}

func (h *holder) line() string {
	h.t.Helper()
	line, err := h.out.ReadString('\n')
	require.NoError(h.t, err)
	return strings.TrimSpace(line)
}

// save makes the process save a checkpoint, and returns the text of its error, or
// "<nil>".
func (h *holder) save(id uint64) string {
	h.t.Helper()
	_, err := fmt.Fprintln(h.in, id)
	require.NoError(h.t, err)
	return h.line()
}

func (h *holder) kill() {
	_ = h.cmd.Process.Kill() // it may have been killed already
	_ = h.cmd.Wait()         // it was killed
}

// TestHoldDir is the program of a holder, not a test.
func TestHoldDir(t *testing.T) {
	dir := os.Getenv(holdEnv)
	if dir == "" {
		t.Skip("started by other tests only")
	}
	holdDir(dir)
}

func TestDirStoreLockOfAKilledProcess(t *testing.T) {
	dir := t.TempDir()
	h := holdInAnotherProcess(t, dir)
	_, err := OpenDir(dir)
	var locked *LockedError
	require.ErrorAs(t, err, &locked)
	assert.Equal(t, LockedError{Dir: dir, PID: h.cmd.Process.Pid}, *locked)
	assert.Contains(t, err.Error(), dir)

	h.kill()
	d, err := OpenDir(dir)
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// If the file LOCK is removed or replaced, the directory still belongs to the process
// that has it open.
func TestDirStoreLockFileIsRemoved(t *testing.T) {
	for name, damage := range map[string]func(lock string) error{
		"removed":  os.Remove,
		"replaced": func(lock string) error { return errors.Join(os.Remove(lock), os.WriteFile(lock, nil, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			h := holdInAnotherProcess(t, dir)
			err := damage(filepath.Join(dir, lockName))
			if runtime.GOOS == "windows" {
				require.Error(t, err, "Windows does not remove an open file")
				return
			}
			require.NoError(t, err)
			_, err = OpenDir(dir)
			var locked *LockedError
			require.ErrorAs(t, err, &locked)
			assert.Equal(t, LockedError{Dir: dir}, *locked, "whose pid is not known any more")
			require.Equal(t, "<nil>", h.save(1))

			h.kill()
			d := openTest(t, dir)
			s, _, err := checkpoint.Latest(t.Context(), d)
			require.NoError(t, err)
			assert.EqualValues(t, 1, s.ID)
		})
	}
}

// If the directory is removed and a second process makes it again, the first process does
// not save there.
func TestDirStoreDirectoryIsReplaced(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows does not rename the directory of an open file")
	}
	dir := filepath.Join(t.TempDir(), "checkpoints")
	h := holdInAnotherProcess(t, dir)
	require.Equal(t, "<nil>", h.save(1))
	require.NoError(t, os.Rename(dir, dir+".old"))
	gone := h.save(2)
	assert.Contains(t, gone, "checkpoint: saving checkpoint 2: "+dir+" was removed or replaced")

	d := openTest(t, dir)
	require.NoError(t, d.Save(t.Context(), crashSnapshot(1)))
	assert.Equal(t, gone, h.save(2))
	assert.Equal(t, []string{"LOCK", "checkpoint-00000000000000000001.weir"}, names(t, dir))
	require.NoError(t, d.Save(t.Context(), crashSnapshot(2)))
}

// lockOf is a lock whose Check is the function.
type lockOf func() error

func (l lockOf) Check() error { return l() }
func (l lockOf) Close() error { return nil }

// If the lock is lost while a snapshot is written, the snapshot does not become visible.
func TestDirStoreLosesItsLockWhileWriting(t *testing.T) {
	lost := errors.New("lost")
	var written bool
	d := openTest(t, t.TempDir(), withStepHook(func(step string) { written = written || step == "write" }))
	real := d.lock
	d.lock = lockOf(func() error {
		if written {
			return lost
		}
		return nil
	})
	require.ErrorIs(t, d.Save(t.Context(), crashSnapshot(1)), lost)
	assert.True(t, written)
	assert.Equal(t, []string{"LOCK"}, names(t, d.Dir()))
	d.lock = real
	require.NoError(t, d.Save(t.Context(), crashSnapshot(1)), "its number is free")
}
