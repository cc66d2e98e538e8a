// Package durable has what stands around a pipeline that survives its process: an input
// with a position to go back to, an output file in which everything is exactly once, and
// the proof that reads both files again.
//
// weir has an input for CSV files and an output for files of its own. [Input] and
// [Output] say more about themselves in a checkpoint, so that a restart with other files
// or flags is refused.
package durable
