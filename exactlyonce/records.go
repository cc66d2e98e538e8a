package exactlyonce

import (
	"context"
	"time"
)

// Records are answers that outlive the process and are shared by the servers of a
// service. A request is identified by scope, client, sequence number and step.
//
// A request whose answer was removed is stale ([ErrStale]) at every server: requests
// below a mark, collected requests, and requests of a silent client up to the highest
// number with an answer, which becomes its mark. Other requests are new. The mark of a
// client is removed after a silence 24 times as long.
//
// The age of an answer counts from when it was stored, or, if the Records are a
// [Toucher], from when it was last requested.
//
// Implementations are in ext/sqlite and ext/postgres. Methods are safe for concurrent
// use.
type Records interface {
	// Find returns the answer of a request. It is not found if the request is new: never
	// seen, or every attempt so far has failed without an effect. Errors match ErrStale
	// if the request stays in doubt, and ErrMismatch if both fingerprints are set and
	// differ, even if only the fingerprint is left. Find does not wait for open
	// transactions. The caller must not change the answer.
	Find(ctx context.Context, req Request) (answer []byte, found bool, err error)

	// Acknowledge raises the mark of the client of each request to its First, never
	// lowers it, and removes the answers below it. A First of 0 only reports that the
	// client is not silent. Only Scope, Client and First of the requests are set. An open
	// transaction that has put for a client may block its mark, for seconds at most:
	// Acknowledge then returns an error and the mark has to be set again.
	Acknowledge(ctx context.Context, marks []Request) error

	// Collect removes answers that were stored before answers. Of a client without an
	// answer or mark since clients, which is not after answers, only a mark is left, and
	// that is removed after a silence 24 times as long. To make the cost proportional to
	// the removed rows, removal may be late by another AnswerAge, or time of silence.
	// Collect works in steps that block others briefly, passes over clients whose
	// transactions stay open, and returns how many answers, and how many whole clients,
	// it removed. Several servers may collect at the same time.
	Collect(ctx context.Context, answers, clients time.Time) (removedAnswers, removedClients int, err error)
}

// Toucher are [Records] in which the age of an answer counts from when it was last
// requested, as in ext/sqlite and ext/postgres.
type Toucher interface {
	// Touch restarts the age of the answers of requests, by their Scope, Client, Sequence
	// and Step, and ignores requests without an answer. server.Results calls it before
	// Collect, with the repeated requests.
	Touch(ctx context.Context, requests []Request) error
}

// Store is Records that are written in transactions of type TX, such as *sql.Tx or pgx.Tx
// (law X2).
type Store[TX any] interface {
	Records

	// Put stores the answer of req as a part of tx, the transaction of its effect: both
	// are committed, or neither. It checks that the request is new when tx commits: of
	// two transactions that store an answer of the same request one waits for the other,
	// and then fails.
	//
	// After an error the caller must roll back. Errors are ErrInProgress if another
	// attempt has stored its answer, ErrStale, ErrMismatch, ErrInvalid, or an error of
	// the database. A Put under a mark or beside a collection that has not committed
	// either sees it or makes it wait.
	//
	// When the answer to COMMIT is lost, Find returns the outcome once the database has
	// ended the transaction. An attempt before that fails in its Put, or waits there.
	Put(ctx context.Context, tx TX, req Request, answer []byte) error
}
