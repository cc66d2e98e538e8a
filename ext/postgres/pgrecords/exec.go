package pgrecords

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/panics"
)

const (
	maxShared  = 512   // calls that share a transaction
	maxKnown   = 10000 // clients whose numbers are kept
	maxRetries = 3     // of a transaction that others share, before each of its calls gets one of its own
)

// Statement is an effect that [Records.Exec] runs.
type Statement struct {
	SQL  string
	Args []any

	// Answer makes the answer of the rows that the statement returns, and may refuse what it did with an error. It may be
	// called again, when the transaction is. Nil: the rows are not looked at, and the answer is empty.
	Answer func(rows pgx.Rows) ([]byte, error)
}

type clientKey struct {
	scope  string
	client exactlyonce.Client
}

// call is one call of Exec.
type call struct {
	ctx       context.Context
	req       exactlyonce.Request
	statement Statement

	// Written by the goroutine of the batch.
	client int64
	answer []byte
	err    error
}

// Exec runs one statement as the effect of a request, in a transaction that stores its answer and that calls of other
// goroutines share: a group commit. It returns the answer once both are committed. If another attempt has completed the
// request, Exec returns the answer of that one and this statement has no effect.
//
// The transaction is READ COMMITTED. An error of a statement is the error of its call; the others are run again. One
// transaction runs at a time for each Records, so statements of one process do not deadlock.
//
// When ctx ends while the transaction runs, Exec returns its cause, and the outcome is unknown: the request may be repeated
// with the same id. That is also so if the answer to COMMIT is lost and the database cannot be asked.
func (r *Records) Exec(ctx context.Context, req exactlyonce.Request, s Statement) ([]byte, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	c := &call{ctx: ctx, req: req, statement: s}
	turn := r.group.Add(c)
	select {
	case <-turn.Done():
	case <-ctx.Done():
		r.group.Withdraw(turn)
		return nil, describe("exec", req, context.Cause(ctx))
	}
	if c.err == nil {
		return c.answer, nil
	}
	return r.resolve(ctx, req, c.err)
}

// runAll runs a batch. Its context ends when all callers have left: none waits for a server that hangs.
func (r *Records) runAll(take func() []*call) {
	batch := take()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(batch)))
	for _, c := range batch {
		stop := context.AfterFunc(c.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})
		defer stop()
	}
	for rest := slices.DeleteFunc(batch, over); len(rest) > 0; {
		// Attempts of one request wait for each other.
		var now, later []*call
		seen := make(map[string]bool, len(rest))
		for _, c := range rest {
			if key := keyOf(c.req); seen[key] {
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

// over reports whether nothing waits for a call any more.
func over(c *call) bool {
	c.err = context.Cause(c.ctx)
	return c.err != nil
}

func keyOf(req exactlyonce.Request) string {
	return fmt.Sprintf("%s\x00%s\x00%d\x00%s", req.Scope, req.Client[:], req.Sequence, req.Step)
}

// runDistinct runs calls of different requests until each has an answer or an error.
func (r *Records) runDistinct(ctx context.Context, calls []*call) {
	if err := r.lookUp(ctx, calls); err != nil {
		fail(calls, err)
		return
	}
	for range maxRetries {
		if len(calls) == 0 {
			return
		}
		err := r.runShared(ctx, calls)
		if isConflict(err) {
			continue
		}
		if err != nil {
			fail(calls, err)
			return
		}
		// What failed is out, and the rest was rolled back with it.
		n := len(calls)
		calls = slices.DeleteFunc(calls, func(c *call) bool { return c.err != nil })
		if len(calls) == n {
			return
		}
	}
	for i := range calls {
		if err := r.runShared(ctx, calls[i:i+1]); err != nil {
			fail(calls[i:i+1], err)
		}
	}
}

// isConflict reports whether a transaction may be tried again as it is: a serialization failure, or a deadlock.
func isConflict(err error) bool {
	code := sqlState(err)
	return code == "40001" || code == "40P01"
}

func fail(calls []*call, err error) {
	for _, c := range calls {
		c.err = describe("exec", c.req, err)
	}
}

// lookUp sets the numbers of the clients, and adds those that are new to the table.
func (r *Records) lookUp(ctx context.Context, calls []*call) error {
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
		if err := r.addClients(ctx, scopes, clients); err != nil {
			clear(r.ids)
			return err
		}
	}
	for _, c := range calls {
		c.client = r.ids[clientKey{c.req.Scope, c.req.Client}]
	}
	return nil
}

func (r *Records) addClients(ctx context.Context, scopes []string, clients []pgtype.UUID) error {
	const add = `INSERT INTO weir_clients (scope, client, mark, heard_at)
SELECT scope, client, 0, $3 FROM unnest($1::text[], $2::uuid[]) AS n (scope, client) ORDER BY scope, client ON CONFLICT DO NOTHING`
	const ids = `SELECT c.id, c.scope, c.client FROM weir_clients c
JOIN unnest($1::text[], $2::uuid[]) AS n (scope, client) ON c.scope = n.scope AND c.client = n.client`
	if _, err := r.pool.Exec(ctx, add, scopes, clients, r.clock.Now().UnixMicro()); err != nil {
		return err
	}
	rows, err := r.pool.Query(ctx, ids, scopes, clients)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[client])
	for _, c := range found {
		r.ids[clientKey{c.Scope, c.Client}] = c.ID
	}
	return err
}

// errRolledBack ends a transaction because of one of its calls.
var errRolledBack = errors.New("rolled back because of another call")

// runShared runs calls in one transaction. If one fails, its error is set and nothing is committed. An error that is
// returned is that of all of them.
func (r *Records) runShared(ctx context.Context, calls []*call) error {
	err := pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if err := runStatements(ctx, tx, calls); err != nil {
			return err
		}
		return r.putAll(ctx, tx, calls)
	})
	if errors.Is(err, errRolledBack) {
		return nil
	}
	return err
}

