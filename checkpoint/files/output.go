package files

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/varint"
	"github.com/weirflow/weir/internal/vfs"
)

// Output is a [checkpoint.Output] that appends to a file, exactly once. Make it with
// [NewOutput].
//
// Elements written since the last barrier go to a part file beside it (path.part-N). A
// barrier ends the part and makes it durable. When the checkpoint completes, the output
// appends its parts to the file, makes the file durable, and removes the parts. The state
// of a checkpoint has the parts, and the length of the file before and after them. So
// after a crash at any time a restart cuts off extra bytes, and appends missing parts. A
// hash of the last KiB before each length detects another file, which is refused and left
// unchanged. Bytes that are cut off are kept beside the file (path.cut-N), unless they
// belong to parts that are appended again.
//
// The file belongs to a single run at a time: see [Output.Lock]. If Commit finds the file
// longer than this run left it, as by a second run on a machine that does not share
// locks, it leaves the file unchanged, and its error matches [checkpoint.ErrFenced], so
// the run fails at once.
type Output[T any] struct {
	fs        vfs.FS
	path      string
	encode    func(dst []byte, v T) ([]byte, error)
	overwrite bool
	logger    *slog.Logger

	visible   int64  // length of the file after the last commit
	sum       uint64 // hash of the tail of the file at that length
	tail      []byte // last bytes of the file and its parts: at least tailSize, unless there are fewer
	published []byte // state of the last commit
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

// NewOutput returns an output that appends each element to the file at path; encode
// appends its bytes to dst. Without a checkpoint to resume from, the file must be empty
// or missing: see [Output.WithOverwrite]. Files are created with mode 0644, before the
// umask. It panics if path is empty or encode is nil.
func NewOutput[T any](path string, encode func(dst []byte, v T) ([]byte, error)) *Output[T] {
	guard.RefuseNil("checkpoint: NewOutput", "encode", encode)
	return newFileOutput("NewOutput", path, encode)
}

func newFileOutput[T any](constructor, path string, encode func(dst []byte, v T) ([]byte, error)) *Output[T] {
	if path == "" {
		panic(fmt.Sprintf("checkpoint: %s: empty path", constructor))
	}
	return &Output[T]{fs: vfs.OS(), path: path, encode: encode, logger: guard.Logger(nil)}
}

// NewLineOutput is [NewOutput] for strings, each with a line end.
func NewLineOutput(path string) *Output[string] {
	return newFileOutput("NewLineOutput", path, func(dst []byte, v string) ([]byte, error) {
		return append(append(dst, v...), '\n'), nil
	})
}

// NewJSONLinesOutput is [NewOutput] for lines of JSON. The characters <, > and & are not
// escaped. An element that encoding/json refuses fails the run.
func NewJSONLinesOutput[T any](path string) *Output[T] {
	return newFileOutput("NewJSONLinesOutput", path, appendJSONLine[T])
}

func appendJSONLine[T any](dst []byte, v T) ([]byte, error) {
	line := bytes.NewBuffer(dst)
	encoder := json.NewEncoder(line)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(v) // with a line end
	if err != nil {
		return nil, fmt.Errorf("a line of JSON: %w", err)
	}
	return line.Bytes(), nil
}

// WithOverwrite makes o empty the file when the run does not resume from a checkpoint,
// and returns o. By default such a run refuses a file that is not empty, because the
// checkpoints may be lost or elsewhere. Call it before [checkpoint.NewSink].
func (o *Output[T]) WithOverwrite() *Output[T] {
	o.overwrite = true
	return o
}

// LogTo sets the logger. A [checkpoint.Coordinator] calls it.
func (o *Output[T]) LogTo(l *slog.Logger) { o.logger = guard.Logger(l) }

type fileState struct {
	before, after int64 // length of the file without and with the parts
	parts         []part
	next          uint64 // number of the next part

	summed              bool   // the sums are set; false in older states
	beforeSum, afterSum uint64 // hashes of the tails at before and after
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
	s.before = int64(number())
	s.after = int64(number())
	s.next = number()
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
		s.summed = true
		s.beforeSum = binary.BigEndian.Uint64(r.Rest)
		s.afterSum = binary.BigEndian.Uint64(r.Rest[8:])
	}
	return s, nil
}

