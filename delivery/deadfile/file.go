package deadfile

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/benbjohnson/clock"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/internal/leases"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/vfs"
	"github.com/weirflow/weir/message"
)

// Names in the directory.
const (
	lockName    = "LOCK"
	deadName    = "dead.jsonl"
	replayName  = "replay.jsonl"
	doneName    = "replay.done"
	damagedName = "damaged.jsonl"
	tmpSuffix   = ".tmp"

	dirPerm  fs.FileMode = 0o700 // it holds users' data
	filePerm fs.FileMode = 0o600
)

// maxBatch is how many bytes are written between two syncs, about.
const maxBatch = 4 << 20

// errClosed is the error of a [File] that was closed.
var errClosed = errors.New("deadfile: closed")

// Entry is a dead letter. Without an id it gets a random id, so the same element handed
// over again after a crash is another entry. Without the time of a failure, it gets the
// time of Append.
type Entry[T any] struct {
	Value T
	Meta  message.Meta
	Cause store.Cause
}

// File keeps dead letters in a file of JSON lines. [Open] makes a File. Safe for
// concurrent use.
type File[T any] struct {
	dir    string
	fs     vfs.FS
	lock   vfs.Lock
	codec  codec.Codec[T]
	clock  clock.Clock
	logger *slog.Logger

	using   chan struct{} // capacity 1: held while what follows is used. No Mutex, which stops a synctest bubble
	file    vfs.File      // nil: to be opened
	length  int64         // of file, durable
	named   bool          // the name of file is durable
	broken  error         // nothing can be written any more
	replays bool          // a Replay is open

	mu      sync.Mutex // guards what follows
	queue   []*call
	writing bool // write runs
	closed  bool
	idle    sync.WaitGroup // write
}

// call is an Append that waits.
type call struct {
	bodies [][]byte
	done   chan error // capacity 1
}

// Open opens the dead letters in a directory, which it makes if it is missing; c encodes
// the values. A line that a crash has torn at the end of the file is cut off: it was not
// durable, so no Append has returned nil for it. A damaged line goes to damaged.jsonl,
// and is logged as an error.
//
// A directory belongs to a single File of a single process. The log is slog.Default().
// Open panics if c is nil, or if it would drop or change parts of T (codec.CheckType).
func Open[T any](dir string, c codec.Codec[T]) (*File[T], error) {
	guard.RefuseNil("deadfile: Open", "codec", c)
	err := codec.CheckType(c) // law W6
	if err != nil {
		panic(fmt.Sprintf("deadfile: Open: %v: change the type, leave the part out with the tag `json:\"-\"`, or use another codec", err))
	}
	return openOn(dir, c, settings{clock: clock.New(), logger: guard.Logger(nil), fs: vfs.OS()})
}

// settings has what tests replace, too.
type settings struct {
	clock  clock.Clock
	logger *slog.Logger
	fs     vfs.FS
}

func openOn[T any](dir string, c codec.Codec[T], s settings) (*File[T], error) {
	f := &File[T]{dir: dir, fs: s.fs, codec: c, clock: s.clock, logger: s.logger, using: make(chan struct{}, 1)}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("deadfile: opening %s: %w", dir, err)
	}
	return f, nil
}

func (f *File[T]) path(name string) string { return filepath.Join(f.dir, name) }

func (f *File[T]) open() error {
	if err := vfs.MakeDir(f.fs, f.dir, dirPerm); err != nil {
		return err
	}
	lock, err := f.fs.Lock(f.path(lockName))
	switch {
	case err == nil:
		f.lock = lock
	case !errors.Is(err, errors.ErrUnsupported):
		return err
	}
	if err := f.recover(); err != nil {
		return errors.Join(err, f.unlock())
	}
	return nil
}

func (f *File[T]) unlock() error {
	if f.lock == nil {
		return nil
	}
	return f.lock.Close()
}

// recover brings the directory to a state as after a Close. A process that was killed may
// have left names and contents that can be seen and are not durable.
func (f *File[T]) recover() error {
	infos, err := f.fs.ReadDir(f.dir)
	if err != nil {
		return err
	}
	for _, info := range infos {
		if strings.HasSuffix(info.Name, tmpSuffix) && !info.Dir {
			if err := f.fs.Remove(f.path(info.Name)); err != nil {
				return err
			}
		}
	}
	if err := f.fs.SyncDir(f.dir); err != nil {
		return err
	}
	return f.repair(deadName)
}

