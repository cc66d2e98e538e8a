package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"syscall"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/vfs"
)

// Files of a directory of dead letters, as the removed package deadfile wrote them. This
// file can be removed after one release.
const (
	deadLettersName = "dead.jsonl"    // dead letters, one a line
	replayName      = "replay.jsonl"  // dead letters that a replay has taken, in the same format
	replayDoneName  = "replay.done"   // a line for each line of replay.jsonl that is done, or waits
	damagedName     = "damaged.jsonl" // damaged lines
	deadLockName    = "LOCK"          // locked by the program
)

// maxDeadLine is the longest line of these files, in bytes.
const maxDeadLine = 16 << 20

// deadDirectory is a directory of dead letters, which is only read. It is locked if
// possible.
type deadDirectory struct {
	path string
	lock vfs.Lock // nil on a system without locks, or a read-only file system
	note func(format string, args ...any)
}

// openDeadDirectory locks a directory of dead letters, unless it is on a read-only file
// system, such as a snapshot. It returns an error if a program has locked it, or if there
// are no dead letters. note reports to the user.
func openDeadDirectory(files vfs.FS, path string, note func(format string, args ...any)) (*deadDirectory, error) {
	d := &deadDirectory{path: path, note: note}
	hasLetters, err := d.has(deadLettersName)
	if err != nil {
		return nil, err
	}
	hasReplay, err := d.has(replayName)
	if err != nil {
		return nil, err
	}
	if !hasLetters && !hasReplay {
		return nil, fmt.Errorf("%s is not a directory of dead letters: it has neither %s nor %s", path, deadLettersName, replayName)
	}
	lock, err := files.Lock(filepath.Join(path, deadLockName))
	if errors.Is(err, errors.ErrUnsupported) {
		return d, nil
	}
	if _, held := errors.AsType[*vfs.HeldError](err); held {
		return nil, fmt.Errorf("%s is in use: stop the program that writes it, then import it: %w", path, err)
	}
	if errors.Is(err, syscall.EROFS) {
		note("%s is on a read-only file system and is read without its lock: check that no program writes it from elsewhere.", path)
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	d.lock = lock
	return d, nil
}

// has reports whether the directory has a file. A symbolic link to a missing file counts:
// opening it returns an error, so the file is not silently skipped.
func (d *deadDirectory) has(name string) (bool, error) {
	_, err := os.Lstat(filepath.Join(d.path, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (d *deadDirectory) close() {
	if d.lock != nil {
		_ = d.lock.Close() // it was only read
	}
}

// messages returns the dead letters: the lines of dead.jsonl, and the lines of
// replay.jsonl that are not done. If both have a message, the replay was rejected again:
// only the newer line in dead.jsonl, with more merges, is returned, even if a crash has
// lost the mark in replay.done. A line torn by a crash at a file's end was never reported
// as stored, and is skipped. Last comes an error if other lines cannot be read.
func (d *deadDirectory) messages() iter.Seq2[store.Message, error] {
	return func(yield func(store.Message, error) bool) {
		done, err := d.done()
		if err != nil {
			yield(store.Message{}, err)
			return
		}
		merges := map[string]int{} // by id, of dead.jsonl
		more, damagedLetters, err := d.file(deadLettersName, func(_ []byte, m store.Message) bool {
			merges[m.Meta.ID] = max(merges[m.Meta.ID], m.Meta.Merges)
			return yield(m, nil)
		})
		if err != nil {
			yield(store.Message{}, err)
			return
		}
		if !more {
			return
		}
		more, damagedReplay, err := d.file(replayName, func(raw []byte, m store.Message) bool {
			if done[deadMarkOf(raw)] || merges[m.Meta.ID] > m.Meta.Merges {
				return true
			}
			return yield(m, nil)
		})
		if err != nil {
			yield(store.Message{}, err)
			return
		}
		if !more {
			return
		}
		hasDamaged, err := d.has(damagedName)
		if err != nil {
			yield(store.Message{}, err)
			return
		}
		if hasDamaged {
			d.note("Lines that were damaged earlier are in %s and cannot be imported.", filepath.Join(d.path, damagedName))
		}
		damaged := damagedLetters + damagedReplay
		if damaged > 0 {
			yield(store.Message{}, fmt.Errorf("%s has damaged parts, %d in all, which were not imported: all other dead letters were read", d.path, damaged))
		}
	}
}

// file calls found for each dead letter of a file until found returns false, which makes
// more false. It also returns the number of damaged parts.
func (d *deadDirectory) file(name string, found func(raw []byte, m store.Message) bool) (more bool, damaged int, err error) {
	has, err := d.has(name)
	if err != nil || !has {
		return true, 0, err
	}
	path := filepath.Join(d.path, name)
	file, err := os.Open(path)
	if err != nil {
		return false, 0, err
	}
	defer func() { _ = file.Close() }() // it was only read
	more = true
	scan := deadScan{
		found: func(raw []byte, m store.Message) bool {
			more = found(raw, m)
			return more
		},
		damaged: func(p deadPiece) {
			damaged++
			d.note("%s is damaged: %d bytes at byte %d cannot be read", path, p.length, p.offset)
		},
		torn: func(p deadPiece) {
			d.note("%s ends with %d bytes of a line that a crash cut short; it was never reported as stored", path, p.length)
		},
	}
	err = scan.read(file)
	return more, damaged, err
}

// done returns the marks of the done lines of replay.jsonl. A line that waits for its
// next delivery is not done. A torn mark is skipped: its message is imported.
func (d *deadDirectory) done() (map[deadMark]bool, error) {
	done := make(map[deadMark]bool)
	has, err := d.has(replayDoneName)
	if err != nil || !has {
		return done, err
	}
	file, err := os.Open(filepath.Join(d.path, replayDoneName))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	err = deadPieces(file, func(p deadPiece) bool {
		mark, ok := parseDone(p.raw)
		if ok && p.ended {
			done[mark] = true
		}
		return true
	})
	return done, err
}

// deadMark names a line in replay.done: the first bytes of its SHA-256.
type deadMark [12]byte

func deadMarkOf(raw []byte) deadMark {
	sum := sha256.Sum256(raw)
	return deadMark(sum[:len(deadMark{})])
}

// parseDone reads a line of replay.done. It returns false for a waiting line, which has a
// time after its mark, and for anything else.
func parseDone(raw []byte) (mark deadMark, ok bool) {
	b, err := hex.DecodeString(string(raw))
	if err != nil || len(b) != len(mark) {
		return deadMark{}, false
	}
	return deadMark(b), true
}

type deadPiece struct {
	offset int64
	length int64  // with the line end, in bytes
	raw    []byte // without the line end, until the next piece; nil if longer than maxDeadLine
	ended  bool   // it has a line end
}

// deadPieces calls f for each piece of r until f returns false.
func deadPieces(r io.Reader, f func(p deadPiece) bool) error {
	buffered := bufio.NewReaderSize(r, 64<<10)
	var line []byte
	for offset := int64(0); ; {
		p := deadPiece{offset: offset}
		line = line[:0]
		for more := true; more; {
			part, err := buffered.ReadSlice('\n')
			more = errors.Is(err, bufio.ErrBufferFull)
			if err != nil && !more && !errors.Is(err, io.EOF) {
				return err
			}
			p.length += int64(len(part))
			p.ended = err == nil
			if p.length <= maxDeadLine {
				line = append(line, part...)
			}
		}
		if p.length == 0 {
			return nil
		}
		if p.length <= maxDeadLine {
			p.raw = bytes.TrimSuffix(line, []byte("\n"))
		}
		offset += p.length
		if !f(p) {
			return nil
		}
	}
}

// deadScan reads a file of dead letters. Its functions get the dead letters, the damaged
// parts, and the parts torn by a crash. found returns false to end the scan.
type deadScan struct {
	found   func(raw []byte, m store.Message) bool
	damaged func(p deadPiece)
	torn    func(p deadPiece)
}

// read scans a file. A batch of lines was durable before the next began, so a piece
// before a sound line's batch is damaged, not torn. A crash leaves a piece without a line
// end, or with zeros in place of the missing bytes.
func (s *deadScan) read(r io.Reader) error {
	type doubt struct {
		deadPiece

		cut bool // a crash can have left it
	}
	var doubts []doubt // pieces before any line of a later batch
	stopped := false
	err := deadPieces(r, func(p deadPiece) bool {
		batch, m, err := parseDeadLine(p.raw)
		if err != nil {
			cut := !p.ended || bytes.IndexByte(p.raw, 0) >= 0
			doubts = append(doubts, doubt{deadPiece{offset: p.offset, length: p.length}, cut})
			return true
		}
		for len(doubts) > 0 && doubts[0].offset < batch {
			s.damaged(doubts[0].deadPiece)
			doubts = doubts[1:]
		}
		stopped = !s.found(p.raw, m)
		return !stopped
	})
	if err != nil || stopped {
		return err
	}
	for _, d := range doubts {
		if d.cut {
			s.torn(d.deadPiece)
		} else {
			s.damaged(d.deadPiece)
		}
	}
	return nil
}

const (
	deadCRCBegin  = `,"crc":"`
	deadCRCEnd    = `"}`
	deadCRCLength = len(deadCRCBegin) + 8 + len(deadCRCEnd)
)

var (
	castagnoli    = crc32.MakeTable(crc32.Castagnoli)
	errNoDeadLine = errors.New("not a line of a file of dead letters")
)

// parseDeadLine reads a line without its end: a [store.Message] as JSON with a first and
// a last member. batch is the offset of the line's batch, and crc is the CRC-32C of the
// bytes before that member.
func parseDeadLine(b []byte) (batch int64, m store.Message, err error) {
	at := len(b) - deadCRCLength
	if at < 0 || string(b[at:at+len(deadCRCBegin)]) != deadCRCBegin || string(b[len(b)-len(deadCRCEnd):]) != deadCRCEnd {
		return 0, store.Message{}, errNoDeadLine
	}
	sum := fmt.Sprintf("%08x", crc32.Checksum(b[:at], castagnoli))
	if sum != string(b[at+len(deadCRCBegin):len(b)-len(deadCRCEnd)]) {
		return 0, store.Message{}, fmt.Errorf("%w: its checksum is %s", errNoDeadLine, sum)
	}
	var s struct {
		Batch int64 `json:"batch"`
	}
	err = json.Unmarshal(b, &s)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err == nil && s.Batch < 0 {
		err = fmt.Errorf("its batch is %d", s.Batch)
	}
	if err != nil {
		return 0, store.Message{}, fmt.Errorf("%w: %w", errNoDeadLine, err)
	}
	return s.Batch, m, nil
}
