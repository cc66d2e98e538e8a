// Package pgcheckpoint keeps checkpoints in a PostgreSQL database (pgx v5), for pipelines
// that any of several machines may run.
//
//	pool, err := pgxpool.New(ctx, url)
//	…
//	stores := &pgcheckpoint.Stores{Pool: pool}
//	if err := stores.Migrate(ctx); err != nil {
//		return err
//	}
//	err = partitions.Run(ctx, partitions.Config{Stores: stores, …})
//
// A pipeline alone opens its own store:
//
//	store, err := stores.Open(ctx, "flights", 0)
//	…
//	coordinator, err := checkpoint.NewCoordinator(store)
//
// # Guarantees
//
// The guarantees of [checkpoint.Store]: a checkpoint is saved in a transaction, and is
// durable if synchronous_commit is on, the default. The store that was opened last owns
// the pipeline, and earlier stores are fenced (law P1): a running Save completes or
// fails. If the owner froze or lost power within a Save, Open waits until the server has
// ended that transaction: a minute at most, and a second more for each MiB of the
// checkpoint. An epoch that is lower than an earlier epoch is refused, so a stale owner
// cannot take a partition back.
//
// A checkpoint is a value of at most 1 GB, and must arrive at the server within that
// time.
//
// # Tables
//
// [Stores.Migrate] makes weir_pipelines and weir_checkpoints; the directory migrations
// has the SQL for migration tools. A worker needs SELECT, INSERT, UPDATE and DELETE on
// both. To remove a pipeline, delete its row of weir_pipelines.
package pgcheckpoint
