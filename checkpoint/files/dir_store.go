package files

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/testing/testhook"
	"github.com/weirflow/weir/internal/vfs"
)

// DirStore keeps each snapshot in a file, in a directory that belongs to one process at a
// time.
//
//	dir/LOCK                                    locked while the store is open, as dir is; holds the pid
//	dir/checkpoint-00000000000000000041.weir    see [checkpoint.Snapshot.WriteTo]
//	dir/checkpoint-00000000000000000042.weir
//	dir/checkpoint-00000000000000000043.weir.tmp    being written, or left over by a crash: removed by the next opening
//
// Save writes a temporary file, syncs it, renames it, syncs the directory, and only then
// removes all but the last k snapshots ([DirStore.KeepLast]). After a crash or a power
// cut at any time, the old snapshots stay, with or without the new one. Checksums detect
// later damage. Other files in the directory are left alone.
//
// DirStore assumes that a rename is atomic, and that syncs reach the disk. Where
// directories cannot be synced (Windows, some network file systems), a power cut may lose
// the last snapshots as a whole. It is safe for concurrent use.
type DirStore struct {
	dir    string // absolute
	fs     vfs.FS
	step   func(string) // before each change of the disk
	buffer int          // bytes of one write at most
	lock   vfs.Lock

	saving chan struct{} // capacity 1: held while saving or closing

	mu     sync.Mutex // guards keep, logger, files and closed
	keep   int
	logger *slog.Logger
	files  []dirFile // ascending
	closed bool

	// Guarded by saving.
	newest uint64            // the highest number perhaps on the disk
	failed [sha256.Size]byte // digest of the snapshot newest, if its Save has failed
	fenced error             // returned by each Save after another process has taken over
}

var _ checkpoint.Store = (*DirStore)(nil)

type dirFile struct {
	checkpoint.Entry
	damaged bool // as found by Load
}

const (
	lockName   = "LOCK"
	filePrefix = "checkpoint-"
	fileSuffix = ".weir"
	tmpSuffix  = ".tmp"
	fileDigits = 20 // of the highest uint64

	dirPerm  fs.FileMode = 0o700 // snapshots hold users' data
	filePerm fs.FileMode = 0o600
)

// OpenDir opens the store in a directory. It makes a missing directory and its parents;
// the directory and its files are accessible to their owner only.
//
// The error is a *[LockedError] if the directory is open already, in this process or
// another. The lock ends when the process dies. It is on the directory itself, so it
// holds even if the file LOCK is removed. If the directory is removed or replaced while
// it is open, Save returns [checkpoint.ErrFenced].
//
// Some systems guarantee less:
//
//   - Where directories cannot be locked (NFS), a second process can open the directory
//     after LOCK was removed. Then the next Save of the first process fails.
//   - A network file system must share locks between its machines. NFS does unless it is
//     mounted with local locks; others may not.
//   - AIX, Solaris, Plan 9 and WebAssembly do not have such locks, so a second process is
//     not detected. A coordinator logs a warning.
//
// Damaged snapshots, and files that cannot be removed, are logged as warnings: see
// [DirStore.LogTo].
func OpenDir(path string) (*DirStore, error) { return openDir(vfs.OS(), path) }

func openDir(fsys vfs.FS, path string) (*DirStore, error) {
	if path == "" { // filepath.Abs would accept it
		return nil, errors.New("checkpoint: opening a directory: its path is empty")
	}
	dir, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: opening directory %s: %w", path, err)
	}
	d := &DirStore{
		dir:    dir,
		fs:     fsys,
		keep:   defaultKeepLast,
		logger: guard.Logger(nil),
		step:   testhook.StoreStep(),
		buffer: 256 << 10,
		saving: make(chan struct{}, 1),
	}
	if err := d.open(); err != nil {
		if _, locked := errors.AsType[*LockedError](err); locked {
			return nil, err
		}
		return nil, fmt.Errorf("checkpoint: opening directory %s: %w", dir, err)
	}
	return d, nil
}

