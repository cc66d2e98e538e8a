// Package job runs the example's pipeline in three ways: from a stream to a stream, with
// checkpoints, and cut into partitions that several processes share. It starts the store,
// draws the progress, handles interrupts, and proves that each flight came out once.
//
// job.go has the steps that all runs share. stream.go and checkpointed.go have the
// differences: the input and the output, the end of a run after an interrupt, and the
// proof. partitioned.go starts the workers of a partitioned run, and partition.go is a
// worker.
package job
