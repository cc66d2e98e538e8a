package keys

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

// Limits in bytes.
const (
	maxKey    = 255
	maxMethod = 10
	maxPath   = 100
	maxPoint  = 50
)

// Request is a client's request, stored so that another run can continue it. All fields
// except the body are UTF-8 without NUL.
type Request struct {
	User string // keys are separate for each user
	Key  string // 1 to 255 bytes

	// The content of the request. The same key with other content is refused. JSON is
	// compared as JSON: the order of members, white space and a charset of UTF-8 make no
	// difference. Values nested deeper than 64 levels are compared byte by byte, and so
	// is a body that is not valid JSON or has half of a surrogate pair, such as "\ud800".
	Method      string // at most 10 bytes
	Path        string // at most 100 bytes
	Query       string
	ContentType string
	Body        []byte

	// Fingerprint, unless zero, is compared in place of the content.
	Fingerprint [32]byte
}

// validate returns an error of class exactlyonce.ErrInvalid.
func (r *Request) validate() error {
	switch {
	case r.Key == "":
		return fmt.Errorf("%w: it lacks an idempotency key", exactlyonce.ErrInvalid)
	case len(r.Key) > maxKey:
		return fmt.Errorf("%w: the idempotency key has %d bytes, more than %d", exactlyonce.ErrInvalid, len(r.Key), maxKey)
	case len(r.Method) > maxMethod:
		return fmt.Errorf("%w: the method has %d bytes, more than %d", exactlyonce.ErrInvalid, len(r.Method), maxMethod)
	case len(r.Path) > maxPath:
		return fmt.Errorf("%w: the path has %d bytes, more than %d", exactlyonce.ErrInvalid, len(r.Path), maxPath)
	}
	for _, field := range [...]struct{ name, value string }{
		{"user", r.User}, {"idempotency key", r.Key}, {"method", r.Method}, {"path", r.Path}, {"query", r.Query}, {"content type", r.ContentType},
	} {
		if !utf8.ValidString(field.value) || strings.ContainsRune(field.value, 0) { // PostgreSQL refuses it
			return fmt.Errorf("%w: the %s %q is not UTF-8, or has the character NUL", exactlyonce.ErrInvalid, field.name, field.value)
		}
	}
	return nil
}

func (r *Request) fingerprint(operation string) [32]byte {
	if r.Fingerprint != [32]byte{} {
		return oncewire.Fingerprint(r.Fingerprint[:], "given", operation)
	}
	contentType, body := oncewire.Content(r.ContentType, r.Body)
	return oncewire.Fingerprint(body, operation, r.Method, r.Path, r.Query, contentType)
}

// isAsked reports whether the stored request has the content of r. Earlier versions
// stored other fingerprints (law W4): of the bytes, and of JSON without its mark.
func (r *Request) isAsked(operation string, stored []byte) bool {
	if r.fingerprint(operation) == [32]byte(stored) {
		return true
	}
	if r.Fingerprint != [32]byte{} {
		return false
	}
	contentType, body := oncewire.Content(r.ContentType, r.Body)
	contentType, isJSON := strings.CutPrefix(contentType, oncewire.JSONMark)
	if isJSON && oncewire.Fingerprint(body, operation, r.Method, r.Path, r.Query, contentType) == [32]byte(stored) {
		return true
	}
	return oncewire.Fingerprint(r.Body, operation, r.Method, r.Path, r.Query, r.ContentType) == [32]byte(stored)
}

// JSON returns a response with v as its body.
func JSON(status int, v any) (exactlyonce.Response, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return exactlyonce.Response{}, fmt.Errorf("keys: response: %w", err)
	}
	return exactlyonce.Response{
		Status: status,
		Header: http.Header{"Content-Type": {"application/json"}},
		Body:   append(body, '\n'),
	}, nil
}