func (d *DirStore) open() error {
	if err := vfs.MakeDir(d.fs, d.dir, dirPerm); err != nil {
		return err
	}
	lock, err := d.fs.Lock(filepath.Join(d.dir, lockName))
	held, isHeld := errors.AsType[*vfs.HeldError](err)
	switch {
	case isHeld:
		return &LockedError{Dir: d.dir, PID: held.PID}
	case errors.Is(err, errors.ErrUnsupported):
		lock = noLock{}
	case err != nil:
		return err
	}
	d.lock = lock
	err = d.scan()
	if err == nil {
		// A process that was killed before syncing may have left a snapshot that is
		// visible but not durable.
		err = d.fs.SyncDir(d.dir)
	}
	if err != nil {
		return errors.Join(err, lock.Close())
	}
	return nil
}

type noLock struct{}

func (noLock) Check() error { return nil }
func (noLock) Close() error { return nil }

func (d *DirStore) scan() error {
	infos, err := d.fs.ReadDir(d.dir)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if info.Dir {
			continue
		}
		if name, isTmp := strings.CutSuffix(info.Name, tmpSuffix); isTmp {
			if _, ours := parseFileName(name); ours {
				if err := d.fs.Remove(filepath.Join(d.dir, info.Name)); err != nil {
					return err
				}
			}
			continue
		}
		if id, ours := parseFileName(info.Name); ours {
			d.files = append(d.files, dirFile{Entry: checkpoint.Entry{ID: id, Size: info.Size}})
			d.newest = max(d.newest, id)
		}
	}
	slices.SortFunc(d.files, func(a, b dirFile) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return nil
}

func fileName(id uint64) string {
	return fmt.Sprintf("%s%0*d%s", filePrefix, fileDigits, id, fileSuffix)
}

// parseFileName returns the number of a snapshot's file; ok is false for other names.
func parseFileName(name string) (id uint64, ok bool) {
	digits, ok := strings.CutPrefix(name, filePrefix)
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(strings.TrimSuffix(digits, fileSuffix), 10, 64)
	return id, err == nil && id > 0 && name == fileName(id)
}

func (d *DirStore) path(id uint64) string { return filepath.Join(d.dir, fileName(id)) }

const defaultKeepLast = 3

// KeepLast sets how many undamaged snapshots are kept, from the next Save on; the default
// is 3. With 1, a restart fails if that snapshot is damaged. It panics if k < 1.
func (d *DirStore) KeepLast(k int) {
	if k < 1 {
		panic(fmt.Sprintf("checkpoint: KeepLast: at least 1 must be kept, got %d", k))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.keep = k
}

// LogTo sets the logger, in place of slog.Default(): a [checkpoint.Coordinator] calls it.
// It logs a warning if the system does not have locks.
func (d *DirStore) LogTo(l *slog.Logger) {
	d.mu.Lock()
	d.logger = guard.Logger(l)
	d.mu.Unlock()
	if _, unlocked := d.lock.(noLock); unlocked {
		l.Warn("checkpoint: this system does not have locks: a second process on the directory will not be noticed",
			slog.String("dir", d.dir))
	}
}

func (d *DirStore) log() *slog.Logger {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.logger
}

// Dir returns the directory as an absolute path.
func (d *DirStore) Dir() string { return d.dir }

// Save implements [checkpoint.Store]. It waits for a running Save.
func (d *DirStore) Save(ctx context.Context, s *checkpoint.Snapshot) error {
	if err := s.Validate(); err != nil {
		return err
	}
	err := d.acquire(ctx)
	if err == nil {
		defer d.release()
		err = d.save(ctx, s)
	}
	if _, taken := errors.AsType[*checkpoint.NumberError](err); err == nil || taken || errors.Is(err, checkpoint.ErrClosed) {
		return err
	}
	return fmt.Errorf("checkpoint: saving checkpoint %d: %w", s.ID, err)
}

// acquire acquires saving, unless ctx ends first or the store is closed.
func (d *DirStore) acquire(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case d.saving <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if d.isClosed() {
		d.release()
		return checkpoint.ErrClosed
	}
	return nil
}

func (d *DirStore) release() { <-d.saving }

func (d *DirStore) isClosed() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closed
}

