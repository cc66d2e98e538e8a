package pgcheckpoint

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/ext/postgres/internal/failover"
	"github.com/weirflow/weir/internal/sqlmigrate"
	"github.com/weirflow/weir/partitions"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Stores open the stores of pipelines in a database. Safe for concurrent use.
type Stores struct {
	Pool *pgxpool.Pool // required; it stays the caller's
	Keep int           // newest checkpoints to keep for each pipeline; the default is 3, and a negative number is an error
}

var _ partitions.Stores = (*Stores)(nil)

func (s *Stores) check() error {
	if s.Pool == nil || s.Keep < 0 {
		return fmt.Errorf("pgcheckpoint: Stores: Pool is nil, or Keep, which is %d, is negative", s.Keep)
	}
	return nil
}

// Migrate makes or updates the tables. It can be called at each start.
func (s *Stores) Migrate(ctx context.Context) error {
	if err := s.check(); err != nil {
		return err
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("pgcheckpoint: %w", err)
	}
	db := stdlib.OpenDBFromPool(s.Pool)
	if err := errors.Join(sqlmigrate.Apply(ctx, db, sqlmigrate.PostgreSQL, "pgcheckpoint", files), db.Close()); err != nil {
		return fmt.Errorf("pgcheckpoint: %w", err)
	}
	return nil
}

// Open implements [partitions.Stores]. The store takes the pipeline over from all earlier
// stores. The error matches [checkpoint.ErrFenced] if a store was opened for a higher
// epoch.
func (s *Stores) Open(ctx context.Context, pipeline string, epoch uint64) (checkpoint.Store, error) {
	if pipeline == "" {
		return nil, errors.New("pgcheckpoint: the name of a pipeline is empty")
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	var opened int64
	err := pgx.BeginTxFunc(ctx, s.Pool, begin(0), func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `INSERT INTO weir_pipelines AS p (name, epoch, opened, newest) VALUES ($1, $2::text::numeric, 1, 0)
			ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, opened = p.opened + 1
			WHERE p.epoch <= excluded.epoch RETURNING opened`, pipeline, number(epoch)).Scan(&opened)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("pgcheckpoint: %q was opened for a higher epoch than %d: %w", pipeline, epoch, checkpoint.ErrFenced)
	case err != nil:
		failover.Reset(s.Pool, err)
		return nil, fmt.Errorf("pgcheckpoint: opening %q: %w", pipeline, explain(err))
	}
	return &store{Stores: s, pipeline: pipeline, opened: opened}, nil
}

// number formats a uint64 for a column of numeric(20).
func number(n uint64) string { return strconv.FormatUint(n, 10) }

type store struct {
	*Stores
	pipeline string
	opened   int64

	mu     sync.RWMutex // held for reading by calls
	closed bool
}

// begin works with any default isolation of the database: a Save and an Open that have
// waited for each other succeed, or are fenced. The server ends the transaction of a
// frozen process, which the next owner waits for. The time in which a checkpoint arrives
// counts as idle.
func begin(size int) pgx.TxOptions {
	return pgx.TxOptions{BeginQuery: fmt.Sprintf("begin isolation level read committed; set local idle_in_transaction_session_timeout = '%ds'", 60+size>>20)}
}

// do calls f in a transaction in which the store owns the pipeline, with the number of
// its newest checkpoint. f sends size bytes.
func (s *store) do(ctx context.Context, doing, lock string, size int, f func(tx pgx.Tx, newest uint64) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return checkpoint.ErrClosed
	}
	if ctx.Err() != nil {
		return fmt.Errorf("pgcheckpoint: %s: %w", doing, context.Cause(ctx))
	}
	err := pgx.BeginTxFunc(ctx, s.Pool, begin(size), func(tx pgx.Tx) error {
		var opened int64
		var newest string
		err := tx.QueryRow(ctx, "SELECT opened, newest::text FROM weir_pipelines WHERE name = $1"+lock, s.pipeline).Scan(&opened, &newest)
		switch {
		case errors.Is(err, pgx.ErrNoRows) || err == nil && opened != s.opened:
			return fmt.Errorf("pgcheckpoint: %q: %w", s.pipeline, checkpoint.ErrFenced)
		case err != nil:
			return err
		}
		n, err := strconv.ParseUint(newest, 10, 64)
		if err != nil {
			return err
		}
		return f(tx, n)
	})
	if _, wrong := errors.AsType[*checkpoint.NumberError](err); err == nil || wrong || errors.Is(err, checkpoint.ErrNotFound) || errors.Is(err, checkpoint.ErrFenced) {
		return err
	}
	failover.Reset(s.Pool, err)
	return fmt.Errorf("pgcheckpoint: %q: %s: %w", s.pipeline, doing, explain(err))
}

