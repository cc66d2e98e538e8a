package deadfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// A line is a [store.Message] as JSON, with two members more, the first and the last:
//
//	{"batch":512,"meta":{…},"cause":"exhausted","payload":{…},"schema":"…","crc":"e3069283"}
//
// batch is where in the file the batch of the line begins. A batch is durable before the
// next one begins, so what comes before the batch of a sound line was durable: if it
// cannot be read, it was damaged, and not cut off by a crash. crc is the CRC-32C of what
// stands before it.
type line struct {
	batch int64
	store.Message
}

// maxLine bounds a line.
const maxLine = 16 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	crcBegin  = `,"crc":"`
	crcEnd    = `"}`
	crcLength = len(crcBegin) + 8 + len(crcEnd)
)

// bodyOf returns what a line consists of besides its batch and crc.
func bodyOf(m store.Message) ([]byte, error) {
	const longest = maxLine - 64
	b := m.Payload
	if len(b) <= longest {
		var err error
		if b, err = m.MarshalJSON(); err != nil {
			return nil, err
		}
	}
	if len(b) > longest {
		return nil, fmt.Errorf("deadfile: %w: message %q has %d bytes, at most %d are allowed", message.ErrRefused, m.Meta.ID, len(b), longest)
	}
	return bytes.TrimSuffix(bytes.TrimPrefix(b, []byte("{")), []byte("}")), nil
}

// appendLine appends a line with its end.
func appendLine(dst []byte, batch int64, body []byte) []byte {
	start := len(dst)
	dst = strconv.AppendInt(append(dst, `{"batch":`...), batch, 10)
	dst = append(append(dst, ','), body...)
	return fmt.Appendf(dst, "%s%08x%s\n", crcBegin, crc32.Checksum(dst[start:], castagnoli), crcEnd)
}

var errNoLine = errors.New("not a line of a file of dead letters")

// parseLine reads a line without its end.
func parseLine(b []byte) (l line, err error) {
	at := len(b) - crcLength
	if at < 0 || string(b[at:at+len(crcBegin)]) != crcBegin || string(b[len(b)-len(crcEnd):]) != crcEnd {
		return line{}, errNoLine
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(b[:at], castagnoli)); sum != string(b[at+len(crcBegin):len(b)-len(crcEnd)]) {
		return line{}, fmt.Errorf("%w: its checksum is %s", errNoLine, sum)
	}
	var s struct {
		Batch int64 `json:"batch"`
	}
	if err = json.Unmarshal(b, &s); err == nil {
		err = json.Unmarshal(b, &l.Message)
	}
	if err == nil && s.Batch < 0 {
		err = fmt.Errorf("its batch is %d", s.Batch)
	}
	if err != nil {
		return line{}, fmt.Errorf("%w: %w", errNoLine, err)
	}
	l.batch = s.Batch
	return l, nil
}
