package pgretry

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weirflow/weir/predicates"
)

// Tracer reports each statement to the attempt of its context ([predicates.ReportSent]),
// for calls that commit more than once: a refusal does not undo earlier statements.
//
//	// or multitracer.New(pgretry.Tracer{}, yours)
//	config.ConnConfig.Tracer = pgretry.Tracer{}
//
// A report is taken back if the statement was not sent or was refused, and, inside a
// transaction, until that commits. A SELECT counts too, since it may call a function: if
// it only reads, give it the context predicates.WithStageReporter(ctx, nil). Safe for
// concurrent use.
type Tracer struct{}

var _ interface {
	pgx.QueryTracer
	pgx.BatchTracer
	pgx.CopyFromTracer
} = Tracer{}

type statementKey struct{}

type statement struct {
	sent predicates.SentRequest
	over atomic.Bool
}

func start(ctx context.Context) context.Context {
	return context.WithValue(ctx, statementKey{}, &statement{sent: predicates.ReportSent(ctx)})
}

// end is called twice by pgx for a batch that fails before it is sent. A second take-back
// would count for another statement of the call.
func end(ctx context.Context, conn *pgx.Conn, tag pgconn.CommandTag, err error) {
	if s, ok := ctx.Value(statementKey{}).(*statement); ok && !s.over.Swap(true) && withoutEffect(conn, tag, err) {
		s.sent.Refused()
	}
}

// withoutEffect reports whether a statement that ended like this has certainly had no
// effect yet.
func withoutEffect(conn *pgx.Conn, tag pgconn.CommandTag, err error) bool {
	if err == nil {
		return conn.PgConn().TxStatus() != 'I' || tag.String() == "ROLLBACK"
	}
	if unsent(err) {
		return true
	}
	code, _ := sqlState(err)
	_, again := reasonOf(err, code)
	return again || isRefused(code)
}

// TraceQueryStart implements pgx.QueryTracer.
func (Tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return start(ctx)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (Tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	end(ctx, conn, data.CommandTag, data.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (Tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return start(ctx)
}

// TraceBatchQuery implements pgx.BatchTracer. A batch is reported as a whole.
func (Tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer. One statement of a batch may have been
// committed before another was refused.
func (Tracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	if data.Err == nil || unsent(data.Err) {
		end(ctx, conn, pgconn.CommandTag{}, data.Err)
	}
}

// TraceCopyFromStart implements pgx.CopyFromTracer.
func (Tracer) TraceCopyFromStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	return start(ctx)
}

// TraceCopyFromEnd implements pgx.CopyFromTracer.
func (Tracer) TraceCopyFromEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceCopyFromEndData) {
	end(ctx, conn, data.CommandTag, data.Err)
}
