package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/internal/storesql"
	"github.com/weirflow/weir/internal/storearg"
)

// never is the time of a held message in the column at. The time alone marks it, so that
// workers of earlier versions leave it alone. The column due keeps its due time. Earlier
// versions of PostgreSQL cannot calculate with 'infinity'.
const never = "'9999-12-31 00:00:00+00'::timestamptz"

// Records implements [store.Keeper].
func (s *Engine) Records(ctx context.Context, kind, after string, limit int) (list []store.Record, err error) {
	err = s.do(ctx, func() error {
		list, err = records(ctx, s.pool, kind, after, limit)
		return err
	})
	return list, err
}

func records(ctx context.Context, q querier, kind, after string, limit int) ([]store.Record, error) {
	rows, err := q.Query(ctx, "SELECT name, version, value FROM weir_records WHERE kind = $1 AND name > $2 ORDER BY name LIMIT $3", kind, after, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Record, error) {
		r := store.Record{Kind: kind}
		return r, row.Scan(&r.Name, &r.Version, &r.Value)
	})
}

// patient begins a transaction of several round trips. The server ends it if the process
// freezes, because others wait for its rows.
var patient = pgx.TxOptions{BeginQuery: patientBegin}

const patientBegin = "begin; set local idle_in_transaction_session_timeout = '30s'"

// Update implements [store.Keeper].
func (s *Engine) Update(ctx context.Context, f func(context.Context, store.Tx) error) error {
	var woken map[string]dues
	var released []string
	err := s.do(ctx, func() error {
		woken = map[string]dues{}
		return pgx.BeginTxFunc(ctx, s.pool, patient, func(tx pgx.Tx) error {
			t := &keeperTx{s: s, tx: tx, woken: woken}
			s.step()
			if err := tx.QueryRow(ctx, "SELECT "+s.now).Scan(&t.now); err != nil {
				return err
			}
			s.step()
			err := f(ctx, t)
			s.step()
			released = t.released
			return err
		})
	})
	if err != nil {
		return err
	}
	for _, queue := range released {
		s.floors.noteDue(queue, storesql.Place{})
	}
	for queue, d := range woken {
		s.note(queue, d)
	}
	return nil
}

type keeperTx struct {
	s        *Engine
	tx       pgx.Tx
	now      time.Time
	woken    map[string]dues // queues that have received messages, and when the messages are due
	released []string        // queues whose held messages are due as before
}

func (t *keeperTx) Now() time.Time { return t.now }

func (t *keeperTx) Records(ctx context.Context, kind, after string, limit int) ([]store.Record, error) {
	return records(ctx, t.tx, kind, after, limit)
}

func (t *keeperTx) Write(ctx context.Context, r store.Record) error {
	if err := storearg.Record(r); err != nil {
		return err
	}
	query, args := storesql.WriteRecord(r)
	tag, err := t.tx.Exec(ctx, query, args...)
	t.s.step()
	if err == nil && tag.RowsAffected() == 0 {
		err = store.ErrChanged
	}
	return err
}

// Announce implements [store.Tx].
func (t *keeperTx) Announce() { t.woken[watched] = dues{now: true} }

// watched is announced in place of the name of a queue when records change.
const watched = "weir records"

// Watch implements [store.Keeper].
func (s *Engine) Watch(ctx context.Context, changed func()) error {
	return s.Wake(ctx, watched, func(bool) { changed() })
}

func (t *keeperTx) Edit(ctx context.Context, edits ...store.Edit) ([]bool, error) {
	if err := storearg.Edits(edits...); err != nil {
		return nil, err
	}
	done := make([]bool, len(edits))
	groups := map[store.Action][]int{}
	for i := range edits {
		groups[edits[i].Do] = append(groups[edits[i].Do], i)
	}
	for kind, indices := range groups {
		changed, err := t.edit(ctx, kind, edits, indices)
		if err != nil {
			return nil, err
		}
		for _, i := range indices {
			done[i] = changed[edits[i].Entry.Position]
		}
	}
	return done, nil
}

// Messages as they were listed, and not leased. For the subqueries, see settledLeases.
const (
	listed = `unnest((SELECT $1::bigint[]), (SELECT $2::bigint[]), (SELECT $3::text[])) AS l (position, fence, queue)`
	same   = ` m.position = l.position AND m.queue = l.queue`
	free   = ` WHERE` + same + ` AND m.fence = l.fence AND (m.leased IS NULL OR m.leased <= $4)`
)

