package pgrecords

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/internal/recordsql"
	"github.com/weirflow/weir/internal/guard"
)

const (
	maxShared  = 512                   // calls that share a transaction
	maxKnown   = 10000                 // clients whose numbers are cached
	heldWait   = 50 * time.Millisecond // until a call of a held client is retried
	maxRetries = 3                     // runs of a shared transaction before each call gets its own
)

// Statement is an effect that [Records.Exec] runs.
type Statement struct {
	SQL  string
	Args []any

	// Answer makes the answer from the rows of the statement. An error rolls the
	// statement back. It may be called again, with the transaction. If Answer is nil, the
	// answer is empty.
	Answer func(rows pgx.Rows) ([]byte, error)
}

type clientKey struct {
	scope  string
	client exactlyonce.Client
}

type requestKey struct {
	clientKey
	sequence int64
	step     string
}

type call struct {
	ctx       context.Context
	req       exactlyonce.Request
	statement Statement

	// Written by the goroutine of the batch.
	client int64
	answer []byte
	err    error

	// Guarded by Records.mu.
	left  bool     // its caller has left
	batch *running // nil if it does not run
}

type running struct {
	waiting int // remaining callers; guarded by Records.mu
	cancel  context.CancelFunc
}

// Exec runs a statement as the effect of a request, in a transaction that stores its
// answer and that calls of other goroutines share (a group commit). It returns the answer
// once both are committed. If another attempt has completed the request, Exec returns its
// answer, and this statement has no effect.
//
// The transaction is READ COMMITTED. A failing statement fails only its own call; the
// others are run again. Each Records runs one transaction at a time, so statements of one
// process do not deadlock.
//
// If ctx ends while the transaction runs, Exec returns its cause, and the request is in
// doubt: it may be repeated with the same id. The same holds if the answer to COMMIT is
// lost and the database cannot be asked.
func (r *Records) Exec(ctx context.Context, req exactlyonce.Request, s Statement) ([]byte, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	for {
		c := &call{ctx: ctx, req: req, statement: s}
		member := r.group.Add(c)
		select {
		case <-member.Done():
		case <-ctx.Done():
			if !r.group.Withdraw(member) {
				r.leave(c)
			}
			return nil, describe("exec", req, context.Cause(ctx))
		}
		switch {
		case c.err == nil:
			return c.answer, nil
		case !errors.Is(c.err, errHeld):
			return r.resolve(ctx, req, c.err)
		}
		again := r.clock.Timer(heldWait)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return nil, describe("exec", req, context.Cause(ctx))
		}
	}
}

// leave cancels the batch of a call when all its callers have left, so that it does not
// wait for a hanging server.
func (r *Records) leave(c *call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c.left = true
	if b := c.batch; b != nil {
		if b.waiting--; b.waiting == 0 {
			b.cancel()
		}
	}
}

// begin returns the calls whose callers wait, and a context that ends when all of those
// have left. Watching the context of each call would cost more than the rest.
func (r *Records) begin(calls []*call) (context.Context, context.CancelFunc, []*call) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &running{cancel: cancel}
	r.mu.Lock()
	defer r.mu.Unlock()
	calls = slices.DeleteFunc(calls, func(c *call) bool { return c.left || over(c) })
	for _, c := range calls {
		c.batch = b
	}
	b.waiting = len(calls)
	return ctx, cancel, calls
}

func (r *Records) runAll(_ context.Context, take func() []*call) {
	ctx, cancel, rest := r.begin(take())
	defer cancel()
	for len(rest) > 0 {
		// Attempts of one request run one after the other.
		now, later := make([]*call, 0, len(rest)), []*call(nil)
		seen := make(map[requestKey]bool, len(rest))
		for _, c := range rest {
			key := requestKey{clientKey{c.req.Scope, c.req.Client}, c.req.Sequence, c.req.Step}
			if seen[key] {
				later = append(later, c)
			} else {
				seen[key] = true
				now = append(now, c)
			}
		}
		r.runDistinct(ctx, now)
		rest = later
	}
}

