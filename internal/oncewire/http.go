package oncewire

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

// Problem sends a problem document (RFC 9457). result is a value of [Result], or "" if
// the problem is not the tracker's.
func Problem(w http.ResponseWriter, status int, result, detail string) {
	document := struct {
		Type   string `json:"type,omitempty"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{Title: http.StatusText(status), Status: status, Detail: detail}
	if result != "" {
		document.Type = ProblemType(result)
		w.Header().Set(Result, result)
	}
	body, _ := json.Marshal(document) // strings and a number cannot fail
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // an error means that the caller has gone
}

// ReadBody returns a request's body of at most limit bytes. If ok is false, it has sent
// an error response.
func ReadBody(w http.ResponseWriter, req *http.Request, limit int64) (body []byte, ok bool) {
	if req.Body == nil {
		return nil, true
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, limit))
	if err == nil {
		return body, true
	}
	status := BodyStatus(err)
	Problem(w, status, "", map[int]string{
		http.StatusRequestEntityTooLarge: fmt.Sprintf("the body of a tracked request has %d bytes at most", limit),
		http.StatusRequestTimeout:        "the body did not come in time, or not whole",
		http.StatusBadRequest:            "the body could not be read",
	}[status])
	return nil, false
}

// BodyStatus returns the status for a request whose body could not be read: 413 if it is
// too long, 408 if it came too slowly or was cut off, since a repetition may succeed,
// otherwise 400.
func BodyStatus(err error) int {
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		return http.StatusRequestEntityTooLarge
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
		return http.StatusRequestTimeout
	}
	return http.StatusBadRequest
}

// Limits checks the status for other content under the same id, 409 or 422, and the limit
// of a body in bytes. It replaces 0 by the defaults 409 and 1 MiB.
func Limits(mismatchStatus int, maxBody int64) (int, int64, error) {
	if mismatchStatus == 0 {
		mismatchStatus = http.StatusConflict
	}
	if maxBody == 0 {
		maxBody = 1 << 20
	}
	if mismatchStatus != http.StatusConflict && mismatchStatus != http.StatusUnprocessableEntity {
		return 0, 0, fmt.Errorf("MismatchStatus is %d, not 409 or 422", mismatchStatus)
	}
	if maxBody < 0 {
		return 0, 0, fmt.Errorf("MaxBody is %d", maxBody)
	}
	return mismatchStatus, maxBody, nil
}

// Fingerprint hashes the parts of a request, with their lengths, and its body.
func Fingerprint(body []byte, parts ...string) [32]byte {
	h := sha256.New()
	for _, part := range parts {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(part)))) // hashes do not return errors
		_, _ = io.WriteString(h, part)
	}
	_, _ = h.Write(body)
	return [32]byte(h.Sum(nil))
}