// edit makes edits of one kind, and returns the edited positions.
func (t *keeperTx) edit(ctx context.Context, kind store.Action, edits []store.Edit, indices []int) (map[int64]bool, error) {
	var positions, fences []int64
	var queues []string
	for _, i := range indices {
		e := &edits[i]
		positions = append(positions, e.Entry.Position)
		fences = append(fences, int64(e.Entry.Fence))
		queues = append(queues, e.Queue) //nolint:gosec // it comes from the database
	}
	args := []any{positions, fences, queues, t.now}
	const returning = ` RETURNING m.position`
	switch kind {
	case store.Purge:
		return t.remove(ctx, "DELETE FROM weir_messages AS m USING "+listed+" WHERE"+same, args[:3]...)
	case store.Hold:
		return t.positions(ctx, "UPDATE weir_messages AS m SET at = "+never+", leased = NULL FROM "+listed+free+" AND m.at < "+never+returning, args...)
	case store.Due:
		t.wake(queues)
		return t.positions(ctx, "UPDATE weir_messages AS m SET at = $4, due = $4 FROM "+listed+free+" AND m.at > $4 AND m.at < "+parked+returning, args...)
	case store.Release:
		t.wake(queues)
		t.released = append(t.released, queues...)
		return t.positions(ctx, "UPDATE weir_messages AS m SET at = due FROM "+listed+free+" AND m.at = "+never+returning, args...)
	case store.Merge: // below
	}
	there, err := t.positions(ctx, "SELECT m.position FROM weir_messages AS m, "+listed+free+" FOR UPDATE OF m", args...)
	if err != nil {
		return nil, err
	}
	var moves []*store.Edit
	for _, i := range indices {
		if there[edits[i].Entry.Position] {
			moves = append(moves, &edits[i])
		}
	}
	return t.move(ctx, moves)
}

// wake makes sources look at least once: messages may be due later.
func (t *keeperTx) wake(queues []string) {
	for _, queue := range queues {
		d := t.woken[queue]
		d.now = true
		d.add(time.Microsecond)
		t.woken[queue] = d
	}
}

// identity identifies a message in a queue. The texts are as the column meta has them.
type identity struct {
	queue, id, put string
	visit, merges  int64
}

func identityOf(r *storesql.Row) (identity, error) {
	id, put, err := storesql.IDAndPut(r)
	return identity{r.Queue, id, put, int64(r.Meta.Visit), int64(r.Meta.Merges)}, err
}

// move puts messages into their queues, and removes them from their former queues. Of two
// messages with the same identity it puts one.
func (t *keeperTx) move(ctx context.Context, moves []*store.Edit) (map[int64]bool, error) {
	from := map[identity]int64{} // positions
	var rows []storesql.Row
	for _, e := range moves {
		r, err := storesql.NewRow(e.To, &e.Entry.Message)
		if err != nil {
			return nil, err
		}
		key, err := identityOf(&r)
		if err != nil {
			return nil, err
		}
		if _, twice := from[key]; twice {
			continue
		}
		from[key], rows = e.Entry.Position, append(rows, r)
		d := t.woken[e.To]
		d.add(r.Delay)
		t.woken[e.To] = d
	}
	if len(rows) == 0 {
		return nil, nil
	}
	t.s.step()
	query, args := t.s.insertion(rows)
	put, err := t.tx.Query(ctx, query+" RETURNING queue, meta->>'id', coalesce(meta->'headers'->>'Weir-Put', ''), visit, merges", args...)
	if err != nil {
		return nil, err
	}
	var positions []int64
	var got identity
	if _, err := pgx.ForEachRow(put, []any{&got.queue, &got.id, &got.put, &got.visit, &got.merges}, func() error {
		positions = append(positions, from[got])
		return nil
	}); err != nil {
		return nil, err
	}
	t.s.step()
	return t.remove(ctx, "DELETE FROM weir_messages AS m WHERE m.position = ANY ((SELECT $1::bigint[])::bigint[])", positions)
}

// remove removes messages by a statement, and returns their positions. The next messages
// of their keys become heads. If the database's default is REPEATABLE READ, it may miss a
// message that was parked at the same time, and leave the key without a head. TakeInOrder
// repairs this when it parks another message of the key, or looks for such keys.
func (t *keeperTx) remove(ctx context.Context, deletion string, args ...any) (map[int64]bool, error) {
	rows, err := t.tx.Query(ctx, deletion+" RETURNING m.position, m.queue, CASE WHEN m.head THEN m.meta->>'key' END", args...)
	if err != nil {
		return nil, err
	}
	all := map[int64]bool{}
	var heads []queueKey
	var position int64
	var queue string
	var key *string
	_, err = pgx.ForEachRow(rows, []any{&position, &queue, &key}, func() error {
		all[position] = true
		if key != nil {
			heads = append(heads, queueKey{queue, *key})
		}
		key = nil
		return nil
	})
	t.s.step()
	if err != nil {
		return nil, err
	}
	for _, k := range heads {
		d := t.woken[k.queue]
		d.now = true
		t.woken[k.queue] = d
	}
	return all, t.s.appoint(ctx, t.tx, heads)
}

func (t *keeperTx) positions(ctx context.Context, sql string, args ...any) (map[int64]bool, error) {
	rows, err := t.tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	all := map[int64]bool{}
	var position int64
	_, err = pgx.ForEachRow(rows, []any{&position}, func() error {
		all[position] = true
		return nil
	})
	t.s.step()
	return all, err
}
