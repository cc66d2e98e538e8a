package exactlyonce

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/internal/oncewire"
)

// Header is the HTTP header and the gRPC metadata that carries an [ID], in the form of
// [ID.String].
const Header = "Exactly-Once"

// maxHeader bounds the header, in bytes, with some spaces between its parts.
const maxHeader = 256

// Client identifies an incarnation of a client. It is random, so a program that has lost
// its sequence numbers cannot resume an earlier identity. The zero value is not a client.
type Client [16]byte

// NewClient returns 128 random bits.
func NewClient() Client {
	var c Client
	_, _ = rand.Read(c[:]) // never fails
	return c
}

// IsZero reports whether c is the zero value.
func (c Client) IsZero() bool { return c == Client{} }

// String returns 32 hexadecimal digits.
func (c Client) String() string { return hex.EncodeToString(c[:]) }

// ID identifies an attempt of a request. Client, Sequence and Step are the same in all
// attempts of a request, at every server.
type ID struct {
	Client   Client
	Sequence int64  // 1 to 999,999,999,999,999
	Step     string // distinguishes requests with the same number: up to 64 letters, digits and ._:-; may be ""
	Attempt  int    // 1 to 999,999,999; only compared for equality
	First    int64  // 1 to Sequence: the client does not repeat requests below it; 0 if unknown

	// Age is the time since the request was first sent, rounded up to seconds; 0 when it
	// is first sent. A server that may have forgotten the request since then refuses it
	// as stale.
	Age time.Duration
}

// Validate returns an error of class [ErrInvalid] that names the field and its value.
// First must not be above Sequence: such a request would declare itself done.
func (id ID) Validate() error {
	switch {
	case id.Client.IsZero():
		return fmt.Errorf("%w: the client is zero", ErrInvalid)
	case id.Sequence < 1 || id.Sequence > oncewire.MaxSequence:
		return fmt.Errorf("%w: sequence number %d is not between 1 and %d", ErrInvalid, id.Sequence, int64(oncewire.MaxSequence))
	case id.Attempt < 1 || id.Attempt > oncewire.MaxAttempt:
		return fmt.Errorf("%w: attempt number %d is not between 1 and %d", ErrInvalid, id.Attempt, oncewire.MaxAttempt)
	case id.First < 0 || id.First > id.Sequence:
		return fmt.Errorf("%w: first incomplete number %d is not between 0 and its own sequence number %d",
			ErrInvalid, id.First, id.Sequence)
	case id.Age < 0 || id.Age%time.Second != 0:
		return fmt.Errorf("%w: age %v is negative, or not in whole seconds", ErrInvalid, id.Age)
	}
	return validStep(id.Step)
}

func validStep(step string) error {
	if len(step) > oncewire.MaxStep {
		return fmt.Errorf("%w: a step of %d bytes is longer than %d", ErrInvalid, len(step), oncewire.MaxStep)
	}
	for i := range len(step) {
		if !isStepByte(step[i]) {
			return fmt.Errorf("%w: step %q has another character than letters, digits and ._:-", ErrInvalid, step)
		}
	}
	return nil
}

func isStepByte(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' ||
		b == '.' || b == '_' || b == ':' || b == '-'
}

// String returns the id as an item of a structured header field (RFC 9651), a string with
// parameters:
//
//	"0af7651916cd43dd8448eb211c80319c";seq=17;attempt=2;first=12;step="charge";age=90
//
// A First of 0, a Step of "" and an Age of 0 are left out.
func (id ID) String() string {
	b := make([]byte, 0, 96+len(id.Step))
	b = append(b, '"')
	b = hex.AppendEncode(b, id.Client[:])
	b = append(b, `";seq=`...)
	b = strconv.AppendInt(b, id.Sequence, 10)
	b = append(b, `;attempt=`...)
	b = strconv.AppendInt(b, int64(id.Attempt), 10)
	if id.First != 0 {
		b = append(b, `;first=`...)
		b = strconv.AppendInt(b, id.First, 10)
	}
	if id.Step != "" {
		b = append(b, `;step="`...)
		b = append(b, id.Step...)
		b = append(b, '"')
	}
	if id.Age != 0 {
		b = append(b, `;age=`...)
		b = strconv.AppendInt(b, int64(id.Age/time.Second), 10)
	}
	return string(b)
}

