package sqlitestore

import (
	"context"
	"fmt"
	"time"

	"github.com/weirflow/weir/delivery/store"
)

// Stage puts messages into a queue in a transaction of the caller: they are there when it commits, and never were if it is
// rolled back. Their consumers are those of the queue, or a relay (package outbox) that brings them to another system.
func (s *Store) Stage(ctx context.Context, tx Tx, queue string, ms ...store.Message) error {
	if err := store.CheckPut(queue, ms...); err != nil {
		return err
	}
	rows, err := newRows(queue, ms)
	if err != nil {
		return err
	}
	return s.read(ctx, func() error {
		var highest int64
		if err := tx.QueryRowContext(ctx, setClock, nanos(s.clock.Now(), 0)).Scan(&highest); err != nil {
			return err
		}
		now := s.clock.AtLeast(time.Unix(0, highest))
		if err := putRows(ctx, tx, now, rows, func() {}); err != nil {
			return fmt.Errorf("staging in queue %q: %w", queue, err)
		}
		return nil
	})
}