func (o *Output[T]) partPath(number uint64) string {
	return fmt.Sprintf("%s.part-%d", o.path, number)
}

func (o *Output[T]) absolute() string {
	if path, err := filepath.Abs(o.path); err == nil {
		return path
	}
	return o.path
}

// Lock locks the file for a sink of a run: a [checkpoint.Coordinator] calls it at its
// Start, and unlock when the run has ended. It returns an error if another sink has the
// file, of any run in any process. The lock is on a file beside it (path.weir-lock),
// which unlock removes, and ends when the process dies. On systems without locks (see
// [OpenDir]), Lock logs a warning and returns nil.
func (o *Output[T]) Lock() (unlock func() error, err error) {
	path := o.path
	if real, err := filepath.EvalSymlinks(path); err == nil { // otherwise the file does not exist yet
		path = real
	}
	lock, err := o.fs.LockFile(path + ".weir-lock")
	held, isHeld := errors.AsType[*vfs.HeldError](err)
	switch {
	case isHeld:
		return nil, fmt.Errorf("checkpoint: %s is the output of another sink or run: %w", o.absolute(), held)
	case errors.Is(err, errors.ErrUnsupported):
		o.logger.Warn("checkpoint: this system does not have locks: another sink or run with the same output is noticed late", slog.String("path", o.path))
		return nil, nil
	case err != nil:
		return nil, err
	}
	return lock.Close, nil
}

var _ checkpoint.FreshStarter = (*Output[any])(nil)

// FreshStart implements [checkpoint.FreshStarter].
func (o *Output[T]) FreshStart(context.Context) error {
	if err := o.CheckFresh(); err != nil {
		return err
	}
	others := o.refuse
	if o.overwrite {
		others = func(int64, int64) error { return nil }
	}
	return o.restore(fileState{}, others)
}

// CheckFresh returns an error if FreshStart would empty a file that it must keep.
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
	return o.restore(s, o.keep)
}

// Check returns an error if Restore would fail, for instance for another file.
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
	defer func() { _ = f.Close() }() // opened for reading
	if !appendParts {
		return nil
	}
	_, err = o.others(f, s)
	return err
}

// keep copies the bytes from offset from to size, which a restart will cut off, to a
// file, and logs a warning.
func (o *Output[T]) keep(from, size int64) error {
	kept, err := o.keepCut(from)
	if err != nil {
		return fmt.Errorf("checkpoint: keeping what is cut off: %w", err)
	}
	o.logger.Warn("checkpoint: an output has bytes that are not of the checkpoint that the run resumes from: they are cut off",
		slog.String("path", o.path), slog.Int64("bytes", size-from), slog.Int64("length", from), slog.String("kept in", kept))
	return nil
}

// refuse returns an error: another program has written bytes after the bytes of this run.
func (o *Output[T]) refuse(_, size int64) error {
	return &strangerError{path: o.absolute(), size: size, left: o.visible}
}

type strangerError struct {
	path       string
	size, left int64
}

func (e *strangerError) Error() string {
	return fmt.Sprintf("checkpoint: %s has %d bytes, but this run has left it with %d: something else writes to it. Nothing was cut off; "+
		"a restart keeps the extra bytes beside the file, and resumes", e.path, e.size, e.left)
}

// Is makes e match ErrFenced: a repetition cannot succeed.
func (e *strangerError) Is(target error) bool { return target == checkpoint.ErrFenced }

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
		kept, err = o.fs.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	_, err = io.Copy(kept, f)
	if err == nil {
		err = kept.Sync()
	}
	err = errors.Join(err, kept.Close())
	if err == nil {
		err = o.fs.SyncDir(filepath.Dir(o.path))
	}
	if err != nil { // on a full disk, each restart would leave another (law W3)
		return "", errors.Join(err, o.fs.Remove(path))
	}
	return path, nil
}

