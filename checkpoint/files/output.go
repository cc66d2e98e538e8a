package files

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/varint"
	"github.com/weirflow/weir/internal/vfs"
)

// Output is a [checkpoint.Output] that appends to a file, exactly once. [NewOutput] makes one.
//
// Elements written since the last barrier go to a part file beside it (path.part-N). A barrier ends the part and makes it durable. When the
// checkpoint completes, the output appends its parts to the file, makes the file durable, and removes the parts. The state of a checkpoint has
// the length of the file before and after that, and the parts that make the difference. So a restart can bring the file to exactly this state,
// after a crash at any moment: it cuts off extra bytes, and appends missing parts again. The state has a hash of the last KiB before that
// length, too. So a file other than the checkpoint's is refused, and stays as it is. Bytes that are cut off are kept beside the file
// (path.cut-N).
//
// The file is not locked, and an Output never returns [checkpoint.ErrFenced]: a single run at a time may have it. A [DirStore] ensures that on
// one machine. On a file system that several machines share, a run may still write to it after another run has taken over.
type Output[T any] struct {
	fs        vfs.FS
	path      string
	encode    func(dst []byte, v T) ([]byte, error)
	overwrite bool
	logger    *slog.Logger

	visible   int64  // length of the file as of the last commit
	sum       uint64 // of what is before that
	tail      []byte // the end of the file and of all parts: at least tailSize bytes, if there are so many
	published []byte // the state of that
	parts     []part // ended and not committed, oldest first
	next      uint64 // number of the next part

	file    vfs.File // the part being written, or nil
	write   *bufio.Writer
	length  int64 // of the part being written
	scratch []byte
}

type part struct {
	number uint64
	length int64
}

// NewOutput returns an output that appends each element to the file at path; encode appends the bytes of an element to dst. Without a checkpoint
// to resume from the file must be empty or absent: see [Output.WithOverwrite]. Files are made with mode 0644, before the umask. It panics if
// path is empty or encode is nil.
func NewOutput[T any](path string, encode func(dst []byte, v T) ([]byte, error)) *Output[T] {
	guard.RefuseNil("checkpoint: NewOutput", "encode", encode)
	return newFileOutput("NewOutput", path, encode)
}

func newFileOutput[T any](constructor, path string, encode func(dst []byte, v T) ([]byte, error)) *Output[T] {
	if path == "" {
		panic(fmt.Sprintf("checkpoint: %s: empty path", constructor))
	}
	return &Output[T]{fs: vfs.OS(), path: path, encode: encode, logger: slog.Default()}
}

// NewLineOutput returns an output that appends each string to the file at path, with a line end; the rest is as with
// [NewOutput].
func NewLineOutput(path string) *Output[string] {
	return newFileOutput("NewLineOutput", path, func(dst []byte, v string) ([]byte, error) {
		return append(append(dst, v...), '\n'), nil
	})
}

// WithOverwrite makes o empty the file when the run does not resume from a checkpoint, and returns o. By default a file that is not empty is
// refused then: the checkpoints may be lost, or in another directory. It is called before [checkpoint.NewSink].
func (o *Output[T]) WithOverwrite() *Output[T] {
	o.overwrite = true
	return o
}

// LogTo sets the logger. A [checkpoint.Coordinator] gives an output its own.
func (o *Output[T]) LogTo(l *slog.Logger) { o.logger = l }

// fileState is the state of a checkpoint: the file has before bytes, and after bytes once the parts are appended.
type fileState struct {
	before, after int64
	parts         []part
	next          uint64

	summed              bool // states of earlier versions are not
	beforeSum, afterSum uint64
}

func (s fileState) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(s.before))
	b = binary.AppendUvarint(b, uint64(s.after))
	b = binary.AppendUvarint(b, s.next)
	b = binary.AppendUvarint(b, uint64(len(s.parts)))
	for _, p := range s.parts {
		b = binary.AppendUvarint(b, p.number)
		b = binary.AppendUvarint(b, uint64(p.length))
	}
	if s.summed {
		b = binary.BigEndian.AppendUint64(b, s.beforeSum)
		b = binary.BigEndian.AppendUint64(b, s.afterSum)
	}
	return b
}

func decodeFileState(state []byte) (s fileState, err error) {
	r, bad := varint.Reader{Rest: state}, false
	number := func() uint64 {
		v := r.Uvarint()
		bad = bad || r.Err != nil || v > 1<<62
		return v
	}
	s.before, s.after, s.next = int64(number()), int64(number()), number()
	sum := s.before
	for n := number(); n > 0 && !bad; n-- {
		p := part{number(), int64(number())}
		sum += p.length
		bad = bad || sum < 0 || p.number >= s.next || len(s.parts) > 0 && p.number <= s.parts[len(s.parts)-1].number
		s.parts = append(s.parts, p)
	}
	if bad || sum != s.after || len(r.Rest) > 0 && len(r.Rest) != 16 {
		return fileState{}, errors.New("checkpoint: damaged state of a file output")
	}
	if len(r.Rest) > 0 {
		s.summed, s.beforeSum, s.afterSum = true, binary.BigEndian.Uint64(r.Rest), binary.BigEndian.Uint64(r.Rest[8:])
	}
	return s, nil
}