func over(c *call) bool {
	c.err = context.Cause(c.ctx)
	return c.err != nil
}

func (r *Records) runDistinct(ctx context.Context, calls []*call) {
	calls, err := r.lookUp(ctx, calls)
	if err != nil {
		fail(calls, err)
		return
	}
	if slices.ContainsFunc(calls, func(c *call) bool { return c.req.Attempt > 1 }) {
		calls = r.settleKnown(ctx, calls)
	}
shared:
	for range maxRetries {
		if len(calls) == 0 {
			return
		}
		err := r.runShared(ctx, calls)
		switch {
		case isConflict(err):
		case errors.Is(err, errNotSent):
			break shared // running each alone shows whose fault it is
		case isViolation(err):
			calls = r.settleKnown(ctx, calls)
			clear(r.ids) // the database may be restored, or a replica
			calls, err = r.lookUp(ctx, calls)
			if err != nil {
				fail(calls, err)
				return
			}
		case err != nil:
			fail(calls, err)
			return
		default:
			// Remove failed calls. The others were rolled back with them, and run again.
			n := len(calls)
			calls = slices.DeleteFunc(calls, func(c *call) bool { return c.err != nil })
			if len(calls) == n {
				return
			}
		}
	}
	for i := range calls {
		err := r.runShared(ctx, calls[i:i+1])
		if isViolation(err) {
			if len(r.settleKnown(ctx, calls[i:i+1])) == 0 {
				continue
			}
		}
		if err != nil {
			fail(calls[i:i+1], err)
		}
	}
}

// settleKnown sets the answers and errors of completed and stale requests, and returns
// the others.
func (r *Records) settleKnown(ctx context.Context, calls []*call) []*call {
	batch := &pgx.Batch{} // one round trip
	for _, c := range calls {
		batch.Queue(findSQL, c.req.Scope, uuid(c.req.Client), c.req.Sequence, c.req.Step)
	}
	results := r.pool.SendBatch(ctx, batch)
	fresh := make([]*call, 0, len(calls))
	for _, c := range calls {
		answer, found, err := scanFound(results.QueryRow(), c.req)
		switch {
		case err != nil:
		case found:
			c.answer = answer
		default:
			fresh = append(fresh, c)
		}
		if err != nil {
			fail([]*call{c}, err)
		}
	}
	_ = results.Close() // its error was read already
	return fresh
}

// isConflict reports a serialization failure or a deadlock, after which the same
// transaction may be tried again.
func isConflict(err error) bool {
	code := sqlState(err)
	return code == "40001" || code == "40P01"
}

// isViolation reports whether a constraint was violated: a record exists, or a check at
// COMMIT has failed.
func isViolation(err error) bool { return strings.HasPrefix(sqlState(err), "23") }

func fail(calls []*call, err error) {
	for _, c := range calls {
		c.err = describe("exec", c.req, err)
	}
}

// errHeld fails a call whose new client is in a transaction that stays open, so that
// other clients do not wait.
var errHeld = errors.New("the client is held")

// lookUp sets the numbers of the clients, and adds new clients. It returns the calls
// whose clients are not held.
func (r *Records) lookUp(ctx context.Context, calls []*call) ([]*call, error) {
	if len(r.ids) > maxKnown || r.ids == nil {
		r.ids = map[clientKey]int64{}
	}
	var scopes []string
	var clients []pgtype.UUID
	for _, c := range calls {
		key := clientKey{c.req.Scope, c.req.Client}
		if _, known := r.ids[key]; !known {
			r.ids[key] = 0
			scopes, clients = append(scopes, key.scope), append(clients, uuid(key.client))
		}
	}
	if len(scopes) > 0 {
		err := r.addClients(ctx, scopes, clients)
		if err == nil {
			err = r.findClients(ctx, scopes, clients)
		}
		if err != nil {
			clear(r.ids)
			return calls, err
		}
	}
	return slices.DeleteFunc(calls, func(c *call) bool {
		key := clientKey{c.req.Scope, c.req.Client}
		c.client = r.ids[key]
		if c.client == 0 {
			delete(r.ids, key)
			c.err = errHeld
		}
		return c.client == 0
	}), nil
}

