package exactlyonce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/weirflow/weir/internal/varint"
)

// Response is an HTTP response as server.Results.Handler stores it, for handlers that use
// a [Store]:
//
//	response := exactlyonce.Response{Status: http.StatusCreated, Body: body}
//	err := store.Put(ctx, tx, request, response.Encode())
//	… // commit
//	response.Send(w)
type Response struct {
	Status int // from 200 to 999
	Header http.Header
	Body   []byte
}

// hopByHop are headers of one connection (RFC 9110, 7.6.1), and Set-Cookie, which belongs
// to one session.
var hopByHop = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Connection", "Te", "Trailer",
	"Transfer-Encoding", "Upgrade", "Set-Cookie",
}

const responseVersion = 1

// Encode returns the bytes to store, without Set-Cookie, trailers, and headers of the
// connection or named by Connection. Equal responses have equal bytes.
func (r Response) Encode() []byte {
	var names []string
	for name, values := range r.Header {
		if (len(values) > 0 || isGuessed(name)) && !slices.Contains(hopByHop, textproto.CanonicalMIMEHeaderKey(name)) && !r.connectionNames(name) &&
			!strings.HasPrefix(name, http.TrailerPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	b := append(make([]byte, 0, 256+len(r.Body)), responseVersion)
	b = binary.AppendUvarint(b, uint64(max(0, r.Status)))
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, name := range names {
		b = varint.AppendBytes(b, []byte(name))
		b = binary.AppendUvarint(b, uint64(len(r.Header[name])))
		for _, value := range r.Header[name] {
			b = varint.AppendBytes(b, []byte(value))
		}
	}
	return append(b, r.Body...)
}

// isGuessed reports whether net/http would set a missing header. A header without values
// prevents that, so it is stored.
func isGuessed(name string) bool { return name == "Content-Type" || name == "Date" }

func (r Response) connectionNames(name string) bool {
	for _, value := range r.Header["Connection"] {
		for option := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(option), name) {
				return true
			}
		}
	}
	return false
}

// Decode reads the output of Encode. Body refers to stored. After an error the response
// is unchanged.
func (r *Response) Decode(stored []byte) error {
	decoded, err := decode(stored)
	if err == nil {
		*r = decoded
	}
	return err
}

func decode(stored []byte) (Response, error) {
	in := varint.Reader{Rest: stored}
	var r Response
	if v := in.Byte(); in.Err == nil && v != responseVersion {
		in.Fail(fmt.Errorf("version %d is unknown: was it encoded by Response.Encode?", v))
	}
	if status := in.Uvarint(); in.Err == nil {
		if status < 200 || status > 999 {
			in.Fail(fmt.Errorf("status %d is not valid in a response", status))
		}
		r.Status = int(status)
	}
	last := ""
	for n := in.Uvarint(); n > 0 && in.Err == nil; n-- {
		name := string(in.Bytes())
		values := in.Uvarint()
		if in.Err == nil && (name <= last || values == 0 && !isGuessed(name)) {
			in.Fail(errors.New("the headers are not in order, or one is empty"))
		}
		last = name
		if r.Header == nil {
			r.Header = http.Header{}
		}
		if in.Err == nil && values == 0 {
			r.Header[name] = nil
		}
		for ; values > 0 && in.Err == nil; values-- {
			value := string(in.Bytes())
			r.Header[name] = append(r.Header[name], value)
		}
	}
	if in.Err != nil {
		return Response{}, fmt.Errorf("exactlyonce: stored response: %w", in.Err)
	}
	r.Body = in.Rest
	return r, nil
}

// Send writes the response. Its headers replace headers of w with the same name.
func (r Response) Send(w http.ResponseWriter) {
	maps.Copy(w.Header(), r.Header.Clone())
	w.WriteHeader(r.Status)
	_, _ = w.Write(r.Body) // fails if the client has gone, or the status has no body
}