func (o *Output[T]) partPath(number uint64) string {
	return fmt.Sprintf("%s.part-%d", o.path, number)
}

// FreshStart implements [checkpoint.FreshStarter].
func (o *Output[T]) FreshStart(context.Context) error {
	if err := o.CheckFresh(); err != nil {
		return err
	}
	return o.restore(fileState{})
}

// CheckFresh returns an error if FreshStart would empty a file that it must keep. It does not change the file.
func (o *Output[T]) CheckFresh() error {
	if o.overwrite {
		return nil
	}
	info, err := o.fs.Stat(o.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Size > 0 && !info.Dir:
		return fmt.Errorf("checkpoint: %s has %d bytes, but there is no checkpoint to resume from: are the checkpoints lost, "+
			"or in another directory? WithOverwrite empties the file", o.path, info.Size)
	}
	return nil
}

// Restore implements [checkpoint.Output].
func (o *Output[T]) Restore(_ context.Context, state []byte) error {
	s, err := decodeFileState(state)
	if err != nil {
		return err
	}
	if err := o.Check(state); err != nil {
		return err
	}
	found, _ := o.fs.Stat(o.path) // restore reports what is wrong with it
	if found.Size > s.after {
		kept, err := o.keepCut(s.after)
		if err != nil {
			return fmt.Errorf("checkpoint: keeping what is cut off: %w", err)
		}
		o.logger.Warn("checkpoint: an output has elements from after the checkpoint that the run resumes from: they are cut off",
			slog.String("path", o.path), slog.Int64("bytes", found.Size-s.after), slog.Int64("length", s.after), slog.String("kept in", kept))
	}
	return o.restore(s)
}

