package sqliterecords_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliterecords"
)

const withdraw = "UPDATE accounts SET balance = balance - 1 WHERE id = ?"

// BenchmarkRun compares tracked calls with the bare statement, both group-committed
// (synchronous FULL), in one run: alternately, some thousand calls each.
func BenchmarkRun(b *testing.B) {
	for _, atOnce := range []int{64, 256, 1024} {
		b.Run(fmt.Sprintf("at_once=%d", atOnce), func(b *testing.B) {
			db := open(b, filepath.Join(b.TempDir(), "test.db"))
			_, err := db.Writer().Exec(`CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL) STRICT;
				WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < 9999) INSERT INTO accounts SELECT id, 0 FROM n`)
			require.NoError(b, err)
			r := sqliterecords.New(db)
			client := exactlyonce.NewClient()
			var sequence atomic.Int64
			bare := func(i int64) error {
				return db.Write(b.Context(), func(ctx context.Context, tx *sqlite.Tx) error {
					_, err := tx.ExecContext(ctx, withdraw, i%10_000)
					return err
				})
			}
			tracked := func(i int64) error {
				req := exactlyonce.Request{ID: exactlyonce.ID{Client: client, Sequence: sequence.Add(1), Attempt: 1}, Scope: "s"}
				_, err := r.Run(b.Context(), req, func(ctx context.Context, tx *sqlite.Tx) ([]byte, error) {
					_, err := tx.ExecContext(ctx, withdraw, i%10_000)
					return []byte("withdrawn"), err
				})
				return err
			}
			var took [2]time.Duration
			const chunk = 4096
			for n := 0; n < b.N; n += chunk {
				for kind, call := range []func(int64) error{bare, tracked} {
					start := time.Now()
					runAtOnce(b, atOnce, chunk, call)
					took[kind] += time.Since(start)
				}
			}
			report(b, took, (b.N+chunk-1)/chunk*chunk)
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

func report(b *testing.B, took [2]time.Duration, n int) {
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(n)/took[0].Seconds(), "bare/s")
	b.ReportMetric(float64(n)/took[1].Seconds(), "tracked/s")
	b.ReportMetric(100*took[0].Seconds()/took[1].Seconds(), "%-of-bare")
}
