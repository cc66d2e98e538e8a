package sqliterecords

import (
	"context"
	"database/sql"
	"errors"
	"strings"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/internal/recordsql"
	"github.com/weirflow/weir/ext/sqlite"
)

const (
	maxShared = 512 // calls that share a transaction
	maxRows   = 8   // records of one INSERT: the driver's binding time is quadratic in the parameters
)

// For clients whose marks are known. Parameters without numbers are bound faster.
const insertOneSQL = `INSERT OR IGNORE INTO weir_answers (stored_at, client_id, sequence, step, fingerprint, answer) VALUES (?1, ?, ?, ?, ?, ?)`

var insertManySQL = insertOneSQL + strings.Repeat(", (?1, ?, ?, ?, ?, ?)", maxRows-1)

type call struct {
	ctx    context.Context
	req    exactlyonce.Request
	effect func(ctx context.Context, tx *sqlite.Tx) ([]byte, error)

	// Written by the goroutine of the batch.
	client int64
	answer []byte
	err    error
	alone  bool // must run by itself
}

// Run calls effect in a transaction that stores the answer it returns, and returns that
// answer once both are committed. It is a group commit: calls of many goroutines share a
// transaction. The rules of [sqlite.DB.Write] apply to effect; if a call of a transaction
// fails, all of them run again, each by itself.
//
// If another attempt has completed the request, Run returns its answer, and this effect
// is rolled back. It returns errors of effect, of Put and of the database. After an error
// the effect is not committed, but a failing disk leaves it in doubt.
func (r *Records) Run(ctx context.Context, req exactlyonce.Request, effect func(ctx context.Context, tx *sqlite.Tx) ([]byte, error)) ([]byte, error) {
	if err := req.Validate(); err != nil {
		return nil, err
	}
	c := &call{ctx: ctx, req: req, effect: effect}
	err := r.group.Do(ctx, c)
	switch {
	case err == nil && c.alone:
		err = r.runAlone(c)
	case err == nil:
		err = c.err
	}
	if err == nil {
		return c.answer, nil
	}
	// Law X2: after any failure, the record shows whether an attempt took effect. The
	// caller's context may have ended.
	if stored, found, findErr := r.Find(context.WithoutCancel(ctx), req); findErr == nil && found {
		return stored, nil
	}
	return nil, explain(err)
}

// runAlone runs a call whose errors are its own.
func (r *Records) runAlone(c *call) error {
	return r.db.Write(c.ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		if c.req.Attempt > 1 {
			if done, err := c.lookUp(ctx, tx); done || err != nil {
				return err
			}
		}
		var err error
		c.answer, err = c.effect(ctx, tx)
		if err != nil {
			return err
		}
		return r.Put(ctx, tx, c.req, c.answer)
	})
}

// lookUp sets the answer and returns true if another attempt has completed the request,
// so its effect need not run. It returns an error if the effect must not run.
func (c *call) lookUp(ctx context.Context, tx *sqlite.Tx) (done bool, err error) {
	_, answer, found, err := find(ctx, tx, c.req)
	if err != nil {
		return false, describe("find", c.req, err)
	}
	if found {
		c.answer = answer
	}
	return found, nil
}

// runAll runs a batch in one transaction. If that fails, its calls run alone.
func (r *Records) runAll(ctx context.Context, take func() []*call) {
	err := r.db.Write(ctx, func(ctx context.Context, tx *sqlite.Tx) error {
		return r.runShared(ctx, tx, take())
	})
	if err == nil {
		return
	}
	calls := take()
	for _, c := range calls {
		c.err, c.alone = err, len(calls) > 1 || errors.Is(err, errNotStored)
	}
}

// runShared runs the effects of a batch and stores their answers. An error rolls back
// all. It may run twice.
func (r *Records) runShared(ctx context.Context, tx *sqlite.Tx, batch []*call) error {
	b := sharing{tx: tx, now: r.clock.Now().UnixMicro(), clients: map[clientKey]client{}}
	for _, c := range batch {
		c.err, c.alone = context.Cause(c.ctx), false
		b.repeated = b.repeated || c.req.Attempt > 1
	}
	calls := make([]*call, 0, len(batch))
	for _, c := range batch {
		if c.err != nil {
			continue // its caller leaves
		}
		run, err := b.admits(ctx, c)
		if err != nil {
			return err
		}
		if run {
			calls = append(calls, c)
		}
	}
	for _, c := range calls {
		var err error
		c.answer, err = c.effect(context.WithoutCancel(c.ctx), tx)
		if err != nil {
			return err
		}
	}
	return b.put(ctx, calls)
}

type sharing struct {
	tx       *sqlite.Tx
	now      int64
	clients  map[clientKey]client
	repeated bool // some are second attempts
	seen     map[record]bool
}

type clientKey struct {
	scope  string
	client exactlyonce.Client
}

type client struct{ id, mark int64 }

type record struct {
	client, sequence int64
	step             string
}

// admits reports whether the effect of a call is to run. Otherwise the call has its
// answer or its error, or must run alone. A returned error is the error of all calls.
func (b *sharing) admits(ctx context.Context, c *call) (bool, error) {
	key := clientKey{c.req.Scope, c.req.Client}
	known, ok := b.clients[key]
	if !ok {
		var err error
		known, err = b.client(ctx, key)
		if err != nil {
			return false, err
		}
		b.clients[key] = known
	}
	c.client = known.id
	if c.req.Attempt > 1 || c.req.Sequence < known.mark {
		var done bool
		done, c.err = c.lookUp(ctx, b.tx)
		if done || c.err != nil {
			return false, nil //nolint:nilerr // it is an error of this call, not of the batch
		}
	}
	if b.repeated { // the other attempt may be here, too
		if b.seen == nil {
			b.seen = map[record]bool{}
		}
		key := record{c.client, c.req.Sequence, c.req.Step}
		c.alone = b.seen[key]
		b.seen[key] = true
	}
	return !c.alone, nil
}

// client returns the id and mark of a client, which it adds if new. Marks do not change
// until the transaction ends.
func (b *sharing) client(ctx context.Context, key clientKey) (c client, err error) {
	const query = "SELECT id, mark FROM weir_clients WHERE scope = ? AND client = ?"
	err = b.tx.QueryRowContext(ctx, query, key.scope, key.client[:]).Scan(&c.id, &c.mark)
	if !errors.Is(err, sql.ErrNoRows) {
		return c, err
	}
	if _, err := b.tx.ExecContext(ctx, clientSQL, key.scope, key.client[:], b.now); err != nil {
		return c, err
	}
	err = b.tx.QueryRowContext(ctx, query, key.scope, key.client[:]).Scan(&c.id, &c.mark)
	return c, err
}

var errNotStored = errors.New("a record was not stored")

func (b *sharing) put(ctx context.Context, calls []*call) error {
	args := make([]any, 1, 1+5*maxRows)
	args[0] = b.now
	for rest := calls; len(rest) > 0; {
		n, query := 1, insertOneSQL
		if len(rest) >= maxRows {
			n, query = maxRows, insertManySQL
		}
		args = args[:1]
		for _, c := range rest[:n] {
			args = append(args, c.client, c.req.Sequence, c.req.Step, recordsql.Fingerprint(&c.req), recordsql.Answer(c.answer))
		}
		result, err := b.tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		if stored, err := result.RowsAffected(); err != nil || stored != int64(n) {
			return errors.Join(err, errNotStored)
		}
		rest = rest[n:]
	}
	return nil
}
