package wire

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// MaxFrame bounds the body of a frame, in bytes. Without it a damaged length could
// allocate gigabytes.
const MaxFrame = 1 << 20

// ErrMalformed is wrapped by every error about an invalid frame.
var ErrMalformed = errors.New("wire: malformed frame")

// Op is the operation of a request.
type Op byte

// The operations.
const (
	OpGet    Op = 1 // the row of a region; answered by a region server
	OpLocate Op = 2 // the region of a row; answered by the meta server
)

// Status is the type of a response.
type Status byte

// The statuses.
const (
	StatusResult     Status = 1 // Cells; empty for a missing row
	StatusLocation   Status = 2 // Region
	StatusNotServing Status = 3 // the server does not serve the region of the request
	StatusError      Status = 4 // Message
)

// Cell is one column of a row.
type Cell struct {
	Column string // family:qualifier
	Value  string
}

// Region is a range of row keys and the server that serves it.
type Region struct {
	Name   string
	Start  string // first key of the region
	End    string // first key after the region; "" means no end
	Server string // host:port
}

// Contains reports whether row belongs to the region.
func (r Region) Contains(row string) bool {
	return row >= r.Start && (r.End == "" || row < r.End)
}

// Request is a call. Region is empty in an OpLocate request.
type Request struct {
	ID     uint64
	Op     Op
	Region string
	Row    string
}

// Response answers the request with the same ID. Status determines which other fields are
// set.
type Response struct {
	ID      uint64
	Status  Status
	Cells   []Cell
	Region  Region
	Message string
}

// AppendRequest appends the frame of r to b.
func AppendRequest(b []byte, r Request) []byte {
	b, start := begin(b, r.ID, byte(r.Op))
	b = appendString(b, r.Region)
	b = appendString(b, r.Row)
	return end(b, start)
}

// AppendResponse appends the frame of r to b.
func AppendResponse(b []byte, r Response) []byte {
	b, start := begin(b, r.ID, byte(r.Status))
	switch r.Status {
	case StatusResult:
		b = binary.AppendUvarint(b, uint64(len(r.Cells)))
		for _, c := range r.Cells {
			b = appendString(b, c.Column)
			b = appendString(b, c.Value)
		}
	case StatusLocation:
		b = appendString(b, r.Region.Name)
		b = appendString(b, r.Region.Start)
		b = appendString(b, r.Region.End)
		b = appendString(b, r.Region.Server)
	case StatusNotServing:
	case StatusError:
		b = appendString(b, r.Message)
	}
	return end(b, start)
}

// ReadRequest reads one request. It returns io.EOF if the input ends between two frames.
func ReadRequest(r *bufio.Reader) (Request, error) {
	d, err := readFrame(r)
	if err != nil {
		return Request{}, err
	}
	req := Request{ID: d.id, Op: Op(d.kind)}
	if req.Op != OpGet && req.Op != OpLocate {
		return Request{}, fmt.Errorf("%w: operation %d", ErrMalformed, d.kind)
	}
	req.Region = d.string()
	req.Row = d.string()
	return req, d.finish()
}

// ReadResponse reads one response. It returns io.EOF if the input ends between two
// frames.
func ReadResponse(r *bufio.Reader) (Response, error) {
	d, err := readFrame(r)
	if err != nil {
		return Response{}, err
	}
	resp := Response{ID: d.id, Status: Status(d.kind)}
	switch resp.Status {
	case StatusResult:
		// A cell takes at least two bytes, so a wrong count is detected before
		// allocating.
		n := d.uvarint()
		if n > uint64(len(d.body)/2) {
			return Response{}, fmt.Errorf("%w: %d cells in %d bytes", ErrMalformed, n, len(d.body))
		}
		for range n {
			resp.Cells = append(resp.Cells, Cell{Column: d.string(), Value: d.string()})
		}
	case StatusLocation:
		resp.Region = Region{Name: d.string(), Start: d.string(), End: d.string(), Server: d.string()}
	case StatusNotServing:
	case StatusError:
		resp.Message = d.string()
	default:
		return Response{}, fmt.Errorf("%w: status %d", ErrMalformed, d.kind)
	}
	return resp, d.finish()
}

// head is the length of the fixed part of a body: the number of the call and the kind.
const head = 8 + 1

func begin(b []byte, id uint64, kind byte) (_ []byte, start int) {
	start = len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, id)
	return append(b, kind), start
}

func end(b []byte, start int) []byte {
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// decoder reads the body of a frame. It keeps the first error.
type decoder struct {
	id   uint64
	kind byte
	body []byte
	err  error
}

func readFrame(r *bufio.Reader) (*decoder, error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n < head || n > MaxFrame {
		return nil, fmt.Errorf("%w: length %d", ErrMalformed, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return &decoder{id: binary.BigEndian.Uint64(body), kind: body[8], body: body[head:]}, nil
}

func (d *decoder) uvarint() uint64 {
	n, size := binary.Uvarint(d.body)
	if size <= 0 {
		d.fail("truncated number")
		return 0
	}
	d.body = d.body[size:]
	return n
}

func (d *decoder) string() string {
	n := d.uvarint()
	if n > uint64(len(d.body)) {
		d.fail("truncated string")
		return ""
	}
	s := string(d.body[:n])
	d.body = d.body[n:]
	return s
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	d.body = nil
}

func (d *decoder) finish() error {
	if d.err == nil && len(d.body) > 0 {
		d.fail("bytes left over")
	}
	return d.err
}