// restore brings the file to the state s, as publish does, and removes the parts.
func (o *Output[T]) restore(s fileState, others func(from, size int64) error) error {
	o.next = s.next
	complete, err := o.haveParts(s.parts)
	if err != nil {
		return err
	}
	if err := o.publish(s, complete, others); err != nil {
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

// haveParts reports whether all parts exist. If one is missing, all were committed: parts
// are removed only after the file is durable.
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

// need returns the least length of the file, and the hash of its tail there. Without
// appendParts, the file must contain the parts.
func (s fileState) need(appendParts bool) (length int64, sum uint64) {
	if appendParts {
		return s.before, s.beforeSum
	}
	return s.after, s.afterSum
}

// open opens the file, unless it is shorter than s needs, or has another hash.
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
		tail, err = readTail(f, need)
		if err == nil && sumOf(tail) != sum {
			err = fmt.Errorf("checkpoint: %s at byte %d, where the checkpoint resumes: %w", o.path, need, errOtherFile)
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// others checks the lengths of the parts of s, and returns the offset in f after which
// bytes do not belong to s: beyond s.before, and not left by an earlier attempt to append
// the parts. It is the size of f if all bytes belong to s.
func (o *Output[T]) others(f vfs.File, s fileState) (from int64, err error) {
	size, err := f.Size()
	if err != nil {
		return 0, err
	}
	at, ours := s.before, true
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return 0, err
	}
	for _, p := range s.parts {
		n := min(p.length, size-at)
		if err := o.withPart(p, func(part vfs.File) (err error) {
			if ours {
				ours, err = leftOver(f, part, n)
			}
			return err
		}); err != nil {
			return 0, err
		}
		at += n
	}
	if !ours {
		return s.before, nil
	}
	return at, nil
}

// leftOver reports whether the next n bytes of file may come from an interrupted attempt
// to append part. A power cut leaves zeros for unwritten bytes.
func leftOver(file, part io.Reader, n int64) (bool, error) {
	var a, b [8 << 10]byte
	for n > 0 {
		got, want := a[:min(n, int64(len(a)))], b[:min(n, int64(len(b)))]
		if _, err := io.ReadFull(file, got); err != nil {
			return false, err
		}
		if _, err := io.ReadFull(part, want); err != nil {
			return false, err
		}
		for i := range got {
			if got[i] != want[i] && got[i] != 0 {
				return false, nil
			}
		}
		n -= int64(len(got))
	}
	return true, nil
}

// publish brings the file to exactly s.after bytes. It appends the parts if appendParts
// is set; otherwise the file must contain them. Before it cuts off bytes that do not
// belong to s, it calls others with their offset and the file's size, and stops at its
// error.
func (o *Output[T]) publish(s fileState, appendParts bool, others func(from, size int64) error) error {
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
	from := min(s.after, size)
	if appendParts { // check the parts before cutting off any bytes
		from, err = o.others(f, s)
		if err != nil {
			return err
		}
	}
	if from < size {
		if err := others(from, size); err != nil {
			return err
		}
	}
	if appendParts && len(s.parts) > 0 {
		// The file may have the full length without the contents after a crash.
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
	o.visible = s.after
	o.sum = s.afterSum
	o.published = s.encode()
	return nil
}

// withPart opens part p for use, if its length is p.length.
func (o *Output[T]) withPart(p part, use func(vfs.File) error) error {
	f, err := o.fs.OpenFile(o.partPath(p.number), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading
	size, err := f.Size()
	if err == nil && size != p.length {
		err = fmt.Errorf("checkpoint: %s has %d bytes, but had %d at the checkpoint", o.partPath(p.number), size, p.length)
	}
	if err != nil {
		return err
	}
	return use(f)
}

func (o *Output[T]) appendPart(to io.Writer, p part) error {
	return o.withPart(p, func(f vfs.File) error {
		if n, err := io.CopyN(to, f, p.length); err != nil {
			return fmt.Errorf("checkpoint: %s: %d of %d bytes: %w", o.partPath(p.number), n, p.length, err)
		}
		return nil
	})
}

// removeParts removes all part files, even of an earlier run.
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
	o.scratch, err = o.encode(o.scratch[:0], v)
	if err != nil {
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
	if !bytes.Equal(state, o.published) { // otherwise a repeated Commit, which may only remove parts
		if s.before != o.visible {
			return fmt.Errorf("checkpoint: %s has %d bytes committed, but the state to commit begins at %d", o.path, o.visible, s.before)
		}
		if err := o.publish(s, true, o.refuse); err != nil {
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
	err := o.file.Close() // without Flush: an unprepared part is not needed
	o.file = nil
	return err
}
