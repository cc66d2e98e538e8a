// Package durable has the ends of a pipeline that survives its process: an input with
// positions, an output file that holds every flight exactly once, and a proof that
// compares the two.
//
// Unlike weir's own input for CSV and output for files, [Input] and [Output] refuse a
// restart with other files or flags.
package durable
