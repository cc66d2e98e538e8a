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

type filePosition struct {
	offset int64  // in bytes
	line   int    // lines before it
	summed bool   // sum is set; false in older positions
	sum    uint64 // hash of the tail before offset
}

func (p filePosition) encode() []byte {
	b := binary.AppendUvarint(nil, uint64(p.offset))
	b = binary.AppendUvarint(b, uint64(p.line))
	if p.summed {
		b = binary.BigEndian.AppendUint64(b, p.sum)
	}
	return b
}

// in returns p with the hash of the bytes before it in f, or without if they cannot be
// read: then Next will fail, too.
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

// seekFile moves to a position inside the file, and reports whether the line before it
// had no end yet.
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
	_, err = f.Seek(p.offset, io.SeekStart)
	if err != nil || p.line == 0 { // at the start, or after the byte order mark
		return false, err
	}
	var last [1]byte
	_, err = f.ReadAt(last[:], p.offset-1)
	return last[0] != '\n', err
}

// LineInput reads a text file line by line, without the line ends. Make it with
// [OpenLines].
type LineInput struct {
	file    *os.File
	config  inputConfig
	read    *bufio.Reader
	at      filePosition
	unended bool  // the last line had no end when it was read
	tooLong error // set by a too long line; cleared by Seek
}

// OpenLines returns an input of the lines of a file in UTF-8. An empty line is an
// element, and so is a last line without line end, which must be appended first if the
// file grows. A byte order mark at the start is skipped. OpenLines refuses a file that is
// compressed, or in UTF-16 or UTF-32. [WithMaxLine] limits a line.
func OpenLines(path string, options ...InputOption) (*LineInput, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if _, err := checkStart(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &LineInput{file: f, config: configOf(options), read: bufio.NewReader(f)}, nil
}

// Next implements [checkpoint.Input].
func (in *LineInput) Next() (string, error) {
	if in.tooLong != nil {
		return "", in.tooLong
	}
	if err := in.skipMark(); err != nil {
		return "", err
	}
	if err := in.skipEnd(); err != nil {
		return "", err
	}
	line, err := in.readLine()
	if err != nil && (line == "" || !errors.Is(err, io.EOF)) {
		return "", err
	}
	in.unended = err != nil
	in.at.offset += int64(len(line))
	in.at.line++
	return strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r"), nil
}

// readLine reads a line with its end, if any.
func (in *LineInput) readLine() (string, error) {
	var begin []byte // of a line longer than the buffer of read
	for {
		part, err := in.read.ReadSlice('\n')
		if len(begin)+len(part) > in.config.maxLine {
			in.tooLong = fmt.Errorf("checkpoint: %s: line %d has more than %d bytes: %w", in.file.Name(), in.at.line+1, in.config.maxLine, ErrLineTooLong)
			return "", in.tooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(begin) + string(part), err
		}
		begin = append(begin, part...)
	}
}

// skipMark skips the byte order mark at the start of the file, which may have been empty
// when it was opened.
func (in *LineInput) skipMark() error {
	if in.at.offset > 0 {
		return nil
	}
	mark, err := checkStart(in.file)
	if err != nil || mark == 0 {
		return err
	}
	n, err := in.read.Discard(int(mark))
	in.at.offset += int64(n)
	return err
}

// Line returns the number of the last line that Next returned, from 1.
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
	in.at = at
	in.unended = unended
	in.tooLong = nil
	in.read.Reset(in.file)
	return nil
}

// skipEnd skips the line end of the last line, if it was appended later.
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

// Close implements [checkpoint.Input]. Another call has no effect.
func (in *LineInput) Close() error { return closeOnce(in.file) }

