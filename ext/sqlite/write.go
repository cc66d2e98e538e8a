package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weirflow/weir/internal/guard"
)

const (
	maxShared   = 512 // calls that share a transaction
	maxPrepared = 128 // statements kept prepared
)

// errTxDone is the error of statements after the function of Write has returned.
var errTxDone = errors.New("sqlite: the function of this transaction has returned")

type write struct {
	ctx   context.Context
	fn    func(context.Context, *Tx) error
	err   error // read after the batch has run
	dues  dues  // of its transaction; owned by the goroutine of the batch
	state atomic.Int32
	left  chan struct{} // closed when the state becomes hasLeft
}

// States of a write. A batch that failed returns its writes from runs to waits.
const (
	waits   int32 = iota // fn has not run, or its effect was rolled back
	runs                 // fn runs, or its effect is not committed yet
	hasLeft              // ctx has ended while the write waited: fn will not run
)

// statements stay prepared. They belong to the goroutine of the batch.
type statements struct {
	prepared map[string]*sql.Stmt
	wanted   []string // to be prepared before the next transaction
}

// Tx is the transaction of a call of [DB.Write]. The function's error decides whether it
// is committed. Its statements stay prepared. Contexts carry values only, since an
// aborted statement would roll back the work of others in the same transaction.
//
// After an error of a statement the call fails: SQLite may have rolled back the
// transaction, and the next statements would be committed at once.
type Tx struct {
	shared *shared
	failed error // of a statement, or errTxDone
	dues   dues  // of messages put or released; may be nil
}

// shared is a transaction of several calls.
type shared struct {
	statements *statements
	tx         *sql.Tx
	stmts      map[string]*sql.Stmt // prepared, for this transaction
}

// Write runs fn in a transaction, which it may share with other calls, and returns when
// that is committed or rolled back. fn must only run its statements and close its rows,
// since all writers wait for it. An error or panic of fn undoes its statements, and is
// returned. The others then run again, so fn must set its results anew, not add to them.
//
// If ctx ends while the call waits for its turn or for another process, Write returns
// the cause of ctx. Once fn runs, only fn can end the call.
func (db *DB) Write(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) error {
	if fn == nil {
		panic("sqlite.DB.Write: fn is nil")
	}
	w := &write{ctx: ctx, fn: fn, left: make(chan struct{})}
	item := db.group.Add(w)
	select {
	case <-item.Done():
		return w.err
	case <-ctx.Done():
	}
	if db.group.Withdraw(item) {
		return context.Cause(ctx)
	}
	select {
	case <-item.Done():
		return w.err
	case <-w.left:
		return context.Cause(ctx)
	}
}

// runAll runs a batch. ctx ends if all calls have left before it has the write lock.
func (db *DB) runAll(ctx context.Context, take func() []*write) {
	// Savepoints copy each changed page, which doubles the time. So the first try does
	// without.
	tx, err := db.begin(ctx)
	batch := take()
	if err == nil {
		batch = start(batch)
		var committed bool
		committed, err = db.runShared(tx, batch, (*shared).run)
		if !committed && len(batch) > 1 {
			batch, err = db.runAgain(batch)
		}
	}
	for _, w := range batch {
		if w.err == nil && err != nil {
			w.err = fmt.Errorf("sqlite: the transaction was rolled back: %w", err)
		}
		if w.err == nil {
			db.watcher.note(w.dues)
		}
	}
}

// start returns the calls whose contexts have not ended, and lets them run.
func start(batch []*write) []*write {
	return slices.DeleteFunc(batch, func(w *write) bool {
		w.err = context.Cause(w.ctx)
		return w.err != nil || !w.state.CompareAndSwap(waits, runs)
	})
}

// runAgain runs a batch that was rolled back, each call in a savepoint, and returns the
// calls that have not left.
func (db *DB) runAgain(batch []*write) ([]*write, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var present atomic.Int64
	present.Store(int64(len(batch)))
	for _, w := range batch {
		w.state.Store(waits)
		stop := context.AfterFunc(w.ctx, func() {
			if !w.state.CompareAndSwap(waits, hasLeft) {
				return
			}
			close(w.left)
			if present.Add(-1) == 0 {
				cancel()
			}
		})
		defer stop()
	}
	tx, err := db.begin(ctx)
	if err != nil {
		return batch, err
	}
	batch = start(batch)
	_, err = db.runShared(tx, batch, (*shared).runInSavepoints)
	return batch, err
}

func (db *DB) begin(ctx context.Context) (*sql.Tx, error) {
	if err := db.check(); err != nil {
		return nil, err
	}
	db.prepare(ctx)
	return db.writer.BeginTx(ctx, nil)
}

// runShared runs a batch in a transaction, and commits if run returns commit. An error is
// the error of all calls.
func (db *DB) runShared(tx *sql.Tx, batch []*write, run func(s *shared, batch []*write) (commit bool, err error)) (committed bool, err error) {
	if len(batch) == 0 {
		return true, tx.Rollback()
	}
	s := &shared{statements: &db.statements, tx: tx, stmts: map[string]*sql.Stmt{}}
	commit, err := run(s, batch)
	if !commit || err != nil {
		_ = tx.Rollback() // fails if SQLite has done so already
		return false, err
	}
	return true, tx.Commit()
}