// repair takes out of a file what is no sound line, and makes the rest durable.
func (f *File[T]) repair(name string) error {
	file, err := f.fs.OpenFile(f.path(name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	found, err := scan(file)
	if err != nil {
		return err
	}
	if found.clean() {
		return file.Sync()
	}
	if n := total(found.torn); n > 0 {
		f.logger.Warn("deadfile: the end of the file was torn by a crash, and is cut off",
			slog.String("file", f.path(name)), slog.Int64("offset", found.torn[0].offset), slog.Int64("bytes", n))
	}
	if n := total(found.damaged); n > 0 {
		f.logger.Error("deadfile: the file is damaged; the unreadable parts are kept in "+damagedName,
			slog.String("file", f.path(name)), slog.Int64("offset", found.damaged[0].offset), slog.Int64("bytes", n))
		if err := f.keepDamaged(file, found.damaged); err != nil {
			return err
		}
	}
	return f.rewrite(name, file)
}

func total(pieces []piece) (n int64) {
	for _, p := range pieces {
		n += p.length
	}
	return n
}

// keepDamaged appends pieces of a file to that for damaged lines.
func (f *File[T]) keepDamaged(from io.ReadSeeker, pieces []piece) error {
	to, err := f.fs.OpenFile(f.path(damagedName), os.O_WRONLY|os.O_CREATE|os.O_APPEND, filePerm)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		if _, err = from.Seek(p.offset, io.SeekStart); err != nil {
			break
		}
		if _, err = io.CopyN(to, from, p.length); err != nil {
			break
		}
	}
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	return f.fs.SyncDir(f.dir)
}

// rewrite puts a file that has the sound lines only in the place of one, which it closes.
func (f *File[T]) rewrite(name string, from vfs.File) error {
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	to, err := f.fs.OpenFile(f.path(name+tmpSuffix), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, filePerm)
	if err != nil {
		return err
	}
	err = chunks(from, func(c chunk) error {
		if _, bad := parseLine(c.raw); bad == nil {
			_, err = to.Write(append(c.raw, '\n'))
		}
		return err
	})
	if err == nil {
		err = to.Sync()
	}
	if err = errors.Join(err, to.Close(), from.Close()); err != nil { // Windows does not replace an open file
		return err
	}
	if err := f.fs.Rename(f.path(name+tmpSuffix), f.path(name)); err != nil {
		return err
	}
	return f.fs.SyncDir(f.dir)
}

// Append stores dead letters. It returns nil when all of them are durable (law D1). After
// an error, some may be stored: appending them again is harmless if they have ids. Calls
// of several goroutines share a sync.
//
// If the disk is full, or a write fails otherwise, the call stores none of them, and
// later calls may succeed. After a sync that has failed the contents of the disk are
// unknown: every later call returns that error, until the directory is closed and opened
// again.
//
// If ctx ends before, Append returns its cause. It panics without an entry. An entry has
// at most 16 MiB, as a line: the error for a larger entry, or for a value that the codec
// cannot encode, matches [message.ErrRefused].
func (f *File[T]) Append(ctx context.Context, entries ...Entry[T]) error {
	if len(entries) == 0 {
		panic("deadfile: Append: no entry")
	}
	bodies := make([][]byte, len(entries))
	for i, e := range entries {
		var err error
		if bodies[i], err = f.encode(e); err != nil {
			return err
		}
	}
	return f.append(ctx, bodies)
}

// encode returns the body of a line.
func (f *File[T]) encode(e Entry[T]) ([]byte, error) {
	if e.Meta.LastFailure.IsZero() {
		e.Meta.LastFailure = f.clock.Now()
	}
	if e.Meta.ID == "" {
		e.Meta.ID = "random:" + rand.Text()
	}
	m, err := leases.Encode(f.codec, e.Value, e.Meta)
	if err != nil {
		return nil, fmt.Errorf("deadfile: %w", err)
	}
	m.Cause = e.Cause
	return bodyOf(m)
}

func (f *File[T]) append(ctx context.Context, bodies [][]byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c := &call{bodies, make(chan error, 1)}
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return errClosed
	}
	f.queue = append(f.queue, c)
	if !f.writing {
		f.writing = true
		f.idle.Go(f.write)
	}
	f.mu.Unlock()
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// write writes what waits, as long as there is something. What comes during a sync shares
// the next one.
func (f *File[T]) write() {
	for {
		f.mu.Lock()
		var calls []*call
		for size := 0; len(f.queue) > 0 && size < maxBatch; f.queue = f.queue[1:] {
			calls = append(calls, f.queue[0])
			for _, b := range f.queue[0].bodies {
				size += len(b)
			}
		}
		f.writing = len(calls) > 0
		f.mu.Unlock()
		if len(calls) == 0 {
			return
		}
		f.using <- struct{}{}
		err := f.writeBatch(calls)
		<-f.using
		for _, c := range calls {
			c.done <- err
		}
	}
}

// writeBatch makes calls durable, or nothing of them. Called with using held.
func (f *File[T]) writeBatch(calls []*call) error {
	if f.broken != nil {
		return f.broken
	}
	if err := f.checkLock(); err != nil {
		return err
	}
	if err := f.openDead(); err != nil {
		return fmt.Errorf("deadfile: %w", err)
	}
	var b []byte
	for _, c := range calls {
		for _, body := range c.bodies {
			b = appendLine(b, f.length, body)
		}
	}
	if n, err := f.file.Write(b); err != nil || n < len(b) {
		if err == nil {
			err = io.ErrShortWrite
		}
		return f.undo(fmt.Errorf("deadfile: %w", err))
	}
	if err := f.file.Sync(); err != nil { // once: see vfs.File
		f.broken = fmt.Errorf("deadfile: the contents of the disk are unknown, because a sync has failed: close and open it again: %w", err)
		_ = f.undo(nil) // else it might be read as if it were durable
		return f.broken
	}
	if !f.named {
		if err := f.fs.SyncDir(f.dir); err != nil {
			f.broken = fmt.Errorf("deadfile: %w", err)
			return f.broken
		}
		f.named = true
	}
	f.length += int64(len(b))
	return nil
}

// checkLock returns an error, for good, if the directory was taken away.
func (f *File[T]) checkLock() error {
	if f.lock == nil {
		return nil
	}
	err := f.lock.Check()
	if errors.Is(err, vfs.ErrLost) {
		f.broken = fmt.Errorf("deadfile: %w", err)
		return f.broken
	}
	return err
}

// undo takes back what was written since the last sync that has worked, because of an
// error, which it returns.
func (f *File[T]) undo(reason error) error {
	err := f.file.Truncate(f.length)
	if err == nil {
		_, err = f.file.Seek(f.length, io.SeekStart)
	}
	if err != nil && f.broken == nil {
		f.broken = errors.Join(reason, fmt.Errorf("deadfile: a partly written call cannot be undone: %w", err))
		return f.broken
	}
	return reason
}

// openDead opens the file to append to.
func (f *File[T]) openDead() error {
	if f.file != nil {
		return nil
	}
	file, err := f.fs.OpenFile(f.path(deadName), os.O_WRONLY|os.O_CREATE, filePerm)
	if err != nil {
		return err
	}
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.length, f.named = file, size, false
	return nil
}

// closeDead closes it. Nothing is to be written any more, or to another file.
func (f *File[T]) closeDead() error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	return err
}

// Close waits for calls of Append and closes the directory. While a replay
// ([File.Replay]) is open it only returns an error. Close may be called again.
func (f *File[T]) Close() error {
	f.using <- struct{}{}
	replays := f.replays
	<-f.using
	if replays {
		return errors.New("deadfile: a replay is open: close it before the file")
	}
	f.mu.Lock()
	again := f.closed
	f.closed = true
	f.mu.Unlock()
	if again {
		return nil
	}
	f.idle.Wait()
	f.using <- struct{}{}
	defer func() { <-f.using }()
	return errors.Join(f.closeDead(), f.unlock())
}