// MarshalText implements encoding.TextMarshaler in the form of String. It refuses an id
// that is not valid.
func (id ID) MarshalText() ([]byte, error) {
	if err := id.Validate(); err != nil {
		return nil, err
	}
	return []byte(id.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler for the output of String, with
// parameters in any order and spaces before them. A parameter that appears twice or
// breaks a limit is refused, and an unknown one is ignored. The error is of class
// [ErrInvalid].
func (id *ID) UnmarshalText(text []byte) error {
	parsed, err := parse(string(text))
	if err == nil {
		*id = parsed
	}
	return err
}

func parse(s string) (ID, error) {
	var id ID
	if len(s) > maxHeader {
		return ID{}, fmt.Errorf("%w: %d bytes are more than %d", ErrInvalid, len(s), maxHeader)
	}
	if len(s) < 34 || s[0] != '"' || s[33] != '"' || !isLowerHex(s[1:33]) {
		return ID{}, fmt.Errorf("%w: %q does not start with 32 hexadecimal digits in quotes", ErrInvalid, s)
	}
	_, _ = hex.Decode(id.Client[:], []byte(s[1:33])) // isLowerHex has checked the digits

	seen := make(map[string]bool, 4)
	for rest := s[34:]; rest != ""; {
		if rest[0] != ';' {
			return ID{}, fmt.Errorf("%w: %q where a parameter should start", ErrInvalid, rest)
		}
		var name, value string
		var ok bool
		name, rest, ok = strings.Cut(strings.TrimLeft(rest[1:], " "), "=")
		if !ok || seen[name] {
			return ID{}, fmt.Errorf("%w: parameter %q is empty or comes twice", ErrInvalid, name)
		}
		seen[name] = true
		value, rest = rest, ""
		if strings.Contains(value, ";") {
			i := strings.IndexByte(value, ';')
			value, rest = value[:i], value[i:]
		}
		if err := id.set(name, value); err != nil {
			return ID{}, err
		}
	}
	for _, name := range [...]string{"seq", "attempt"} {
		if !seen[name] {
			return ID{}, fmt.Errorf("%w: parameter %q is missing", ErrInvalid, name)
		}
	}
	if seen["first"] && id.First == 0 || seen["step"] && id.Step == "" || seen["age"] && id.Age == 0 {
		return ID{}, fmt.Errorf("%w: an empty parameter", ErrInvalid)
	}
	if err := id.Validate(); err != nil {
		return ID{}, err
	}
	return id, nil
}

func (id *ID) set(name, value string) (err error) {
	switch name {
	case "seq":
		id.Sequence, err = number(name, value)
	case "first":
		id.First, err = number(name, value)
	case "attempt":
		var n int64
		n, err = number(name, value)
		id.Attempt = int(min(n, oncewire.MaxAttempt+1)) // also correct for a 32-bit int
	case "step":
		if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
			return fmt.Errorf("%w: step %s is not in quotes", ErrInvalid, value)
		}
		id.Step = value[1 : len(value)-1]
	case "age":
		var n int64
		n, err = number(name, value)
		id.Age = time.Duration(min(n, int64(math.MaxInt64/time.Second))) * time.Second
	default: // of a later version (law W4)
	}
	return err
}

func number(name, value string) (int64, error) {
	if value == "" || len(value) > 15 || strings.Trim(value, "0123456789") != "" || value[0] == '0' && len(value) > 1 {
		return 0, fmt.Errorf("%w: %s=%s is not a number of 1 to 15 digits", ErrInvalid, name, value)
	}
	return strconv.ParseInt(value, 10, 64)
}

func isLowerHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
