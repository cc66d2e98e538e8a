package checkpoint

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/testing/golden"
)

// firstState is the offset of the first state in a file.
const firstState = preambleSize + headerSize

func written(t testing.TB, s *Snapshot) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := s.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	return b.Bytes()
}

func readBytes(b []byte) (*Snapshot, error) { return ReadSnapshot(bytes.NewReader(b), int64(len(b))) }

func someSnapshot() *Snapshot {
	return &Snapshot{
		ID:   42,
		Kind: Suspend,
		Time: time.Date(2026, 1, 2, 3, 4, 5, 678, time.FixedZone("X", 3600)),
		States: map[string]participant.State{
			"lookup": {[]byte("one"), nil, []byte("two")},
			"source": {{0, 1, 2, 255}},
			"sink":   nil,
		},
	}
}

func requireCorrupt(t require.TestingT, err error, msg ...any) {
	var damage *CorruptError
	require.ErrorAs(t, err, &damage, msg...)
	require.NotEmpty(t, damage.Reason)
}

func TestFormatRoundTrip(t *testing.T) {
	s := someSnapshot()
	got, err := readBytes(written(t, s))
	require.NoError(t, err)
	assert.Equal(t, s.clone(), got)

	rapid.Check(t, func(t *rapid.T) {
		s := &Snapshot{
			ID:     rapid.Uint64Min(1).Draw(t, "id"),
			Kind:   Kind(rapid.Uint8Max(uint8(Suspend)).Draw(t, "kind")),
			Time:   time.Unix(rapid.Int64().Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")).UTC(),
			States: map[string]participant.State{},
		}
		names := rapid.SliceOfDistinct(rapid.StringN(1, 20, 50), func(s string) string { return s }).Draw(t, "names")
		for _, name := range names {
			s.States[name] = rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "state")
		}
		var b bytes.Buffer
		_, err := s.WriteTo(&b)
		require.NoError(t, err)
		got, err := readBytes(b.Bytes())
		require.NoError(t, err)
		require.Equal(t, s.clone(), got)
	})
}

// Equal snapshots have equal files, independent of the cuts of states and the order of
// maps.
func TestFormatIsDeterministic(t *testing.T) {
	want := written(t, someSnapshot())
	for range 20 {
		require.Equal(t, want, written(t, someSnapshot()))
	}
	s := someSnapshot().clone()
	require.Equal(t, want, written(t, s))
}

// The format, byte by byte: later versions can read old files.
func TestFormatIsStable(t *testing.T) {
	s := someSnapshot().clone()
	got, err := readBytes(golden.Written(t, "checkpoint-2", written(t, someSnapshot())))
	require.NoError(t, err)
	assert.Equal(t, s, got)

	got, err = readBytes(golden.Read(t, "checkpoint-1"))
	require.NoError(t, err)
	s.Kind = Periodic // version 1 has no kind
	assert.Equal(t, s, got)
}

func TestFormatNoticesEveryFlippedBit(t *testing.T) {
	good := written(t, someSnapshot())
	for i := range good {
		for bit := range 8 {
			b := bytes.Clone(good)
			b[i] ^= 1 << bit
			_, err := readBytes(b)
			requireCorrupt(t, err, "bit %d of byte %d", bit, i)
		}
	}
}

func TestFormatNoticesEveryCut(t *testing.T) {
	good := written(t, someSnapshot())
	for n := range good {
		_, err := readBytes(good[:n])
		requireCorrupt(t, err, "cut after %d", n)
		_, err = ReadSnapshot(bytes.NewReader(good[:n]), int64(len(good))) // with a wrong size
		requireCorrupt(t, err, "ends after %d", n)
		zeros := append(bytes.Clone(good[:n]), make([]byte, len(good)-n)...)
		if !bytes.Equal(zeros, good) {
			_, err = readBytes(zeros)
			requireCorrupt(t, err, "zeros from %d", n)
		}
		hole := append(make([]byte, n), good[n:]...)
		if n > 0 {
			_, err = readBytes(hole)
			requireCorrupt(t, err, "zeros up to %d", n)
		}
		_, err = readBytes(slices.Concat(good[:n], []byte{'x'}, good[n:]))
		requireCorrupt(t, err, "a byte more at %d", n)
		_, err = readBytes(slices.Concat(good[:n], good[n+1:]))
		requireCorrupt(t, err, "a byte less at %d", n)
	}
	_, err := readBytes(append(bytes.Clone(good), good...))
	requireCorrupt(t, err, "twice")
	_, err = readBytes(append(bytes.Clone(good), make([]byte, 4096)...))
	requireCorrupt(t, err, "a tail of zeros")
}

