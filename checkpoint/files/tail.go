package files

import (
	"errors"
	"hash/fnv"
	"io"
)

// tailSize is the number of bytes before a position whose hash, stored in a checkpoint,
// detects another file.
const tailSize = 1 << 10

func sumOf(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b[max(0, len(b)-tailSize):])
	return h.Sum64()
}

// readTail returns at most tailSize bytes before a position. It moves the offset of f.
func readTail(f io.ReadSeeker, position int64) ([]byte, error) {
	from := max(0, position-tailSize)
	if _, err := f.Seek(from, io.SeekStart); err != nil {
		return nil, err
	}
	b := make([]byte, position-from)
	_, err := io.ReadFull(f, b)
	return b, err
}

var errOtherFile = errors.New("the bytes before that place have changed since the checkpoint: is it another file, " +
	"or do the checkpoints belong to another job?")
