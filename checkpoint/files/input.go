package files

import (
	"bufio"
	"encoding/binary"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/weirflow/weir/internal/varint"
)

// filePosition is a place in a text file.
type filePosition struct {
	offset int64 // in bytes
	line   int   // lines before it
	summed bool  // positions of earlier versions are not
	sum    uint64
}

func (p filePosition) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(p.offset))
	b = binary.AppendUvarint(b, uint64(p.line))
	if p.summed {
		b = binary.BigEndian.AppendUint64(b, p.sum)
	}
	return b
}

// in returns the position with the hash of what is before it in a file. If that cannot be read, Next will fail, too.
func (p filePosition) in(f *os.File) filePosition {
	b := make([]byte, min(p.offset, tailSize))
	if _, err := f.ReadAt(b, p.offset-int64(len(b))); err == nil || len(b) == 0 {
		p.summed, p.sum = true, sumOf(b)
	}
	return p
}

func decodeFilePosition(b []byte) (filePosition, error) {
	r := varint.Reader{Rest: b}
	offset, line := r.Uvarint(), r.Uvarint()
	if r.Err != nil || len(r.Rest) > 0 && len(r.Rest) != 8 || offset > 1<<62 || line > 1<<62 {
		return filePosition{}, errors.New("checkpoint: damaged file position")
	}
	p := filePosition{offset: int64(offset), line: int(line)}
	if len(r.Rest) > 0 {
		p.summed, p.sum = true, binary.BigEndian.Uint64(r.Rest)
	}
	return p, nil
}

// seekFile moves to a position, which must be inside the file, and reports whether the line before it had no end yet.
func seekFile(f *os.File, p filePosition) (unended bool, err error) {
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if p.offset > info.Size() {
		return false, fmt.Errorf("checkpoint: %s has %d bytes, but the checkpoint resumes at byte %d: is it another file?",
			f.Name(), info.Size(), p.offset)
	}
	if p.summed && p.in(f) != p {
		return false, fmt.Errorf("checkpoint: %s at byte %d, where the checkpoint resumes: %w", f.Name(), p.offset, errOtherFile)
	}
	if _, err = f.Seek(p.offset, io.SeekStart); err != nil || p.offset == 0 {
		return false, err
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], p.offset-1)
	return last[0] != '\n', err
}

// LineInput reads a text file line by line, without the line ends. [OpenLines] opens one.
type LineInput struct {
	file    *os.File
	read    *bufio.Reader
	at      filePosition
	unended bool // the line before had no end yet
}

// OpenLines returns an input of the lines of a file. An empty line is an element, and so is a last line without line end. If
// the file grows after that, the line end must come first.
func OpenLines(path string) (*LineInput, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return &LineInput{file: f, read: bufio.NewReader(f)}, nil
}

// Next implements [checkpoint.Input].
func (in *LineInput) Next() (string, error) {
	if err := in.skipEnd(); err != nil {
		return "", err
	}
	line, err := in.read.ReadString('\n')
	if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
		return "", err
	}
	in.unended = err != nil
	in.at.offset += int64(len(line))
	in.at.line++
	return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"), nil
}

// Line returns the number of the line that Next returned last, from 1.
func (in *LineInput) Line() int { return in.at.line }

// Position implements [checkpoint.Input].
func (in *LineInput) Position() []byte { return in.at.in(in.file).encode() }

// Seek implements [checkpoint.Input].
func (in *LineInput) Seek(position []byte) error {
	at, err := decodeFilePosition(position)
	if err != nil {
		return err
	}
	unended, err := seekFile(in.file, at)
	if err != nil {
		return err
	}
	in.at, in.unended = at, unended
	in.read.Reset(in.file)
	return nil
}

// skipEnd skips the end of the line before, if the file has got it since that was read.
func (in *LineInput) skipEnd() error {
	if !in.unended {
		return nil
	}
	for _, end := range []string{"\n", "\r\n"} {
		if next, _ := in.read.Peek(len(end)); string(next) == end {
			in.unended = false
			n, err := in.read.Discard(len(end))
			in.at.offset += int64(n)
			return err
		}
	}
	return nil
}

// Close implements [checkpoint.Input]. The source closes it; another call has no effect.
func (in *LineInput) Close() error { return closeOnce(in.file) }

// closeOnce closes a file, unless it is closed.
func closeOnce(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// CSVInput reads a CSV file record by record. [OpenCSV] opens one.
type CSVInput struct {
	file   *os.File
	header []string
	read   *csv.Reader
	start  filePosition // where read began
	line   int          // on which the last record began
	lines  int          // before the next record, or before blank lines in front of it
}

// OpenCSV returns an input of the records of a CSV file after the header, its first record, which is read at once. A last record without line
// end is an element. If the file grows after that, the line end must come first.
//
// The error for a malformed record wraps a *csv.ParseError. After [csv.ErrFieldCount] the next call reads on: an input of yours around this one
// can store the record, which comes with that error, and go on.
func OpenCSV(path string) (*CSVInput, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	in := &CSVInput{file: f}
	in.begin(filePosition{})
	if in.header, err = in.Next(); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("checkpoint: header of %s: %w", path, err)
	}
	return in, nil
}

func (in *CSVInput) begin(at filePosition) {
	in.start, in.line, in.lines = at, at.line, at.line
	in.read = csv.NewReader(in.file)
	in.read.FieldsPerRecord = len(in.header) // 0, for the header itself: as many as it has
}

// Header returns the fields of the first record.
func (in *CSVInput) Header() []string { return in.header }

// Next implements [checkpoint.Input].
func (in *CSVInput) Next() ([]string, error) {
	record, err := in.read.Read()
	if errors.Is(err, io.EOF) {
		return nil, io.EOF
	}
	if len(record) > 0 { // also one that has too few or too many fields
		line, _ := in.read.FieldPos(0)
		in.line = in.start.line + line
		in.lines = in.line
		for _, field := range record {
			in.lines += strings.Count(field, "\n") // every line end in quotes is one
		}
	}
	if wrong, ok := errors.AsType[*csv.ParseError](err); ok { // its reader counts from where it began
		inFile := *wrong
		inFile.StartLine, inFile.Line = in.start.line+wrong.StartLine, in.start.line+wrong.Line
		return record, fmt.Errorf("checkpoint: %s: %w", in.file.Name(), &inFile)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s, after line %d: %w", in.file.Name(), in.line, err)
	}
	return record, nil
}

// Line returns the number of the line on which the record that Next returned last began, from 1.
func (in *CSVInput) Line() int { return in.line }

// Position implements [checkpoint.Input].
func (in *CSVInput) Position() []byte {
	return filePosition{offset: in.start.offset + in.read.InputOffset(), line: in.lines}.in(in.file).encode()
}

// Seek implements [checkpoint.Input].
func (in *CSVInput) Seek(position []byte) error {
	at, err := decodeFilePosition(position)
	if err != nil {
		return err
	}
	unended, err := seekFile(in.file, at)
	if err != nil {
		return err
	}
	in.begin(at)
	if unended { // the line that is read first is the end of that one
		in.start.line--
	}
	return nil
}

// Close implements [checkpoint.Input]. The source closes it; another call has no effect.
func (in *CSVInput) Close() error { return closeOnce(in.file) }
