package deadfile

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
)

// A line of the file:
//
//	{"batch":512,"cause":"exhausted","meta":{…},"value":{…},"crc":"e3069283"}
//
// batch is where in the file the batch of the line begins. A batch is durable before the next one begins, so what comes before the
// batch of a sound line was durable: if it cannot be read, it was damaged, and not cut off by a crash. value is the payload if that is
// JSON on one line; else there is payload, in base64. schema is that of the codec, in base64. crc is the CRC-32C of what stands before
// it.
type line struct {
	batch   int64
	cause   store.Cause
	meta    delivery.Meta
	schema  []byte
	payload []byte
}

type storedLine struct {
	Batch   int64           `json:"batch"`
	Cause   store.Cause     `json:"cause"`
	Meta    delivery.Meta   `json:"meta"`
	Schema  []byte          `json:"schema"`
	Value   json.RawMessage `json:"value"`
	Payload []byte          `json:"payload"`
	CRC     string          `json:"crc"`
}

// maxLine bounds a line.
const maxLine = 16 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	crcBegin  = `,"crc":"`
	crcEnd    = `"}`
	crcLength = len(crcBegin) + 8 + len(crcEnd)
)

// body returns what a line consists of besides its batch and crc.
func (l *line) body() ([]byte, error) {
	meta, err := json.Marshal(l.meta)
	if err != nil {
		return nil, err
	}
	cause, err := json.Marshal(l.cause)
	if err != nil {
		return nil, err
	}
	b := append([]byte(`"cause":`), cause...)
	b = append(append(b, `,"meta":`...), meta...)
	if len(l.schema) > 0 {
		b = appendBase64(append(b, `,"schema":`...), l.schema)
	}
	if isOneLine(l.payload) {
		b = append(append(b, `,"value":`...), l.payload...)
	} else {
		b = appendBase64(append(b, `,"payload":`...), l.payload)
	}
	if len(b) > maxLine-64 {
		return nil, fmt.Errorf("deadfile: message %q has %d bytes, at most %d are allowed", l.meta.ID, len(b), maxLine-64)
	}
	return b, nil
}

func appendBase64(b, src []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(b, '"'), src), '"')
}

// isOneLine tells whether b can stand in a line as it is, and comes back so.
func isOneLine(b []byte) bool {
	return json.Valid(b) && utf8.Valid(b) && !bytes.ContainsAny(b, "\n\r\x00") && len(bytes.TrimSpace(b)) == len(b)
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
func parseLine(b []byte) (line, error) {
	at := len(b) - crcLength
	if at < 0 || string(b[at:at+len(crcBegin)]) != crcBegin || string(b[len(b)-len(crcEnd):]) != crcEnd {
		return line{}, errNoLine
	}
	if sum := fmt.Sprintf("%08x", crc32.Checksum(b[:at], castagnoli)); sum != string(b[at+len(crcBegin):len(b)-len(crcEnd)]) {
		return line{}, fmt.Errorf("%w: its checksum is %s", errNoLine, sum)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var s storedLine
	if err := d.Decode(&s); err != nil {
		return line{}, fmt.Errorf("%w: %w", errNoLine, err)
	}
	if d.InputOffset() != int64(len(b)) || s.Batch < 0 || s.Value != nil && s.Payload != nil {
		return line{}, errNoLine
	}
	l := line{s.Batch, s.Cause, s.Meta, s.Schema, s.Payload}
	if s.Value != nil {
		l.payload = s.Value
	}
	return l, nil
}
