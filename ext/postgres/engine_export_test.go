package postgres

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
)

// SetStep sets what is called between statements.
func SetStep(s *Engine, step func()) { s.step = step }

// SetNow sets the expression that is the database's clock.
func SetNow(s *Engine, now string) { s.now = now }

// Stage puts messages in a transaction, as PutTx does.
func Stage(ctx context.Context, s *Engine, tx pgx.Tx, queue string, ms ...store.Message) error {
	return s.stage(ctx, tx, queue, ms...)
}

// StageSQL puts messages in a transaction, as PutSQLTx does.
func StageSQL(ctx context.Context, s *Engine, tx *sql.Tx, queue string, ms ...store.Message) error {
	return s.stageSQL(ctx, tx, queue, ms...)
}
