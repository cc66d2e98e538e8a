// Package durable contains the ends of a pipeline that survives its process: an input
// with positions to return to, an output file that holds every flight exactly once, and a
// proof that compares the two.
//
// weir itself has an input for CSV files and an output for files. The state of [Input]
// and [Output] in a checkpoint contains more, so that a restart with other files or flags
// is refused.
package durable
