package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

// PutTx puts a value into a queue in a transaction of the caller, a *[sql.Tx] or a *[Tx]:
// the message exists if and only if the transaction commits. delivery.WithMaxDepth does
// not bound it. The queue must be on an [Engine] of this package. A commit of [DB.Write]
// wakes consumers at once. They find a commit of a *[sql.Tx] within about 100 ms.
func PutTx[T any](ctx context.Context, tx execer, q *delivery.Queue[T], v T, opts ...delivery.PutOption) error {
	s, ok := q.Engine().(*Engine)
	if !ok {
		return fmt.Errorf("sqlite: PutTx: queue %q is on a %T", q.Name(), q.Engine())
	}
	m, err := q.Encode(v, opts...)
	if err != nil {
		return err
	}
	return s.stage(ctx, tx, q.Name(), m)
}

func (s *Engine) stage(ctx context.Context, tx execer, queue string, ms ...store.Message) error {
	if err := storearg.Put(queue, ms...); err != nil {
		return err
	}
	rows, err := storesql.NewRows(queue, ms)
	if err != nil {
		return err
	}
	return s.do(ctx, func() error {
		var highest int64
		if err := tx.QueryRowContext(ctx, setClock, nanos(s.clock.Now(), 0)).Scan(&highest); err != nil {
			return err
		}
		now := s.clock.AtLeast(time.Unix(0, highest))
		if err := putRows(ctx, tx, now, rows, func() {}); err != nil {
			return fmt.Errorf("sqlite: staging in queue %q: %w", queue, err)
		}
		return nil
	})
}
