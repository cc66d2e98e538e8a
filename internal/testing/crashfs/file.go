package crashfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

type file struct {
	fs     *FS
	name   string
	flag   int
	node   *inode
	off    int
	closed bool
}

// apply changes a file's visible contents and records the change as uncertain.
func (n *inode) apply(c change) {
	n.data = c.extend(n.data)
	n.pending = append(n.pending, c)
}

// persist makes the changes since the last sync certain, whether that succeeded or
// failed. Contents lost before stay uncertain unless they were written again.
func (n *inode) persist() {
	sure := slices.Clip(n.sure)
	for _, c := range n.pending[n.lost:] {
		sure = c.extend(sure)
	}
	n.sure = bytes.Clone(sure)
	n.pending = nil
	n.lost = 0
	if !bytes.Equal(sure, n.data) {
		n.pending = []change{{off: len(n.data)}, {off: 0, bytes: bytes.Clone(n.data)}}
		n.lost = len(n.pending)
	}
}

// extend is on for contents whose capacity is the caller's: a write at their end is
// appended without copying the rest.
func (c change) extend(old []byte) []byte {
	if c.bytes != nil && c.off == len(old) {
		return append(old, c.bytes...)
	}
	return c.on(old)
}

// on returns the contents after a change. It does not modify old.
func (c change) on(old []byte) []byte {
	size := c.off
	if c.bytes != nil {
		size = max(len(old), c.off+len(c.bytes))
	}
	out := make([]byte, size)
	copy(out, old)
	copy(out[c.off:], c.bytes)
	return out
}

func (f *file) may(access int) error {
	if mode := f.flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR); mode != os.O_RDWR && mode != access {
		return syscall.EBADF
	}
	return nil
}

func (f *file) do(op string, effect func() error) error {
	if f.closed {
		return &fs.PathError{Op: op, Path: f.name, Err: fs.ErrClosed}
	}
	return f.fs.do(op, f.name, effect)
}

func (f *file) Read(p []byte) (n int, err error) {
	err = f.do("read", func() error {
		if err := f.may(os.O_RDONLY); err != nil {
			return err
		}
		if f.off < len(f.node.data) {
			n = copy(p, f.node.data[f.off:])
			f.off += n
		}
		return nil
	})
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}

func (f *file) Write(p []byte) (int, error) {
	if f.closed {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: fs.ErrClosed}
	}
	if err := f.may(os.O_WRONLY); err != nil {
		return 0, &fs.PathError{Op: "write", Path: f.name, Err: err}
	}
	fault := f.fs.call("write", f.name, "", len(p))
	n := len(p)
	if fault != nil && !fault.Done {
		n = min(n, fault.Part)
	}
	if n > 0 {
		f.fs.mu.Lock()
		if f.flag&os.O_APPEND != 0 {
			f.off = len(f.node.data)
		}
		f.node.apply(change{off: f.off, bytes: bytes.Clone(p[:n])})
		f.off += n
		f.fs.mu.Unlock()
	}
	switch {
	case fault == nil:
		return n, nil
	case fault.Err == nil:
		return len(p), nil
	default:
		return n, &fs.PathError{Op: "write", Path: f.name, Err: fault.Err}
	}
}

func (f *file) Seek(offset int64, whence int) (int64, error) {
	err := f.do("seek", func() error {
		base := map[int]int{io.SeekStart: 0, io.SeekCurrent: f.off, io.SeekEnd: len(f.node.data)}[whence]
		if to := base + int(offset); to >= 0 {
			f.off = to
			return nil
		}
		return errors.New("negative position")
	})
	return int64(f.off), err
}

func (f *file) Truncate(size int64) error {
	return f.do("truncate", func() error {
		if err := f.may(os.O_WRONLY); err != nil {
			return err
		}
		f.node.apply(change{off: int(size)})
		return nil
	})
}

func (f *file) Sync() error {
	if f.closed {
		return &fs.PathError{Op: "sync", Path: f.name, Err: fs.ErrClosed}
	}
	fault := f.fs.call("sync", f.name, "", 0)
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n := f.node
	switch {
	case fault == nil || fault.Done:
		n.persist()
	case fault.Err != nil:
		n.lost = len(n.pending)
	}
	if fault != nil && fault.Err != nil {
		return &fs.PathError{Op: "sync", Path: f.name, Err: fault.Err}
	}
	return nil
}

func (f *file) Size() (n int64, err error) {
	err = f.do("size", func() error {
		n = int64(len(f.node.data))
		return nil
	})
	return n, err
}

func (f *file) Close() error {
	err := f.do("close", func() error { return nil })
	f.closed = true
	return err
}
