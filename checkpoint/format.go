package checkpoint

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"time"

	"github.com/weirflow/weir/checkpoint/participant"
)

// The format of a checkpoint file. Numbers are little endian. Checksums are CRC-32C,
// masked where another checksum covers them.
//
//	preamble  magic "\x89WEIRCK\n" | version u32 | checksum of both u32
//	header    checkpoint u64 | seconds i64 | nanoseconds u32 | number of states u32 | kind u8 | checksum of the header u32
//	state ×n  length of name u32 | length of data u64 | name | checksum of these u32 | data | checksum of data u32
//	trailer   length of the file u64 | checksum of all before it u32 | "\nRIEW\x89\r\n"
//
// Version 1 had no kind, which is read as periodic.
//
// The preamble is the same in all versions, so that a reader can tell an unknown version
// from damage. A length is used only after its checksum was verified, and is limited by
// the size of the file. States are in the order of names, without duplicates. Bytes above
// 127 and both line ends reveal a transfer as text.
const (
	writeBuffer = 256 << 10

	magic         = "\x89WEIRCK\n"
	endMark       = "\nRIEW\x89\r\n"
	formatVersion = 2

	preambleSize    = len(magic) + 4 + 4
	headerSize      = 8 + 8 + 4 + 4 + 1 + 4
	stateHeaderSize = 4 + 8 // before the name
	checksumSize    = 4
	trailerSize     = 8 + 4 + len(endMark)
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// mask changes the checksum of a part, as LevelDB does. Without it the file's checksum
// would not detect a part replaced by the same part of another file, because the CRC of
// bytes followed by their CRC is constant.
func mask(sum uint32) uint32 { return (sum>>15 | sum<<17) + 0xa282ead8 }

func partSum(p []byte) uint32 { return mask(crc32.Checksum(p, castagnoli)) }

// WriteTo writes s in the format of weir's own stores: versioned, with checksums, read by
// [ReadSnapshot]. It buffers small writes.
func (s *Snapshot) WriteTo(w io.Writer) (int64, error) {
	if err := s.Validate(); err != nil {
		return 0, err
	}
	if uint64(len(s.States)) > math.MaxUint32 {
		return 0, fmt.Errorf("%w: checkpoint %d has %d participants", errInvalidSnapshot, s.ID, len(s.States))
	}
	f := fileWriter{w: bufio.NewWriterSize(w, writeBuffer), buf: make([]byte, 0, 128)}
	f.preamble()
	f.header(s)
	for _, name := range s.Names() {
		f.state(name, s.States[name])
	}
	f.trailer()
	if f.err == nil {
		f.err = f.w.Flush()
	}
	return f.n, f.err
}

type fileWriter struct {
	w   *bufio.Writer
	n   int64
	sum uint32 // of the bytes written
	buf []byte // for small parts
	err error
}

func (f *fileWriter) write(p []byte) {
	if f.err != nil {
		return
	}
	n, err := f.w.Write(p)
	f.n += int64(n)
	f.sum = crc32.Update(f.sum, castagnoli, p[:n])
	f.err = err
}

func (f *fileWriter) summed(p []byte) {
	f.write(binary.LittleEndian.AppendUint32(p, partSum(p)))
}

func (f *fileWriter) preamble() {
	f.summed(binary.LittleEndian.AppendUint32(append(f.buf[:0], magic...), formatVersion))
}

func (f *fileWriter) header(s *Snapshot) {
	b := binary.LittleEndian.AppendUint64(f.buf[:0], s.ID)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.Time.Unix()))
	b = binary.LittleEndian.AppendUint32(b, uint32(s.Time.Nanosecond()))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s.States)))
	f.summed(append(b, byte(s.Kind)))
}

func (f *fileWriter) state(name string, state participant.State) {
	b := binary.LittleEndian.AppendUint32(f.buf[:0], uint32(len(name)))
	b = binary.LittleEndian.AppendUint64(b, uint64(state.Size()))
	f.summed(append(b, name...))
	var sum uint32
	for _, piece := range state {
		f.write(piece)
		sum = crc32.Update(sum, castagnoli, piece)
	}
	f.write(binary.LittleEndian.AppendUint32(f.buf[:0], mask(sum)))
}

func (f *fileWriter) trailer() {
	b := binary.LittleEndian.AppendUint64(f.buf[:0], uint64(f.n)+uint64(trailerSize))
	b = binary.LittleEndian.AppendUint32(b, f.sum)
	f.write(append(b, endMark...))
}

// ReadSnapshot reads a snapshot in the format of [Snapshot.WriteTo]. size is its length
// in bytes. ReadSnapshot does not allocate more than about size, even for hostile bytes.
//
// The error is a *[CorruptError] if the bytes are not exactly a snapshot, a
// *[VersionError] if they may be a snapshot of a newer version of weir, or the error of
// r.
func ReadSnapshot(r io.Reader, size int64) (*Snapshot, error) {
	f := fileReader{r: bufio.NewReader(r), left: size}
	return f.snapshot()
}

type fileReader struct {
	r    *bufio.Reader
	n    int64  // bytes read
	left int64  // bytes not read yet
	sum  uint32 // of the bytes read
	id   uint64 // for messages; 0 before it was read
}

func (f *fileReader) corrupt(format string, args ...any) error {
	return &CorruptError{Checkpoint: f.id, Reason: fmt.Sprintf(format, args...)}
}

