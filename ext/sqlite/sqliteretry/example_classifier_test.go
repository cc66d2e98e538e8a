package sqliteretry_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/ext/sqlite/sqliteretry"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
	"github.com/weirflow/weir/strategies/strategiestest"
)

// An insert of a row that exists is refused for good.
func ExampleClassifier() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	db, err := sqlite.OpenDB(context.Background(), filepath.Join(dir, "shop.db"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	insert := func(id int) error {
		return db.Write(context.Background(), func(ctx context.Context, tx *sqlite.Tx) error {
			_, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", id)
			return err
		})
	}
	policy := strategies.ReasonAware(sqliteretry.Classifier[string](), strategies.BestEffort[string]())
	fmt.Println(insert(1))
	d := strategiestest.Decide(policy, predicates.Attempt[string]{Err: insert(1)})
	fmt.Println(d.Reason, d.Retry)
	// Output:
	// <nil>
	// SQLITE_CONSTRAINT false
}