func explain(err error) error {
	return sqlmigrate.Explain(err, "pgcheckpoint.Stores.Migrate", "weir_pipelines", "weir_checkpoints")
}

func (s *store) Save(ctx context.Context, snap *checkpoint.Snapshot) error {
	if err := snap.Validate(); err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := snap.WriteTo(&b); err != nil {
		return err
	}
	return s.do(ctx, fmt.Sprintf("saving checkpoint %d", snap.ID), " FOR UPDATE", b.Len(), func(tx pgx.Tx, newest uint64) error {
		if snap.ID <= newest {
			var same bool
			err := tx.QueryRow(ctx, "SELECT snapshot = $3 FROM weir_checkpoints WHERE pipeline = $1 AND id = $2::text::numeric",
				s.pipeline, number(snap.ID), b.Bytes()).Scan(&same)
			switch {
			case same && snap.ID == newest:
				return nil // saved before
			case err != nil && !errors.Is(err, pgx.ErrNoRows):
				return err
			}
			return &checkpoint.NumberError{Checkpoint: snap.ID, Newest: newest}
		}
		batch := &pgx.Batch{}
		batch.Queue("INSERT INTO weir_checkpoints (pipeline, id, snapshot) VALUES ($1, $2::text::numeric, $3)", s.pipeline, number(snap.ID), b.Bytes())
		batch.Queue("UPDATE weir_pipelines SET newest = $2::text::numeric WHERE name = $1", s.pipeline, number(snap.ID))
		batch.Queue(`DELETE FROM weir_checkpoints WHERE pipeline = $1 AND id <
			(SELECT min(id) FROM (SELECT id FROM weir_checkpoints WHERE pipeline = $1 ORDER BY id DESC LIMIT $2) AS kept)`, s.pipeline, cmp.Or(s.Keep, 3))
		return tx.SendBatch(ctx, batch).Close()
	})
}

func (s *store) Load(ctx context.Context, id uint64) (snap *checkpoint.Snapshot, err error) {
	var b []byte
	err = s.do(ctx, fmt.Sprintf("loading checkpoint %d", id), "", 0, func(tx pgx.Tx, _ uint64) error {
		err := tx.QueryRow(ctx, "SELECT snapshot FROM weir_checkpoints WHERE pipeline = $1 AND id = $2::text::numeric", s.pipeline, number(id)).Scan(&b)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("%w: checkpoint %d of %q", checkpoint.ErrNotFound, id, s.pipeline)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	snap, err = checkpoint.ReadSnapshot(bytes.NewReader(b), int64(len(b)))
	if damage, is := errors.AsType[*checkpoint.CorruptError](err); is {
		damage.Path, damage.Checkpoint = s.pipeline, id
	}
	if err == nil && snap.ID != id {
		return nil, &checkpoint.CorruptError{Path: s.pipeline, Checkpoint: id, Reason: fmt.Sprintf("it has the number %d", snap.ID)}
	}
	return snap, err
}

func (s *store) List(ctx context.Context) (entries []checkpoint.Entry, err error) {
	err = s.do(ctx, "listing", "", 0, func(tx pgx.Tx, _ uint64) error {
		rows, err := tx.Query(ctx, "SELECT id::text, length(snapshot) FROM weir_checkpoints WHERE pipeline = $1 ORDER BY weir_checkpoints.id", s.pipeline)
		if err != nil {
			return err
		}
		entries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e checkpoint.Entry, err error) {
			var id string
			if err := row.Scan(&id, &e.Size); err != nil {
				return e, err
			}
			e.ID, err = strconv.ParseUint(id, 10, 64)
			return e, err
		})
		return err
	})
	return entries, err
}

func (s *store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
