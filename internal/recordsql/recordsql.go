// Package recordsql has what the SQL stores of exactlyonce share: what the rows of a request mean.
package recordsql

import "github.com/weirflow/weir/exactlyonce"

// What the databases agree on.
const (
	Collected int64 = exactlyonce.MaxSequence + 1 // the mark of a client whose requests are all stale
	Step            = 500                         // rows that one transaction of a collection changes
)

// Found is what a database knows of a request, if it knows the client.
type Found struct {
	Mark        int64
	Present     bool // there is a record
	Fingerprint []byte
	Answered    bool // it has its answer still
	Answer      []byte
}

// State returns what is known of the request: StateNew, StateCompleted with the answer, or StateStale. The error is
// ErrMismatch.
func (f *Found) State(req *exactlyonce.Request) (exactlyonce.State, []byte, error) {
	switch {
	case f.Present && f.Fingerprint != nil && req.Fingerprint != [32]byte{} && [32]byte(f.Fingerprint) != req.Fingerprint:
		return exactlyonce.StateNew, nil, exactlyonce.ErrMismatch
	case req.Sequence < f.Mark || f.Present && !f.Answered:
		return exactlyonce.StateStale, nil, nil
	case f.Present:
		return exactlyonce.StateCompleted, f.Answer, nil
	}
	return exactlyonce.StateNew, nil, nil
}

// Fingerprint returns it as it is stored: NULL is one that is not compared.
func Fingerprint(req *exactlyonce.Request) []byte {
	if req.Fingerprint == [32]byte{} {
		return nil
	}
	return req.Fingerprint[:]
}

// Answer returns an answer as it is stored: NULL is one that is gone.
func Answer(answer []byte) []byte {
	if answer == nil {
		return []byte{}
	}
	return answer
}