func closeOnce(f *os.File) error {
	if err := f.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// CSVInput reads a CSV file record by record. Make it with [OpenCSV].
type CSVInput struct {
	file    *os.File
	config  inputConfig
	header  []string
	bounded *boundedReader // the source of read
	read    *csv.Reader
	start   filePosition // where read began
	line    int          // of the last record's beginning
	lines   int          // before the next record and its blank lines
	at      int64        // end of the last record, relative to start
	tooLong error        // set by a too long record; cleared by Seek
}

// OpenCSV returns an input of the records of a CSV file in UTF-8 after the header, which
// OpenCSV reads. It treats a missing last line end, a byte order mark and other encodings
// as [OpenLines] does. [WithMaxLine] limits a record.
//
// The error for a malformed record wraps a *csv.ParseError. Next returns a record with
// the wrong number of fields together with [csv.ErrFieldCount], and then the next record.
// So your input around this one can store the record and continue.
func OpenCSV(path string, options ...InputOption) (*CSVInput, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	in := &CSVInput{file: f, config: configOf(options)}
	if err := in.readHeader(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return in, nil
}

func (in *CSVInput) readHeader() error {
	mark, err := checkStart(in.file)
	if err != nil {
		return err
	}
	if _, err := in.file.Seek(mark, io.SeekStart); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	in.begin(filePosition{offset: mark})
	in.header, err = in.Next()
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("checkpoint: %s does not have a header: its first record must name the columns", in.file.Name())
	}
	return err
}

func (in *CSVInput) begin(at filePosition) {
	in.start = at
	in.line = at.line
	in.lines = at.line
	in.at = 0
	in.tooLong = nil
	in.bounded = &boundedReader{file: in.file, limit: int64(in.config.maxLine)}
	in.read = csv.NewReader(in.bounded)
	in.read.FieldsPerRecord = len(in.header) // 0 for the header itself
}

// boundedReader reads a file, and fails when a record is longer than limit. The
// csv.Reader reads only when it has used all bytes before.
type boundedReader struct {
	file   *os.File
	limit  int64
	given  int64 // returned so far
	record int64 // offset of the current record
}

func (r *boundedReader) Read(b []byte) (int, error) {
	if r.given-r.record > r.limit {
		return 0, ErrLineTooLong
	}
	n, err := r.file.Read(b)
	r.given += int64(n)
	return n, err
}

// Header returns the fields of the first record.
func (in *CSVInput) Header() []string { return in.header }

// Next implements [checkpoint.Input].
func (in *CSVInput) Next() ([]string, error) {
	if in.tooLong != nil {
		return nil, in.tooLong
	}
	in.bounded.record = in.at
	record, err := in.read.Read()
	if errors.Is(err, io.EOF) {
		in.at = in.read.InputOffset()
		return nil, io.EOF
	}
	if errors.Is(err, ErrLineTooLong) || in.read.InputOffset()-in.at > in.bounded.limit {
		in.tooLong = fmt.Errorf("checkpoint: %s: the record after line %d has more than %d bytes: %w", in.file.Name(), in.lines, in.bounded.limit, ErrLineTooLong)
		return nil, in.tooLong
	}
	in.at = in.read.InputOffset()
	if len(record) > 0 { // even if the number of fields is wrong
		line, _ := in.read.FieldPos(0)
		in.line = in.start.line + line
		in.lines = in.line
		for _, field := range record {
			in.lines += strings.Count(field, "\n") // the reader turns quoted line ends into "\n"
		}
	}
	if wrong, ok := errors.AsType[*csv.ParseError](err); ok { // its lines are counted from start
		inFile := *wrong
		inFile.StartLine, inFile.Line = in.start.line+wrong.StartLine, in.start.line+wrong.Line
		return record, fmt.Errorf("checkpoint: %s: %w", in.file.Name(), &inFile)
	}
	if err != nil {
		return nil, fmt.Errorf("checkpoint: %s, after line %d: %w", in.file.Name(), in.line, err)
	}
	return record, nil
}

// Line returns the number of the line on which Next's last record began, from 1.
func (in *CSVInput) Line() int { return in.line }

// Position implements [checkpoint.Input].
func (in *CSVInput) Position() []byte {
	return filePosition{offset: in.start.offset + in.at, line: in.lines}.in(in.file).encode()
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
	if unended { // the reader counts the missing line end as a line
		in.start.line--
	}
	return nil
}

// Close implements [checkpoint.Input]. Another call has no effect.
func (in *CSVInput) Close() error { return closeOnce(in.file) }
