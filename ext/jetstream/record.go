package jetstream

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
	"github.com/weirflow/weir/internal/storearg"
	"github.com/weirflow/weir/internal/varint"
)

// headerState is the header with a message's state: a letter, and numbers of 16
// hexadecimal digits. Its length is fixed, so that a change of state fits into a full
// stream; for replicated streams see admit.
const headerState = "Weir-State"

const (
	waiting = 'w'
	leased  = 'l'
	held    = 'h' // not taken until released
	removed = 'd' // done or moved; the server removes it after a while
)

// headerWhy is the header with the properties that counts use: see [why].
const headerWhy = "Weir-Why"

// headerSize is the server's header with the size of an omitted body.
const headerSize = "Nats-Msg-Size"

// why has the properties by which messages are counted without their bodies.
type why struct {
	Cause   store.Cause `json:"c,omitempty"`
	Reasons []string    `json:"r,omitempty"`
}

func whyOf(m *store.Message) (string, error) {
	if m.Cause == "" && len(m.Meta.Reasons) == 0 {
		return "", nil
	}
	b, err := json.Marshal(why{m.Cause, m.Meta.Reasons})
	return string(b), err
}

// readWhy parses the header. A damaged header counts as empty.
func readWhy(text string) (w why) {
	if text == "" || json.Unmarshal([]byte(text), &w) != nil {
		return why{}
	}
	return w
}

type state struct {
	kind     byte
	position uint64 // the first state's sequence number; 0 in that itself
	arrived  uint64 // when the server stored it, in ns since 1970; 0 in the first state
	fence    uint64 // how often it was taken
	lapses   uint64 // how many leases have lapsed; at most maxLapses
	due      uint64 // of a leased or held message: when it was due
	span     uint64 // waiting: the delay; leased: the lease; from when the server stored this state
}

func (s state) String() string {
	return fmt.Sprintf("%c%016x%016x%016x%016x%016x", s.kind, s.position, s.arrived, s.lapses<<fenceBits|s.fence, s.due, s.span)
}

// The lapses are the first digits of the fence. Versions without them had zeros there,
// and pass them on.
const (
	fenceBits = 56
	maxLapses = 1<<(64-fenceBits) - 1
)

func parseState(text string) (s state, err error) {
	const digits = 16
	numbers := []*uint64{&s.position, &s.arrived, &s.fence, &s.due, &s.span}
	if len(text) != 1+digits*len(numbers) || !strings.ContainsRune(string([]byte{waiting, leased, held, removed}), rune(text[0])) {
		return s, fmt.Errorf("the header %s is %q", headerState, text)
	}
	s.kind, text = text[0], text[1:]
	for _, n := range numbers {
		*n, err = strconv.ParseUint(text[:digits], 16, 64)
		if err != nil {
			return s, fmt.Errorf("the header %s: %w", headerState, err)
		}
		text = text[digits:]
	}
	s.lapses, s.fence = s.fence>>fenceBits, s.fence&(1<<fenceBits-1)
	return s, nil
}

type record struct {
	subject string
	seq     uint64
	at      uint64 // when the server stored it
	state
	why  string
	body []byte // nil if only the headers were read
	size uint32
}

// otherError reports another program's message.
type otherError struct{ error }

func newRecord(subject string, seq uint64, at time.Time, h nats.Header, body []byte) (*record, error) {
	s, err := parseState(h.Get(headerState))
	if err != nil {
		return nil, &otherError{fmt.Errorf("jetstream: message %d, on %s, is not of this store: %w", seq, subject, err)}
	}
	r := &record{subject: subject, seq: seq, at: uint64(at.UnixNano()), state: s, why: h.Get(headerWhy), body: body, size: uint32(len(body))} //nolint:gosec // of a message
	if size, err := strconv.ParseUint(h.Get(headerSize), 10, 32); body == nil && err == nil {
		r.size = uint32(size)
	}
	if r.position == 0 {
		r.position, r.arrived = seq, r.at
	}
	if r.kind == waiting {
		r.due = r.ready()
	}
	return r, nil
}

// ready returns when the message can be taken.
func (r *record) ready() uint64 {
	if r.kind == held || r.at > math.MaxInt64-min(r.span, math.MaxInt64) {
		return math.MaxInt64
	}
	return r.at + r.span
}

func (r *record) free(now uint64) bool {
	return r.kind == waiting || r.kind == leased && r.ready() <= now
}

