// Package recordsql interprets the rows of a request, for the SQL stores of exactlyonce.
package recordsql

import (
	"time"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

// Values that all databases share.
const (
	Collected int64 = oncewire.MaxSequence + 1 // the mark if all of a client's requests are stale
	Step            = 500                      // rows that one transaction of a collection changes
	Few             = 5                        // rows of a client that is collected together with others
	Together        = 100                      // such clients in one transaction
)

// tombstoneAge is how long a silent client's mark is kept, as a multiple of the time of
// silence, as in server.Results.
const tombstoneAge = 24

// Phases of a client. A collection checks a client again when its phase is over.
const (
	Answers = iota // it may have answers
	Idle           // no answers left, and not silent yet
	Silent         // only its mark is left
	Phases
)

// Times are the bounds of a collection, in microseconds since 1970.
type Times struct {
	Now, Answers, Clients, Marks int64
}

// TimesOf returns the times of a collection.
func TimesOf(now, answers, clients time.Time) Times {
	t := Times{Now: now.UnixMicro()}
	t.Answers, t.Clients = min(t.Now, answers.UnixMicro()), min(t.Now, clients.UnixMicro())
	t.Marks = t.Now - tombstoneAge*(t.Now-t.Clients)
	return t
}

// Client is a client to be collected.
type Client struct {
	ID     int64
	Scope  string
	Client [16]byte
	Few    bool
}

// Chunk returns the next clients to collect in one transaction, and the rest: a single
// client with many rows, or several with few.
func Chunk(due []Client) (chunk, rest []Client) {
	n := 1
	for due[0].Few && n < min(len(due), Together) && due[n].Few {
		n++
	}
	return due[:n], due[n:]
}

// Due returns the time before which clients must have entered a phase for it to be over.
func (t *Times) Due(phase int) int64 { return [Phases]int64{t.Answers, t.Clients, t.Marks}[phase] }

// Found is the stored state of a known client's request.
type Found struct {
	Mark        int64
	Present     bool
	Fingerprint []byte
	Answered    bool // its answer was not removed
	Answer      []byte
}

// Find returns the answer of the request, if it exists, or ErrMismatch or ErrStale.
func (f *Found) Find(req *exactlyonce.Request) (answer []byte, found bool, err error) {
	switch {
	case f.Present && f.Fingerprint != nil && req.Fingerprint != [32]byte{} && [32]byte(f.Fingerprint) != req.Fingerprint:
		return nil, false, exactlyonce.ErrMismatch
	case req.Sequence < f.Mark || f.Present && !f.Answered:
		return nil, false, exactlyonce.ErrStale
	}
	return f.Answer, f.Present, nil
}

// Fingerprint returns the fingerprint to store: NULL if it is not compared.
func Fingerprint(req *exactlyonce.Request) []byte {
	if req.Fingerprint == [32]byte{} {
		return nil
	}
	return req.Fingerprint[:]
}

// Answer returns an answer to store: never NULL, which marks a removed answer.
func Answer(answer []byte) []byte {
	if answer == nil {
		return []byte{}
	}
	return answer
}