func TestFormatNoticesForeignFiles(t *testing.T) {
	one := func(state string) []byte {
		return written(t, &Snapshot{ID: 42, States: map[string]participant.State{"a": {[]byte(state)}}})
	}
	for name, b := range map[string][]byte{
		"empty":     {},
		"zeros":     make([]byte, 8192),
		"ones":      bytes.Repeat([]byte{0xff}, 8192),
		"text":      []byte(strings.Repeat("This is not a checkpoint.\n", 100)),
		"ELF":       append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 1000)...),
		"line ends": bytes.ReplaceAll(written(t, someSnapshot()), []byte("\n"), []byte("\r\n")),
		"without 8th bit": func() []byte {
			b := written(t, someSnapshot())
			for i := range b {
				b[i] &= 0x7f
			}
			return b
		}(),
		"the state of another": slices.Concat(one("new")[:firstState+17], one("old")[firstState+17:firstState+24], one("new")[firstState+24:]),
		"parts of another":     slices.Concat(written(t, someSnapshot())[:firstState+16], written(t, &Snapshot{ID: 43, States: someSnapshot().States})[firstState+16:]),
	} {
		_, err := readBytes(b)
		requireCorrupt(t, err, name)
	}
}

// A file of a later version is distinguished from a damaged file.
func TestFormatOfALaterVersion(t *testing.T) {
	b := written(t, someSnapshot())
	binary.LittleEndian.PutUint32(b[8:], 3)
	_, err := readBytes(b)
	requireCorrupt(t, err)
	binary.LittleEndian.PutUint32(b[12:], partSum(b[:12]))
	_, err = readBytes(b)
	var version *VersionError
	require.ErrorAs(t, err, &version)
	assert.Equal(t, VersionError{Version: 3, Supported: 2}, *version)
	assert.Equal(t, "checkpoint: checkpoint has format version 3, this version of weir knows formats up to 2", err.Error())
	binary.LittleEndian.PutUint32(b[8:], 0)
	binary.LittleEndian.PutUint32(b[12:], partSum(b[:12]))
	_, err = readBytes(b)
	require.ErrorAs(t, err, &version)
}

// reseal corrects all checksums and the trailer, so that only checks of the content can
// find a change.
func reseal(b []byte, at int, change func(b []byte)) []byte {
	b = bytes.Clone(b)
	change(b[at:])
	sum := func(from, to int) { binary.LittleEndian.PutUint32(b[to:], partSum(b[from:to])) }
	sum(0, 12)
	sum(preambleSize, firstState-checksumSize)
	name := int(binary.LittleEndian.Uint32(b[firstState:]))
	if end := firstState + 12 + name; name < 100 && end+4 < len(b) {
		sum(firstState, end)
	}
	trailer := len(b) - trailerSize
	binary.LittleEndian.PutUint32(b[trailer+8:], crc32.Checksum(b[:trailer], castagnoli))
	return b
}

func TestFormatBelievesNoLength(t *testing.T) {
	one := written(t, &Snapshot{ID: 1, States: map[string]participant.State{"name": {[]byte("data")}}})
	same := reseal(one, 0, func([]byte) {})
	require.Equal(t, one, same)
	for name, b := range map[string][]byte{
		"states":        reseal(one, 16+20, func(b []byte) { binary.LittleEndian.PutUint32(b, math.MaxUint32) }),
		"no states":     reseal(one, 16+20, func(b []byte) { binary.LittleEndian.PutUint32(b, 0) }),
		"nanoseconds":   reseal(one, 16+16, func(b []byte) { binary.LittleEndian.PutUint32(b, 1e9) }),
		"number 0":      reseal(one, 16, func(b []byte) { binary.LittleEndian.PutUint64(b, 0) }),
		"kind":          reseal(one, 16+24, func(b []byte) { b[0] = byte(Suspend) + 1 }),
		"name":          reseal(one, firstState, func(b []byte) { binary.LittleEndian.PutUint32(b, math.MaxUint32) }),
		"longer name":   reseal(one, firstState, func(b []byte) { binary.LittleEndian.PutUint32(b, 20) }),
		"data":          reseal(one, firstState+4, func(b []byte) { binary.LittleEndian.PutUint64(b, math.MaxUint64) }),
		"data, a bit":   reseal(one, firstState+4, func(b []byte) { binary.LittleEndian.PutUint64(b, 1<<62) }),
		"longer data":   reseal(one, firstState+4, func(b []byte) { binary.LittleEndian.PutUint64(b, 5) }),
		"name not text": reseal(one, firstState+12, func(b []byte) { b[0] = 0xff }),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := readBytes(b)
		runtime.ReadMemStats(&after)
		requireCorrupt(t, err, name)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), name)
	}
}

// Each part has its own checksum: damage is found before the following parts are read.
func TestFormatNamesTheDamagedPart(t *testing.T) {
	good := written(t, &Snapshot{ID: 1, States: map[string]participant.State{"name": {[]byte("data")}}})
	for i := range good {
		b := bytes.Clone(good)
		b[i] ^= 0x40
		var want string
		switch {
		case i < 8:
			want = "it does not begin as a checkpoint file does"
		case i < 16:
			want = "wrong checksum of the preamble"
		case i < firstState:
			want = "wrong checksum of the header"
		case i < firstState+4:
			want = "the header of a state" // a length too long to be read
		case i < firstState+20:
			want = "wrong checksum of the header of a state"
		case i < firstState+28:
			want = `wrong checksum of the state of "name"`
		case i < firstState+36:
			want = "it should have"
		case i < firstState+40:
			want = "wrong checksum of the whole"
		default:
			want = "it does not end as a checkpoint file does"
		}
		_, err := readBytes(b)
		require.ErrorContains(t, err, want, "byte %d", i)
	}
}

func TestFormatNoticesTheOrderOfStates(t *testing.T) {
	for _, names := range [][]string{{"b", "a"}, {"a", "a"}} {
		var out bytes.Buffer
		f := fileWriter{w: bufio.NewWriter(&out)}
		f.preamble()
		f.header(&Snapshot{ID: 1, States: map[string]participant.State{"a": nil, "b": nil}})
		for _, name := range names {
			f.state(name, nil)
		}
		f.trailer()
		require.NoError(t, f.err)
		require.NoError(t, f.w.Flush())
		_, err := readBytes(out.Bytes())
		require.ErrorContains(t, err, "comes after")
	}
}

func TestFormatReportsErrorsOfTheReader(t *testing.T) {
	b := written(t, someSnapshot())
	trouble := errors.New("the disk is tired")
	for n := range b {
		r := io.MultiReader(bytes.NewReader(b[:n]), iotest.ErrReader(trouble))
		_, err := ReadSnapshot(r, int64(len(b)))
		require.ErrorIs(t, err, trouble)
		var damage *CorruptError
		require.False(t, errors.As(err, &damage), "a reader that fails says nothing about the snapshot")
	}
	got, err := ReadSnapshot(iotest.OneByteReader(bytes.NewReader(b)), int64(len(b)))
	require.NoError(t, err)
	assert.Equal(t, someSnapshot().clone(), got)
}

func TestFormatReportsErrorsOfTheWriter(t *testing.T) {
	trouble := errors.New("no space")
	size := int64(len(written(t, someSnapshot())))
	for n := range size {
		w := &limitedWriter{left: n, err: trouble}
		_, err := someSnapshot().WriteTo(w)
		require.ErrorIs(t, err, trouble)
	}
}