// save stores s so that a crash between any two steps does no harm; crash_test.go crashes
// after each. Called with saving held.
func (d *DirStore) save(ctx context.Context, s *checkpoint.Snapshot) error {
	if err := d.check(); err != nil {
		return err // never write into another process's directory
	}
	if s.ID <= d.newest {
		stored, err := d.savedBefore(s)
		if stored || err != nil {
			return err
		}
	}
	path := d.path(s.ID)
	tmp := path + tmpSuffix
	size, err := d.write(ctx, tmp, s)
	if err == nil {
		err = d.check() // again, since write may take long
	}
	if err != nil {
		d.discard(tmp)
		return err
	}
	d.newest = s.ID // now s may be on the disk, even if the next calls fail
	d.step("rename")
	err = d.fs.Rename(tmp, path)
	if err == nil {
		d.step("syncdir")
		err = d.fs.SyncDir(d.dir)
	}
	if err != nil {
		d.failed = digest(s)
		d.discard(tmp)
		d.discard(path)
		return err
	}
	d.mu.Lock()
	d.files = append(d.files, dirFile{Entry: checkpoint.Entry{ID: s.ID, Size: size}})
	d.mu.Unlock()
	d.prune()
	return nil
}

// check returns an error if another process has taken over: the lock is lost, or the
// directory has a newer checkpoint, the only sign on systems without locks. After that
// every Save fails (law P1).
func (d *DirStore) check() error {
	if d.fenced != nil {
		return d.fenced
	}
	if err := d.lock.Check(); errors.Is(err, vfs.ErrLost) {
		d.fenced = fmt.Errorf("%w: %w", err, checkpoint.ErrFenced)
		return d.fenced
	} else if err != nil {
		return err
	}
	infos, err := d.fs.ReadDir(d.dir)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if id, ours := parseFileName(info.Name); ours && id > d.newest {
			d.fenced = fmt.Errorf("%s is of another process: %w", d.path(id), checkpoint.ErrFenced)
			return d.fenced
		}
	}
	return nil
}

// savedBefore reports whether s, whose number is not new, is stored already. It returns a
// *NumberError if the number belongs to another snapshot. After a failed Save of s it
// returns false without an error.
func (d *DirStore) savedBefore(s *checkpoint.Snapshot) (stored bool, err error) {
	taken := &checkpoint.NumberError{Checkpoint: s.ID, Newest: d.newest}
	if s.ID < d.newest {
		return false, taken
	}
	d.mu.Lock()
	stored = slices.ContainsFunc(d.files, func(f dirFile) bool { return f.ID == s.ID })
	d.mu.Unlock()
	before := d.failed
	if stored {
		before, err = d.digestOf(s.ID)
		if err != nil {
			return false, err
		}
	}
	if before != digest(s) {
		return false, taken
	}
	return stored, nil
}

func digest(s *checkpoint.Snapshot) (sum [sha256.Size]byte) {
	h := sha256.New()
	_, _ = s.WriteTo(h) // cannot fail for a valid snapshot
	h.Sum(sum[:0])
	return sum
}

func (d *DirStore) digestOf(id uint64) (sum [sha256.Size]byte, err error) {
	f, err := d.fs.OpenFile(d.path(id), os.O_RDONLY, 0)
	if err != nil {
		return sum, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	h := sha256.New()
	_, err = io.Copy(h, f)
	h.Sum(sum[:0])
	return sum, err
}

func (d *DirStore) write(ctx context.Context, path string, s *checkpoint.Snapshot) (size int64, err error) {
	d.step("create")
	f, err := d.fs.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return 0, err
	}
	size, err = s.WriteTo(stepWriter{ctx, f, d.step, d.buffer})
	if err == nil {
		d.step("sync")
		err = f.Sync() // do not repeat it: see vfs.File
	}
	return size, errors.Join(err, f.Close())
}

type stepWriter struct {
	ctx  context.Context //nolint:containedctx // of a single call
	w    io.Writer
	step func(string)
	most int // bytes per write
}

func (w stepWriter) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if w.ctx.Err() != nil {
			return n, context.Cause(w.ctx)
		}
		w.step("write")
		var some int
		some, err = w.w.Write(p[n:min(len(p), n+w.most)])
		n += some
	}
	return n, err
}