// read fills p. Errors contain part, the name of this part of the file.
func (f *fileReader) read(p []byte, part string) error {
	if int64(len(p)) > f.left {
		return f.corrupt("it ends in %s, after %d bytes", part, f.n+f.left)
	}
	n, err := io.ReadFull(f.r, p)
	f.n += int64(n)
	f.left -= int64(n)
	f.sum = crc32.Update(f.sum, castagnoli, p[:n])
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return f.corrupt("it ends in %s, after %d bytes, %d before its size", part, f.n, f.left)
	default:
		return fmt.Errorf("checkpoint: reading %s: %w", part, err)
	}
}

// summed reads n bytes and their checksum.
func (f *fileReader) summed(n int, part string) ([]byte, error) {
	b := make([]byte, n+checksumSize)
	if err := f.read(b, part); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(b[n:]) != partSum(b[:n]) {
		return nil, f.corrupt("wrong checksum of %s", part)
	}
	return b[:n], nil
}

func (f *fileReader) snapshot() (*Snapshot, error) {
	if f.left <= 0 {
		return nil, f.corrupt("it is empty")
	}
	version, err := f.preamble()
	if err != nil {
		return nil, err
	}
	const header = "the header"
	size, kind := headerSize-checksumSize, Periodic
	if version == 1 {
		size--
	}
	b, err := f.summed(size, header)
	if err != nil {
		return nil, err
	}
	if version > 1 {
		kind = Kind(b[24])
	}
	f.id = binary.LittleEndian.Uint64(b)
	seconds := int64(binary.LittleEndian.Uint64(b[8:]))
	nanoseconds := binary.LittleEndian.Uint32(b[16:])
	states := binary.LittleEndian.Uint32(b[20:])
	if f.id == 0 || nanoseconds >= 1e9 || kind > Suspend {
		return nil, f.corrupt("the header makes no sense")
	}
	s := &Snapshot{ID: f.id, Kind: kind, Time: time.Unix(seconds, int64(nanoseconds)).UTC(), States: map[string]participant.State{}}
	last := ""
	for range states {
		name, state, err := f.state(last)
		if err != nil {
			return nil, err
		}
		s.States[name], last = state, name
	}
	if err := f.trailer(); err != nil {
		return nil, err
	}
	if err := s.Validate(); err != nil { // a snapshot that was read can be saved again
		return nil, f.corrupt("%v", err)
	}
	return s, nil
}

func (f *fileReader) preamble() (version uint32, err error) {
	b := make([]byte, preambleSize)
	if err := f.read(b, "the preamble"); err != nil {
		return 0, err
	}
	if string(b[:len(magic)]) != magic {
		return 0, f.corrupt("it does not begin as a checkpoint file does")
	}
	version, rest := binary.LittleEndian.Uint32(b[len(magic):]), b[preambleSize-checksumSize:]
	switch {
	case binary.LittleEndian.Uint32(rest) != partSum(b[:preambleSize-checksumSize]):
		return 0, f.corrupt("wrong checksum of the preamble")
	case version == 0 || version > formatVersion:
		return 0, &VersionError{Version: version, Supported: formatVersion}
	}
	return version, nil
}

// state reads the next state. last is the name of the previous participant, or "".
func (f *fileReader) state(last string) (string, participant.State, error) {
	const header = "the header of a state"
	b := make([]byte, stateHeaderSize, stateHeaderSize+256)
	if err := f.read(b, header); err != nil {
		return "", nil, err
	}
	nameLength, length := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint64(b[4:])
	if nameLength == 0 || nameLength > maxNameLength {
		return "", nil, f.corrupt("%s has a name of %d bytes", header, nameLength) // before the checksum is verified
	}
	b = append(b, make([]byte, int(nameLength)+checksumSize)...)
	if err := f.read(b[stateHeaderSize:], header); err != nil {
		return "", nil, err
	}
	end := len(b) - checksumSize
	if binary.LittleEndian.Uint32(b[end:]) != partSum(b[:end]) {
		return "", nil, f.corrupt("wrong checksum of %s, after %q", header, last)
	}
	name := string(b[stateHeaderSize:end])
	switch {
	case name <= last:
		return "", nil, f.corrupt("the state of %q comes after that of %q", name, last)
	case length > uint64(f.left), length > math.MaxInt-checksumSize:
		return "", nil, f.corrupt("the state of %q should have %d bytes, the file has %d more", name, length, f.left)
	}

	part := fmt.Sprintf("the state of %q", name)
	data := make([]byte, length)
	if err := f.read(data, part); err != nil {
		return "", nil, err
	}
	var sum [checksumSize]byte
	if err := f.read(sum[:], part); err != nil {
		return "", nil, err
	}
	if binary.LittleEndian.Uint32(sum[:]) != partSum(data) {
		return "", nil, f.corrupt("wrong checksum of %s", part)
	}
	return name, participant.State{data}, nil
}

func (f *fileReader) trailer() error {
	const trailer = "the trailer"
	sum, begin := f.sum, f.n
	b := make([]byte, trailerSize)
	if err := f.read(b, trailer); err != nil {
		return err
	}
	switch {
	case string(b[12:]) != endMark:
		return f.corrupt("it does not end as a checkpoint file does")
	case binary.LittleEndian.Uint32(b[8:]) != sum:
		return f.corrupt("wrong checksum of the whole")
	case binary.LittleEndian.Uint64(b) != uint64(begin)+uint64(trailerSize):
		return f.corrupt("it should have %d bytes and has %d", binary.LittleEndian.Uint64(b), f.n)
	case f.left > 0:
		return f.corrupt("%d bytes follow its end", f.left)
	}
	return nil
}
