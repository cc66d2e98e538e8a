// Package blobcheckpoint keeps checkpoints in object storage (gocloud.dev/blob): S3 and
// compatible storage, Google Cloud Storage, Azure, for pipelines that any of several
// machines may run.
//
//	bucket, err := blob.OpenBucket(ctx, "s3://flights?region=eu-central-1") // import _ "gocloud.dev/blob/s3blob"
//	…
//	stores := blobcheckpoint.New(bucket, "checkpoints")
//	err = partitions.Run(ctx, partitions.Config{Stores: stores, …})
//
// A pipeline alone opens its own store: stores.Open(ctx, "flights", 0).
//
// # Guarantees
//
// The guarantees of [checkpoint.Store], as durable as the storage. The storage must be
// strongly consistent, in its lists too, and must support atomic writes of an object only
// if its name is free (If-None-Match), as those three do. Open refuses storage that
// overwrites its object, but cannot test atomicity: ask before you use other storage.
// Gocloud's driver for files is not atomic: it is for tests with one store at a time. The
// tests of this package run on the drivers for memory and files, and on an S3 server that
// is not atomic (versitygw).
//
// The objects of a pipeline are numbered without gaps: opening a store takes the next
// number, and so does each checkpoint. A number that another store has taken fences this
// store (law P1). So does a higher number found after a write, since lower numbers are
// removed in time. An epoch that is lower than an earlier epoch is refused.
//
// # Objects
//
// Objects are named by the prefix, the pipeline (path escaped) and the number of 20
// digits. Each begins with a line of text: the epoch, the store, and the number of the
// checkpoint, which follows as [checkpoint.Snapshot.WriteTo] writes it. A worker needs to
// list, read, write and delete them. A Save costs a write, a list, and a removal for each
// object that is not kept. Open fails if an object's first line is damaged, until the
// object is removed by hand.
package blobcheckpoint
