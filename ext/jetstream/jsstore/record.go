package jsstore

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
	"github.com/weirflow/weir/internal/varint"
)

// headerState is the header with the state of a message: a letter, and numbers of 16 hexadecimal digits. All have one length,
// so that a change of state fits into a stream that is full.
const headerState = "Weir-State"

// The letters.
const (
	waiting = 'w'
	leased  = 'l'
	gone    = 'd' // was moved; the server removes it after a while
)

// state is what becomes of a message.
type state struct {
	kind     byte
	position uint64 // the sequence number of the first state; 0 in that itself
	arrived  uint64 // when the server had it, in ns since 1970; 0 in the first state
	fence    uint64 // how often it was taken
	lapses   uint64 // how many of its leases have ended; at most maxLapses
	due      uint64 // leased: when it was due
	span     uint64 // waiting: the delay; leased: the lease; from when the server had this state
}

func (s state) String() string {
	return fmt.Sprintf("%c%016x%016x%016x%016x%016x", s.kind, s.position, s.arrived, s.lapses<<fenceBits|s.fence, s.due, s.span)
}

// The lapses are the first digits of the fence, where versions without them had zeros: they pass them on.
const (
	fenceBits = 56
	maxLapses = 1<<(64-fenceBits) - 1
)

func parseState(text string) (s state, err error) {
	const digits = 16
	numbers := []*uint64{&s.position, &s.arrived, &s.fence, &s.due, &s.span}
	if len(text) != 1+digits*len(numbers) || !strings.ContainsRune(string([]byte{waiting, leased, gone}), rune(text[0])) {
		return s, fmt.Errorf("the header %s is %q", headerState, text)
	}
	s.kind, text = text[0], text[1:]
	for _, n := range numbers {
		if *n, err = strconv.ParseUint(text[:digits], 16, 64); err != nil {
			return s, fmt.Errorf("the header %s: %w", headerState, err)
		}
		text = text[digits:]
	}
	s.lapses, s.fence = s.fence>>fenceBits, s.fence&(1<<fenceBits-1)
	return s, nil
}

// record is a message of the stream.
type record struct {
	subject string
	seq     uint64
	at      uint64 // when the server had it
	state
	body []byte // nil if only the headers were read
}

func newRecord(subject string, seq uint64, at time.Time, h nats.Header, body []byte) (*record, error) {
	s, err := parseState(h.Get(headerState))
	if err != nil {
		return nil, fmt.Errorf("jsstore: message %d, on %s, is not of this store: %w", seq, subject, err)
	}
	r := &record{subject: subject, seq: seq, at: uint64(at.UnixNano()), state: s, body: body}
	if r.position == 0 {
		r.position, r.arrived = seq, r.at
	}
	if r.kind == waiting {
		r.due = r.ready()
	}
	return r, nil
}

// ready returns when it can be taken.
func (r *record) ready() uint64 {
	if r.at > math.MaxInt64-min(r.span, math.MaxInt64) {
		return math.MaxInt64
	}
	return r.at + r.span
}

// then returns the next state.
func (r *record) then(kind byte, span time.Duration) state {
	s := r.state
	s.kind, s.span = kind, uint64(span)
	return s
}

// holds says whether a lease is that of r.
func (r *record) holds(e entry, fence uint64) bool {
	return r != nil && r.kind == leased && r.position == e.position && r.fence == fence
}

// message returns what was put.
func (r *record) message() (m store.Message, err error) {
	in := varint.Reader{Rest: r.body}
	head := in.Bytes()
	if in.Err != nil {
		return m, fmt.Errorf("jsstore: message %d, on %s, is damaged: %w", r.seq, r.subject, in.Err)
	}
	if err := json.Unmarshal(head, &m); err != nil {
		return m, fmt.Errorf("jsstore: message %d, on %s, is damaged: %w", r.seq, r.subject, err)
	}
	m.Meta.Due = instant(r.due)
	m.Payload = in.Rest
	if len(m.Payload) == 0 {
		m.Payload = nil
	}
	return m, nil
}

// body returns a message without its delay as bytes.
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

// The subjects: weir.store.<stream>.<queue>.<identity>.
const root = "weir.store."

// maxQueue is how long the name of a queue may be, so that subjects fit into the server's lines.
const maxQueue = 1024

// queueSubject returns the subject of a queue, without that of the message.
func (s *Store) queueSubject(queue string) string {
	return s.prefix + base64.RawURLEncoding.EncodeToString([]byte(queue)) + "."
}

// queueOf returns the queue of a subject.
func (s *Store) queueOf(subject string) (string, error) {
	name, _, ok := strings.Cut(strings.TrimPrefix(subject, s.prefix), ".")
	if !ok {
		return "", fmt.Errorf("jsstore: the subject %s is not of this store", subject)
	}
	queue, err := base64.RawURLEncoding.DecodeString(name)
	return string(queue), err
}

// identity returns the last part of the subject of a message.
func identity(m *store.Message) string {
	id := m.Identity()
	b := varint.AppendBytes(nil, []byte(id.ID))
	b = binary.AppendUvarint(b, uint64(id.Visit))
	b = binary.AppendUvarint(b, uint64(id.Merges))
	sum := sha256.Sum256(b)
	return base64.RawURLEncoding.EncodeToString(sum[:24])
}

// entry is what [store.Lease.Entry] says: which subject, and since when.
type entry struct {
	identity string
	position uint64
}

func (e entry) String() string { return e.identity + "." + strconv.FormatUint(e.position, 10) }

func parseEntry(text string) (e entry, err error) {
	var number string
	var ok bool
	if e.identity, number, ok = strings.Cut(text, "."); !ok || strings.ContainsAny(e.identity, "*> ") || e.identity == "" {
		return e, errors.New("jsstore: no name of a message")
	}
	e.position, err = strconv.ParseUint(number, 10, 64)
	return e, err
}

func identityOf(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }
