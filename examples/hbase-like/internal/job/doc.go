// Package job runs the example's pipeline in three ways: from a stream to a stream, with
// checkpoints, and cut into partitions that several processes share. It starts the store,
// draws the progress, handles interrupts, and proves that each flight came out once.
//
// job.go has the steps that the runs share. stream.go, checkpointed.go and partitioned.go
// each have one kind of run, and worker.go has a worker process of a partitioned run.
package job