// discard removes a file of a failed Save. If it fails, the next opening removes a
// temporary file, or finds a whole snapshot.
func (d *DirStore) discard(path string) { _ = d.fs.Remove(path) }

func (d *DirStore) prune() {
	d.mu.Lock()
	files, keep := slices.Clone(d.files), d.keep
	d.mu.Unlock()
	oldest, sound := len(files), 0
	for oldest > 0 && sound < keep {
		oldest--
		if !files[oldest].damaged {
			sound++
		}
	}
	removed := map[uint64]bool{}
	for _, f := range files[:oldest] {
		d.step("remove")
		if err := d.fs.Remove(d.path(f.ID)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.log().Warn("checkpoint: an old checkpoint could not be removed",
				slog.String("path", d.path(f.ID)), slog.Any("error", err))
			continue // the next Save repeats it
		}
		removed[f.ID] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files = slices.DeleteFunc(d.files, func(f dirFile) bool { return removed[f.ID] })
}

// Load implements [checkpoint.Store], and logs a damaged file.
func (d *DirStore) Load(ctx context.Context, id uint64) (*checkpoint.Snapshot, error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("checkpoint: loading checkpoint %d: %w", id, context.Cause(ctx))
	}
	d.mu.Lock()
	known := slices.ContainsFunc(d.files, func(f dirFile) bool { return f.ID == id })
	closed := d.closed
	d.mu.Unlock()
	switch {
	case closed:
		return nil, checkpoint.ErrClosed
	case !known:
		return nil, fmt.Errorf("%w: checkpoint %d in %s", checkpoint.ErrNotFound, id, d.dir)
	}
	s, err := d.read(id)
	damage, isDamage := errors.AsType[*checkpoint.CorruptError](err)
	version, isVersion := errors.AsType[*checkpoint.VersionError](err)
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: checkpoint %d: %w", checkpoint.ErrNotFound, id, err)
	case isDamage:
		damage.Path, damage.Checkpoint = d.path(id), id
		d.noteDamage(damage)
		return nil, damage
	case isVersion:
		version.Path, version.Checkpoint = d.path(id), id
		return nil, version
	default:
		return nil, fmt.Errorf("checkpoint: loading checkpoint %d: %w", id, err)
	}
}

func (d *DirStore) read(id uint64) (s *checkpoint.Snapshot, err error) {
	f, err := d.fs.OpenFile(d.path(id), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	s, err = checkpoint.ReadSnapshot(f, size)
	if err == nil && s.ID != id {
		return nil, &checkpoint.CorruptError{Reason: fmt.Sprintf("it holds checkpoint %d", s.ID)}
	}
	return s, err
}

// noteDamage logs the damage, and makes prune skip the snapshot.
func (d *DirStore) noteDamage(damage *checkpoint.CorruptError) {
	d.log().Warn("checkpoint: a checkpoint is damaged", slog.Uint64("checkpoint", damage.Checkpoint),
		slog.String("path", damage.Path), slog.String("reason", damage.Reason))
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.files {
		if d.files[i].ID == damage.Checkpoint {
			d.files[i].damaged = true
		}
	}
}

// List implements [checkpoint.Store], with the sizes of the files.
func (d *DirStore) List(context.Context) ([]checkpoint.Entry, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, checkpoint.ErrClosed
	}
	entries := make([]checkpoint.Entry, len(d.files))
	for i, f := range d.files {
		entries[i] = f.Entry
	}
	return entries, nil
}

// Close implements [checkpoint.Store]. Another process may then open the directory.
func (d *DirStore) Close() error {
	d.saving <- struct{}{}
	defer d.release()
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if closed {
		return nil
	}
	if err := d.lock.Close(); err != nil {
		return fmt.Errorf("checkpoint: closing directory %s: %w", d.dir, err)
	}
	return nil
}

// LockedError reports that a directory of checkpoints is already open.
type LockedError struct {
	Dir string
	PID int // the process that has it open; 0 if unknown
}

func (e *LockedError) Error() string {
	by := "another process"
	if e.PID != 0 {
		by = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("checkpoint: directory %s is in use by %s: a pipeline needs one of its own", e.Dir, by)
}
