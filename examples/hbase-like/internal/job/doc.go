// Package job runs the example's pipeline from a stream to a stream, with checkpoints, or
// cut into partitions that processes share.
//
// job.go has the shared steps, worker.go a worker process, and each other file one kind
// of run.
package job