// runStatements runs the effects in one round trip.
func runStatements(ctx context.Context, tx pgx.Tx, calls []*call) error {
	batch := &pgx.Batch{}
	for _, c := range calls {
		batch.Queue(c.statement.SQL, c.statement.Args...)
	}
	results := tx.SendBatch(ctx, batch)
	var c *call
	failed := guard.Call(func() error {
		for _, c = range calls {
			if err := c.read(results); err != nil {
				return err
			}
		}
		return nil
	}, func(recovered any) error { return panics.New("pgrecords", recovered) })
	if failed == nil {
		return results.Close()
	}
	_ = results.Close() // its error is the one that was read
	if isConflict(failed) || tx.Conn().IsClosed() {
		return failed // of the transaction as a whole
	}
	c.err = failed
	return errRolledBack
}

// read reads the result of the statement.
func (c *call) read(results pgx.BatchResults) error {
	c.answer = nil
	if c.statement.Answer == nil {
		_, err := results.Exec()
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	answer, err := c.statement.Answer(rows)
	rows.Close()
	c.answer = answer
	return errors.Join(rows.Err(), err)
}

const (
	// In one order at all servers, or transactions would wait for each other.
	lockAllSQL = `SELECT pg_advisory_xact_lock_shared(n) FROM (SELECT DISTINCT n FROM unnest($1::bigint[]) AS u (n) ORDER BY n) AS s`

	putAllSQL = `INSERT INTO weir_records (client_id, sequence, step, fingerprint, answer, stored_at)
SELECT c.id, n.sequence, n.step, n.fingerprint, n.answer, $6
FROM unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[]) AS n (client_id, sequence, step, fingerprint, answer)
JOIN weir_clients c ON c.id = n.client_id AND c.mark <= n.sequence
ORDER BY c.id, n.sequence, n.step
ON CONFLICT DO NOTHING RETURNING client_id, sequence, step`
)

// record is the key of a row of the table of records.
type record struct {
	Client   int64
	Sequence int64
	Step     string
}

// putAll stores the answers in one round trip.
func (r *Records) putAll(ctx context.Context, tx pgx.Tx, calls []*call) error {
	n := len(calls)
	locks, clients, sequences := make([]int64, n), make([]int64, n), make([]int64, n)
	steps, fingerprints, answers := make([]string, n), make([][]byte, n), make([][]byte, n)
	for i, c := range calls {
		locks[i], clients[i], sequences[i] = lockOf(c.req.Scope, c.req.Client), c.client, c.req.Sequence
		steps[i], fingerprints[i], answers[i] = c.req.Step, fingerprintOf(c.req), stored(c.answer)
	}
	slices.Sort(locks)
	var put []record
	batch := &pgx.Batch{}
	batch.Queue(lockAllSQL, slices.Compact(locks))
	batch.Queue(putAllSQL, clients, sequences, steps, fingerprints, answers, r.clock.Now().UnixMicro()).Query(func(rows pgx.Rows) (err error) {
		put, err = pgx.CollectRows(rows, pgx.RowToStructByPos[record])
		return err
	})
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	if len(put) == n {
		return nil
	}
	stored := make(map[record]bool, len(put))
	for _, key := range put {
		stored[key] = true
	}
	for _, c := range calls {
		if !stored[record{c.client, c.req.Sequence, c.req.Step}] {
			c.err = r.refusal(ctx, tx, c.req)
		}
	}
	return errRolledBack
}

// refusal returns why a record was not stored.
func (r *Records) refusal(ctx context.Context, tx pgx.Tx, req exactlyonce.Request) error {
	_, state, _, err := find(ctx, tx, req)
	switch {
	case err != nil:
	case state == exactlyonce.StateStale:
		err = exactlyonce.ErrStale
	case state == exactlyonce.StateCompleted:
		err = exactlyonce.ErrCompleted
	default:
		err = errors.New("the record was not stored")
	}
	return describe("put", req, err)
}