type limitedWriter struct {
	left int64
	err  error
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	n := min(int64(len(p)), w.left)
	w.left -= n
	if n < int64(len(p)) {
		return int(n), w.err
	}
	return int(n), nil
}

func TestValidate(t *testing.T) {
	require.NoError(t, someSnapshot().Validate())
	for name, s := range map[string]*Snapshot{
		"nil":         nil,
		"number 0":    {},
		"kind 3":      {ID: 1, Kind: 3},
		"no name":     {ID: 1, States: map[string]participant.State{"": nil}},
		"a long name": {ID: 1, States: map[string]participant.State{strings.Repeat("x", maxNameLength+1): nil}},
		"not a text":  {ID: 1, States: map[string]participant.State{"\xff": nil}},
	} {
		require.ErrorIs(t, s.Validate(), errInvalidSnapshot, name)
		_, err := s.WriteTo(io.Discard)
		require.ErrorIs(t, err, errInvalidSnapshot, name)
	}
}

// Large pieces are written without a copy of the whole snapshot.
func TestWriteToCopiesLittle(t *testing.T) {
	s := &Snapshot{ID: 1, States: map[string]participant.State{"big": {make([]byte, 8<<20), make([]byte, 8<<20)}}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := s.WriteTo(io.Discard)
	runtime.ReadMemStats(&after)
	require.NoError(t, err)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// FuzzReadSnapshot checks that a snapshot that was read without error is written as the
// same bytes, or as the same snapshot if it was in an older format.
func FuzzReadSnapshot(f *testing.F) {
	f.Add(written(f, someSnapshot()))
	f.Add(written(f, &Snapshot{ID: 1}))
	f.Add(written(f, &Snapshot{ID: 1, Kind: Drain}))
	f.Add(golden.Read(f, "checkpoint-1"))
	f.Add(written(f, &Snapshot{ID: math.MaxUint64, Time: time.Unix(-1, 1), States: map[string]participant.State{"a": {{1}}}}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		// Correct the checksums: otherwise they would hide hostile bytes from the parser.
		for _, b := range [][]byte{b, sealed(b)} {
			s, err := readBytes(b)
			if err != nil {
				var version *VersionError
				if !errors.As(err, &version) {
					requireCorrupt(t, err)
				}
				continue
			}
			if binary.LittleEndian.Uint32(b[8:]) == formatVersion {
				require.Equal(t, b, written(t, s))
				continue
			}
			again, err := readBytes(written(t, s))
			require.NoError(t, err)
			require.Equal(t, s, again)
		}
	})
}

// sealed corrects the checksums at the positions where a reader expects them.
func sealed(b []byte) []byte {
	b = bytes.Clone(b)
	if len(b) < firstState+trailerSize {
		return b
	}
	copy(b, magic)
	version, at := uint32(formatVersion), firstState
	if b[8] == 1 {
		version, at = 1, at-1
	}
	binary.LittleEndian.PutUint32(b[8:], version)
	sum := func(from, to int) { binary.LittleEndian.PutUint32(b[to:], partSum(b[from:to])) }
	sum(0, 12)
	sum(preambleSize, at-checksumSize)
	trailer := len(b) - trailerSize
	for at+12 < trailer {
		name, data := int(binary.LittleEndian.Uint32(b[at:])), binary.LittleEndian.Uint64(b[at+4:])
		head := at + 12 + name
		if name > maxNameLength || head+4 > trailer {
			break
		}
		sum(at, head)
		if data > uint64(trailer-head-8) || trailer-head < 8 {
			break
		}
		end := head + 4 + int(data)
		sum(head+4, end)
		at = end + 4
	}
	binary.LittleEndian.PutUint64(b[trailer:], uint64(len(b)))
	binary.LittleEndian.PutUint32(b[trailer+8:], crc32.Checksum(b[:trailer], castagnoli))
	copy(b[trailer+12:], endMark)
	return b
}
