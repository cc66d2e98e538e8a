//go:build unix

package pgrecords_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/internal/group"
	"github.com/weirflow/weir/ext/postgres/internal/pgtest"
	"github.com/weirflow/weir/ext/postgres/pgrecords"
)

const withdraw = "UPDATE accounts SET balance = balance - 1 WHERE id = $1"

// BenchmarkExec compares tracked calls with the bare statement, both group-committed, in
// one run: alternately, a thousand calls each. And it measures Run, a transaction for
// each call. The server does not sync its disk.
func BenchmarkExec(b *testing.B) {
	server := pgtest.Start(b)
	for _, atOnce := range []int{64, 256, 1024} {
		b.Run(fmt.Sprintf("at_once=%d", atOnce), func(b *testing.B) {
			pool := connect(b, schema(b, server))
			_, err := pool.Exec(b.Context(), "CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)")
			require.NoError(b, err)
			_, err = pool.Exec(b.Context(), "INSERT INTO accounts SELECT id, 0 FROM generate_series(0, 9999) AS id")
			require.NoError(b, err)
			r := open(b, pool)
			client := exactlyonce.NewClient()
			var sequence atomic.Int64
			request := func() exactlyonce.Request { return request(client, sequence.Add(1), 1) }

			type statement struct {
				id  int64
				err error
			}
			grouped := group.Group[*statement]{Max: 512, Run: func(_ context.Context, take func() []*statement) {
				calls := take()
				err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error {
					batch := &pgx.Batch{}
					for _, c := range calls {
						batch.Queue(withdraw, c.id)
					}
					return tx.SendBatch(context.Background(), batch).Close()
				})
				for _, c := range calls {
					c.err = err
				}
			}}
			bare := func(i int64) error {
				c := &statement{id: i % 10_000}
				<-grouped.Add(c).Done()
				return c.err
			}
			tracked := func(i int64) error {
				_, err := r.Exec(b.Context(), request(), pgrecords.Statement{SQL: withdraw, Args: []any{i % 10_000}})
				return err
			}
			own := func(i int64) error {
				_, err := r.Run(b.Context(), request(), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
					_, err := tx.Exec(ctx, withdraw, i%10_000)
					return []byte("withdrawn"), err
				})
				return err
			}
			var took [3]time.Duration
			const chunk = 1024
			for n := 0; n < b.N; n += chunk {
				for kind, call := range []func(int64) error{bare, tracked, own} {
					start := time.Now()
					runAtOnce(b, atOnce, chunk, call)
					took[kind] += time.Since(start)
				}
			}
			n := float64((b.N + chunk - 1) / chunk * chunk)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(n/took[0].Seconds(), "bare/s")
			b.ReportMetric(n/took[1].Seconds(), "tracked/s")
			b.ReportMetric(n/took[2].Seconds(), "own-transactions/s")
			b.ReportMetric(100*took[0].Seconds()/took[1].Seconds(), "%-of-bare")
		})
	}
}

func runAtOnce(b *testing.B, atOnce int, n int64, call func(int64) error) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		wg.Go(func() {
			for i := next.Add(1); i <= n; i = next.Add(1) {
				if err := call(i); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