// addClients adds the clients that are not held. A held client fails the transaction, so
// each half is tried alone.
func (r *Records) addClients(ctx context.Context, scopes []string, clients []pgtype.UUID) error {
	const add = `INSERT INTO weir_clients (scope, client, mark, heard_at, phase_at)
SELECT scope, client, 0, $3, $3 FROM unnest($1::text[], $2::uuid[]) AS n (scope, client) ORDER BY scope, client ON CONFLICT DO NOTHING`
	err := pgx.BeginTxFunc(ctx, r.pool, impatient, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, add, scopes, clients, r.clock.Now().UnixMicro())
		return err
	})
	if sqlState(err) != lockNotAvailable {
		return err
	}
	half := len(scopes) / 2
	if half == 0 {
		return nil
	}
	if err := r.addClients(ctx, scopes[:half], clients[:half]); err != nil {
		return err
	}
	return r.addClients(ctx, scopes[half:], clients[half:])
}

func (r *Records) findClients(ctx context.Context, scopes []string, clients []pgtype.UUID) error {
	const ids = `SELECT c.id, c.scope, c.client FROM weir_clients c
JOIN unnest($1::text[], $2::uuid[]) AS n (scope, client) ON c.scope = n.scope AND c.client = n.client`
	rows, err := r.pool.Query(ctx, ids, scopes, clients)
	if err != nil {
		return err
	}
	var id int64
	var key clientKey
	_, err = pgx.ForEachRow(rows, []any{&id, &key.scope, (*[16]byte)(&key.client)}, func() error {
		r.ids[key] = id
		return nil
	})
	return err
}

var (
	errRolledBack = errors.New("rolled back because of another call") // ends a transaction because of one of its calls
	errNotSent    = errors.New("the statements were not sent")        // because of a call that is not known
)

// runShared runs calls in one transaction. If one fails, its error is set and all are
// rolled back. A returned error is the error of all calls.
func (r *Records) runShared(ctx context.Context, calls []*call) error {
	err := r.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		defer func() {
			if conn.Conn().PgConn().TxStatus() != 'I' && !conn.Conn().IsClosed() {
				_, _ = conn.Exec(ctx, "rollback") // or the pool closes the connection
			}
		}()
		// One round trip from BEGIN to COMMIT. After an error PostgreSQL skips the rest.
		batch := &pgx.Batch{}
		batch.Queue("begin isolation level read committed")
		for _, c := range calls {
			batch.Queue(c.statement.SQL, c.statement.Args...)
		}
		if !slices.ContainsFunc(calls, func(c *call) bool { return c.statement.Answer != nil }) {
			r.queuePut(batch, calls)
			return readBatch(ctx, conn, batch, true, calls, true)
		}
		if err := readBatch(ctx, conn, batch, true, calls, false); err != nil {
			return err
		}
		batch = &pgx.Batch{} // the answers are known now
		r.queuePut(batch, calls)
		return readBatch(ctx, conn, batch, false, nil, true)
	})
	if errors.Is(err, errRolledBack) {
		return nil
	}
	return err
}

// readBatch sends a batch. It reads the results of BEGIN, the effects, and queuePut.
func readBatch(ctx context.Context, conn *pgxpool.Conn, batch *pgx.Batch, begin bool, effects []*call, put bool) error {
	results := conn.SendBatch(ctx, batch)
	defer results.Close() //nolint:errcheck // below, or its error is one that was read
	if begin {
		if _, err := results.Exec(); err != nil {
			if conn.Conn().IsClosed() {
				return err
			}
			return notSent(err)
		}
	}
	var c *call
	failed := guard.Call(func() error {
		for _, c = range effects {
			if err := c.read(results); err != nil {
				return err
			}
		}
		return nil
	}, func(recovered any) error { return guard.Recovered("pgrecords", recovered) })
	if failed != nil {
		_ = results.Close() // its error was read already
		if isConflict(failed) || conn.Conn().IsClosed() || errors.Is(failed, errNotSent) {
			return failed // of the transaction as a whole
		}
		c.err = failed
		return errRolledBack
	}
	if put {
		var tag pgconn.CommandTag
		for range 3 { // the locks, the records, COMMIT
			var err error
			tag, err = results.Exec()
			if err != nil {
				return err
			}
		}
		if tag.String() != "COMMIT" {
			return fmt.Errorf("%w: COMMIT returned %q", pgx.ErrTxCommitRollback, tag)
		}
	}
	return results.Close()
}