func (s *shared) run(batch []*write) (commit bool, err error) {
	var w *write
	failed := guard.Call(func() error {
		for _, w = range batch {
			if err := s.call(w); err != nil {
				return err
			}
		}
		return nil
	}, func(recovered any) error { return guard.Recovered("sqlite", recovered) })
	w.err = failed
	return failed == nil, nil
}

// runInSavepoints runs each call in a savepoint. An error means that SQLite has given up
// the whole transaction, for example on a full disk.
func (s *shared) runInSavepoints(batch []*write) (commit bool, err error) {
	ctx := context.Background()
	for _, w := range batch {
		if err := s.exec(ctx, "SAVEPOINT weir"); err != nil {
			return false, err
		}
		w.err = guard.Call(func() error { return s.call(w) }, func(recovered any) error {
			return guard.Recovered("sqlite", recovered)
		})
		if w.err != nil {
			if s.exec(ctx, "ROLLBACK TO weir") != nil {
				return false, w.err
			}
		}
		if err := s.exec(ctx, "RELEASE weir"); err != nil {
			return false, err
		}
	}
	return true, nil
}

func (s *shared) call(w *write) error {
	ctx := context.WithoutCancel(w.ctx)
	tx := &Tx{shared: s}
	defer func() {
		w.dues = tx.dues
		tx.failed = errTxDone
	}()
	return cmp.Or(w.fn(ctx, tx), tx.failed)
}

func (s *shared) exec(ctx context.Context, query string) error {
	var err error
	if stmt := s.stmt(ctx, query); stmt != nil {
		_, err = stmt.ExecContext(ctx)
	} else {
		_, err = s.tx.ExecContext(ctx, query)
	}
	return err
}

// stmt returns a prepared statement, or nil if the statement is not prepared yet:
// preparing it now would wait for the connection that this transaction holds.
func (s *shared) stmt(ctx context.Context, query string) *sql.Stmt {
	stmt := s.stmts[query]
	if stmt == nil {
		if prepared := s.statements.prepared[query]; prepared != nil {
			stmt = s.tx.StmtContext(ctx, prepared)
			s.stmts[query] = stmt
		} else if len(s.statements.wanted) < maxPrepared {
			s.statements.wanted = append(s.statements.wanted, query)
		}
	}
	return stmt
}

// ExecContext runs a statement that returns no rows.
func (t *Tx) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	ctx, err := t.usable(ctx)
	if err != nil {
		return nil, err
	}
	var result sql.Result
	if stmt := t.shared.stmt(ctx, query); stmt != nil {
		result, err = stmt.ExecContext(ctx, args...)
	} else {
		result, err = t.shared.tx.ExecContext(ctx, query, args...)
	}
	t.failed = err
	return result, err
}

// QueryContext runs a statement that returns rows. Read and close them before the
// function returns.
func (t *Tx) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	ctx, err := t.usable(ctx)
	if err != nil {
		return nil, err
	}
	var rows *sql.Rows
	if stmt := t.shared.stmt(ctx, query); stmt != nil {
		rows, err = stmt.QueryContext(ctx, args...)
	} else {
		rows, err = t.shared.tx.QueryContext(ctx, query, args...)
	}
	t.failed = err
	return rows, err
}

// QueryRowContext runs a statement that returns one row.
func (t *Tx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	ctx, err := t.usable(ctx)
	if err != nil {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		return t.shared.tx.QueryRowContext(ended, query) // the only way to a Row with an error
	}
	var row *sql.Row
	if stmt := t.shared.stmt(ctx, query); stmt != nil {
		row = stmt.QueryRowContext(ctx, args...)
	} else {
		row = t.shared.tx.QueryRowContext(ctx, query, args...)
	}
	t.failed = row.Err()
	return row
}

func (t *Tx) noteDue(queue string, delay time.Duration) {
	if t.dues == nil {
		t.dues = dues{}
	}
	t.dues.add(queue, delay)
}

// tryExec runs a statement that changes one row. If the database refuses it, for example
// by a trigger of the user, tryExec returns the refusal. Only this statement is undone
// then, and the call can continue.
func (t *Tx) tryExec(ctx context.Context, query string, args ...any) (refusal, err error) {
	_, err = t.ExecContext(ctx, query, args...)
	if !isRefusal(err) {
		return nil, err
	}
	// A trigger may have ended the transaction (RAISE(ROLLBACK)). BEGIN finds out: it
	// fails inside a transaction.
	_, beginErr := t.shared.tx.ExecContext(context.WithoutCancel(ctx), "BEGIN")
	hasEnded := beginErr == nil
	if hasEnded {
		return nil, err
	}
	t.failed = nil
	return err, nil
}

func (t *Tx) usable(ctx context.Context) (context.Context, error) {
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	return ctx, t.failed
}

// prepare prepares statements that had to run unprepared.
func (db *DB) prepare(ctx context.Context) {
	s := &db.statements
	for _, query := range s.wanted {
		if len(s.prepared) >= maxPrepared || s.prepared[query] != nil {
			continue
		}
		if stmt, err := db.writer.PrepareContext(ctx, query); err == nil {
			if s.prepared == nil {
				s.prepared = map[string]*sql.Stmt{}
			}
			s.prepared[query] = stmt
		}
	}
	s.wanted = s.wanted[:0]
}
