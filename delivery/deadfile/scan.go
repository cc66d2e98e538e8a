package deadfile

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// piece is a part of the file that is no sound line.
type piece struct{ offset, length int64 }

// found is what a scan has found.
type found struct {
	size    int64
	lines   int
	damaged []piece // was durable, or may have been
	torn    []piece // was being written when the process or the machine stopped
	open    bool    // the last line is sound, but for its end
}

// clean reports whether the file is as it was written.
func (f *found) clean() bool { return len(f.damaged) == 0 && len(f.torn) == 0 && !f.open }

// chunk is what stands between two line ends.
type chunk struct {
	offset int64
	raw    []byte // without the line end; nil if it is longer than a line can be; not to be kept
	length int64  // with the line end
	ended  bool   // it has a line end
}

// chunks calls f for each chunk of r, in order.
func chunks(r io.Reader, f func(c chunk) error) error {
	br := bufio.NewReaderSize(r, 64<<10)
	var buf []byte
	for offset := int64(0); ; {
		c := chunk{offset: offset}
		buf = buf[:0]
		for {
			part, err := br.ReadSlice('\n')
			c.length += int64(len(part))
			if c.length <= maxLine {
				buf = append(buf, part...)
			}
			if err == nil {
				c.ended = true
				break
			}
			if err == io.EOF {
				break
			}
			if !errors.Is(err, bufio.ErrBufferFull) {
				return err
			}
		}
		if c.length == 0 {
			return nil
		}
		if c.length <= maxLine {
			c.raw = bytes.TrimSuffix(buf, []byte{'\n'})
		}
		offset += c.length
		if err := f(c); err != nil {
			return err
		}
	}
}

// scan looks through a file.
func scan(r io.Reader) (found, error) {
	var f found
	var doubtful []piece // followed by no line of a later batch yet
	var cut []bool       // of each of them: a crash can have left it so
	err := chunks(r, func(c chunk) error {
		f.size = c.offset + c.length
		l, err := parseLine(c.raw)
		if err != nil {
			doubtful = append(doubtful, piece{c.offset, c.length})
			cut = append(cut, !c.ended || bytes.IndexByte(c.raw, 0) >= 0)
			return nil
		}
		f.lines++
		f.open = !c.ended
		for len(doubtful) > 0 && doubtful[0].offset < l.batch {
			f.damaged = append(f.damaged, doubtful[0])
			doubtful, cut = doubtful[1:], cut[1:]
		}
		return nil
	})
	// What a crash cuts off has no line end, or zeros where nothing was written. All else
	// in the last batch may be damage.
	for i, p := range doubtful {
		if cut[i] {
			f.torn = append(f.torn, p)
		} else {
			f.damaged = append(f.damaged, p)
		}
	}
	return f, err
}