func (c *call) read(results pgx.BatchResults) error {
	c.answer = nil
	if c.statement.Answer == nil {
		_, err := results.Exec()
		return notSent(err)
	}
	rows, err := results.Query()
	if err != nil {
		return notSent(err)
	}
	defer rows.Close()
	answer, err := c.statement.Answer(rows)
	rows.Close()
	c.answer = answer
	return errors.Join(rows.Err(), err)
}

// notSent marks an error that pgx found before it sent the batch, in preparing a
// statement or encoding an argument. The first result returns it, whichever statement it
// is of.
func notSent(err error) error {
	if _, early := errors.AsType[pgx.ErrPreprocessingBatch](err); early || err != nil && sqlState(err) == "" {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return err
}

const (
	// In one order at all servers, to prevent deadlocks.
	lockAllSQL = `SELECT pg_advisory_xact_lock_shared(n) FROM (SELECT DISTINCT n FROM unnest($1::bigint[]) AS u (n) ORDER BY n) AS s`

	// Stores all records or fails: numbers and marks are checked once for each client,
	// and an existing record is an error. Skipping existing records (ON CONFLICT DO
	// NOTHING) and joining the clients for each record took three times as long. If a
	// number belongs to another client, or the mark is too high, client_id is NULL, which
	// is a violation, too.
	putAllSQL = `INSERT INTO weir_answers (client_id, sequence, step, fingerprint, answer, stored_at)
SELECT CASE WHEN cardinality($7::bigint[]) = (SELECT count(*)
	FROM unnest($7::bigint[], $8::bigint[], $9::text[], $10::uuid[]) AS l (client_id, lowest, scope, client)
	JOIN weir_clients c ON c.id = l.client_id AND c.mark <= l.lowest AND c.scope = l.scope AND c.client = l.client) THEN n.client_id END,
	n.sequence, n.step, n.fingerprint, n.answer, $6
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[]) AS n (client_id, sequence, step, fingerprint, answer)`
)

func (r *Records) queuePut(batch *pgx.Batch, calls []*call) {
	calls = slices.Clone(calls)
	slices.SortFunc(calls, func(a, b *call) int { // in one order at all servers
		return cmp.Or(cmp.Compare(a.client, b.client), cmp.Compare(a.req.Sequence, b.req.Sequence), cmp.Compare(a.req.Step, b.req.Step))
	})
	n := len(calls)
	clients := make([]int64, n)
	sequences := make([]int64, n)
	steps := make([]string, n)
	fingerprints, answers := make([][]byte, n), make([][]byte, n)
	var locks, distinct, lowest []int64
	var scopes []string
	var ids []pgtype.UUID
	for i, c := range calls {
		clients[i] = c.client
		sequences[i] = c.req.Sequence
		steps[i] = c.req.Step
		fingerprints[i], answers[i] = recordsql.Fingerprint(&c.req), recordsql.Answer(c.answer)
		if i == 0 || c.client != clients[i-1] {
			locks = append(locks, lockOf(c.req.Scope, c.req.Client))
			distinct, lowest = append(distinct, c.client), append(lowest, c.req.Sequence)
			scopes, ids = append(scopes, c.req.Scope), append(ids, uuid(c.req.Client))
		}
	}
	batch.Queue(lockAllSQL, locks)
	batch.Queue(putAllSQL, clients, sequences, steps, fingerprints, answers, r.clock.Now().UnixMicro(), distinct, lowest, scopes, ids)
	batch.Queue("commit")
}