// Check returns an error if Restore cannot bring the file to a state, or if it is another file. It does not change the file.
func (o *Output[T]) Check(state []byte) error {
	s, err := decodeFileState(state)
	if err != nil {
		return err
	}
	appendParts, err := o.haveParts(s.parts)
	if err != nil {
		return err
	}
	f, err := o.open(s, appendParts, os.O_RDONLY)
	if err != nil {
		if need, _ := s.need(appendParts); need == 0 && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return f.Close()
}

// keepCut copies what is in the file from a place on to a file of its own.
func (o *Output[T]) keepCut(from int64) (path string, err error) {
	f, err := o.fs.OpenFile(o.path, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return "", err
	}
	var kept vfs.File
	for n := 1; kept == nil; n++ {
		path = fmt.Sprintf("%s.cut-%d", o.path, n)
		if kept, err = o.fs.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	_, err = io.Copy(kept, f)
	if err == nil {
		err = kept.Sync()
	}
	if err = errors.Join(err, kept.Close()); err == nil {
		err = o.fs.SyncDir(filepath.Dir(o.path))
	}
	if err != nil { // on a full disk, each restart would leave another one (law W3)
		return "", errors.Join(err, o.fs.Remove(path))
	}
	return path, nil
}

func (o *Output[T]) restore(s fileState) error {
	o.next = s.next
	complete, err := o.haveParts(s.parts)
	if err != nil {
		return err
	}
	if err := o.publish(s, complete); err != nil {
		return err
	}
	f, err := o.fs.OpenFile(o.path, os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	o.tail, err = readTail(f, s.after)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	o.sum = sumOf(o.tail)
	return o.removeParts()
}

// haveParts reports whether all parts are there. If one is not, they were committed: they are removed only after the file
// with their contents is durable.
func (o *Output[T]) haveParts(parts []part) (bool, error) {
	for _, p := range parts {
		if _, err := o.fs.Stat(o.partPath(p.number)); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

// need returns how long the file must be before the parts are appended, or with them, and the hash of what is before that.
func (s fileState) need(appendParts bool) (length int64, sum uint64) {
	if appendParts {
		return s.before, s.beforeSum
	}
	return s.after, s.afterSum
}

// open opens the file that a state is of: with all that it needs, and with the content that it knows.
func (o *Output[T]) open(s fileState, appendParts bool, flags int) (vfs.File, error) {
	need, sum := s.need(appendParts)
	f, err := o.fs.OpenFile(o.path, flags, 0o644)
	if errors.Is(err, fs.ErrNotExist) && need > 0 {
		return nil, fmt.Errorf("checkpoint: %s is not there, but had %d bytes at the checkpoint: %w", o.path, need, err)
	}
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	switch {
	case err != nil:
	case size < need:
		err = fmt.Errorf("checkpoint: %s has %d bytes, but had %d at the checkpoint: is it another file?", o.path, size, need)
	case s.summed:
		var tail []byte
		if tail, err = readTail(f, need); err == nil && sumOf(tail) != sum {
			err = fmt.Errorf("checkpoint: %s at byte %d, where the checkpoint resumes: %w", o.path, need, errOtherFile)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// publish brings the file to the state s: exactly s.after bytes. It appends the parts; without, they must be in the file.
func (o *Output[T]) publish(s fileState, appendParts bool) error {
	flags := os.O_RDWR
	if need, _ := s.need(appendParts); need == 0 {
		flags |= os.O_CREATE
	}
	f, err := o.open(s, appendParts, flags)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return err
	}
	if appendParts && len(s.parts) > 0 {
		// A crash may have cut an earlier appending off anywhere, and left the full length without the contents: the
		// length proves nothing.
		if err := f.Truncate(s.before); err != nil {
			return err
		}
		if _, err := f.Seek(s.before, io.SeekStart); err != nil {
			return err
		}
		for _, p := range s.parts {
			if err := o.appendPart(f, p); err != nil {
				return err
			}
		}
	} else if size > s.after {
		if err := f.Truncate(s.after); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := o.fs.SyncDir(filepath.Dir(o.path)); err != nil {
		return err
	}
	o.visible, o.sum, o.published = s.after, s.afterSum, s.encode()
	return nil
}

func (o *Output[T]) appendPart(to io.Writer, p part) error {
	f, err := o.fs.OpenFile(o.partPath(p.number), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if n, err := io.CopyN(to, f, p.length); err != nil {
		return fmt.Errorf("checkpoint: %s: %d of %d bytes: %w", o.partPath(p.number), n, p.length, err)
	}
	return nil
}

// removeParts removes all parts that are not committed: of an earlier run, for instance.
func (o *Output[T]) removeParts() error {
	dir, prefix := filepath.Dir(o.path), filepath.Base(o.path)+".part-"
	entries, err := o.fs.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		number, isPart := strings.CutPrefix(e.Name, prefix)
		n, err := strconv.ParseUint(number, 10, 64)
		if !isPart || err != nil || number != strconv.FormatUint(n, 10) || e.Dir {
			continue
		}
		if err := o.fs.Remove(filepath.Join(dir, e.Name)); err != nil {
			return err
		}
	}
	return nil
}

// Write implements [checkpoint.Output].
func (o *Output[T]) Write(_ context.Context, v T) error {
	var err error
	if o.scratch, err = o.encode(o.scratch[:0], v); err != nil {
		return err
	}
	if o.file == nil {
		o.file, err = o.fs.OpenFile(o.partPath(o.next), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
		if err != nil {
			return err
		}
		o.write = bufio.NewWriterSize(o.file, 64<<10)
		o.length = 0
	}
	n, err := o.write.Write(o.scratch)
	o.length += int64(n)
	o.remember(o.scratch[:n])
	return err
}

// remember keeps the end of what was written.
func (o *Output[T]) remember(b []byte) {
	b = b[max(0, len(b)-tailSize):]
	if len(o.tail)+len(b) > 8*tailSize {
		o.tail = append(o.tail[:0], o.tail[len(o.tail)-tailSize:]...)
	}
	o.tail = append(o.tail, b...)
}

// Prepare implements [checkpoint.Output].
func (o *Output[T]) Prepare(context.Context) ([]byte, error) {
	if o.file != nil {
		if err := o.endPart(); err != nil {
			return nil, err
		}
	}
	s := fileState{
		before: o.visible, after: o.visible, parts: o.parts, next: o.next,
		summed: true, beforeSum: o.sum, afterSum: sumOf(o.tail),
	}
	for _, p := range o.parts {
		s.after += p.length
	}
	return s.encode(), nil
}

func (o *Output[T]) endPart() error {
	f := o.file
	o.file = nil
	if err := o.write.Flush(); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		_ = f.Close()
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := o.fs.SyncDir(filepath.Dir(o.path)); err != nil {
		return err
	}
	o.parts = append(o.parts, part{o.next, o.length})
	o.next++
	return nil
}

// Commit implements [checkpoint.Output].
func (o *Output[T]) Commit(_ context.Context, state []byte) error {
	s, err := decodeFileState(state)
	if err != nil {
		return err
	}
	if !bytes.Equal(state, o.published) { // else again: parts may be left to remove
		if s.before != o.visible {
			return fmt.Errorf("checkpoint: %s has %d bytes committed, but the state to commit begins at %d", o.path, o.visible, s.before)
		}
		if err := o.publish(s, true); err != nil {
			return err
		}
	}
	for _, p := range s.parts {
		if err := o.fs.Remove(o.partPath(p.number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for len(o.parts) > 0 && o.parts[0].number < s.next {
		o.parts = o.parts[1:]
	}
	return nil
}

// Close implements [checkpoint.Output].
func (o *Output[T]) Close() error {
	if o.file == nil {
		return nil
	}
	err := o.file.Close() // what was not prepared is not needed
	o.file = nil
	return err
}