// entry returns a message as [store.Inspector.List] shows it.
func (r *record) entry(now uint64) store.Entry {
	e := store.Entry{Position: int64(r.position), Arrived: instant(r.arrived), Fence: r.fence, Held: r.kind == held}
	if r.kind == leased && r.ready() > now {
		e.LeasedUntil = instant(r.ready())
	}
	e.Message, _ = r.message() // the message itself shows its damage
	return e
}

func (r *record) then(kind byte, span time.Duration) state {
	s := r.state
	s.kind, s.span = kind, uint64(span)
	return s
}

func (r *record) holds(e entry, fence uint64) bool {
	return r != nil && r.kind == leased && r.position == e.position && r.fence == fence
}

// isMark reports whether r marks the removal of the message at a position, after it was
// taken fence times.
func (r *record) isMark(position, fence uint64) bool {
	return r != nil && r.kind == removed && r.position == position && r.fence == fence
}

// message returns the message that was put. If it is damaged, it returns all its bytes,
// so that it blocks no other message (law D4).
func (r *record) message() (m store.Message, damage error) {
	in := varint.Reader{Rest: r.body}
	head := in.Bytes()
	err := in.Err
	if err == nil {
		err = json.Unmarshal(head, &m)
	}
	m.Payload = in.Rest
	if err != nil {
		damage = fmt.Errorf("jetstream: message %d, on %s, is damaged: %w", r.seq, r.subject, err)
		w := readWhy(r.why)
		m = store.Message{Cause: w.Cause, Payload: r.body}
		stream, _, _ := strings.Cut(strings.TrimPrefix(r.subject, root), ".")
		m.Meta = storearg.Damaged(stream, strconv.FormatUint(r.position, 10), damage)
		m.Meta.Reasons = w.Reasons
	}
	m.Meta.Due = instant(r.due)
	if len(m.Payload) == 0 {
		m.Payload = nil
	}
	return m, damage
}

// body encodes a message without its delay.
func body(m *store.Message) ([]byte, error) {
	head := store.Message{Meta: m.Meta, Cause: m.Cause, Schema: m.Schema}
	head.Meta.Due = time.Time{}
	b, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	b = varint.AppendBytes(make([]byte, 0, len(b)+len(m.Payload)+binary.MaxVarintLen32), b)
	return append(b, m.Payload...), nil
}

func instant(ns uint64) time.Time { return time.Unix(0, int64(ns)).UTC() }

// Messages have the subjects weir.store.<stream>.<queue>.<identity>. In other subjects,
// the token in place of the queue begins with a character that queue names do not begin
// with.
const (
	root = "weir.store."

	recordToken = "=record." // and the kind and the name of a record
	lockToken   = "=lock."   // and the name of a lock
	nameToken   = "=queue."  // and the name of a queue that was put to
)

// maxQueue limits the name of a queue, so that subjects fit into the server's lines.
const maxQueue = 1024

const maxSubject = 3000

// queueSubject returns the prefix of the subjects of a queue's messages.
func (s *Engine) queueSubject(queue string) string {
	return s.prefix + token(queue) + "."
}

func token(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// text returns the text behind a subject's last dot.
func text(subject string) (string, error) {
	b, err := base64.RawURLEncoding.DecodeString(identityOf(subject))
	return string(b), err
}

// identity returns the last part of a message's subject. Messages of a source
// ([NewSource]) with one id and two subjects are two messages (law D1), and so are
// messages with one id and the origins of two puts (law W5).
func identity(m *store.Message) string {
	id := m.Identity()
	b := varint.AppendBytes(nil, []byte(id.ID))
	b = binary.AppendUvarint(b, uint64(id.Visit))
	b = binary.AppendUvarint(b, uint64(id.Merges))
	on := m.Meta.Headers[headers.Subject]
	if on != "" || id.Put != "" {
		b = varint.AppendBytes(b, []byte(on))
	}
	if id.Put != "" { // else as earlier versions write it (law W4)
		b = varint.AppendBytes(b, []byte(id.Put))
	}
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:24])
}

// entry is the content of [store.Lease.Entry].
type entry struct {
	identity string
	position uint64
}

func (e entry) String() string { return e.identity + "." + strconv.FormatUint(e.position, 10) }

func parseEntry(text string) (e entry, err error) {
	var number string
	var ok bool
	e.identity, number, ok = strings.Cut(text, ".")
	if !ok || strings.ContainsAny(e.identity, "*> ") || e.identity == "" {
		return e, errors.New("jetstream: not the name of a message")
	}
	e.position, err = strconv.ParseUint(number, 10, 64)
	return e, err
}

func identityOf(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }
