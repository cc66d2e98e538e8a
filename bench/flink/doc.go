// Package flink measures weir against Apache Flink's Async I/O: the same works on the
// same machine in the same run, in turn, round after round.
//
// Flink runs in Java processes, one for each of its rows. They read the work to run from
// a pipe, one line per run, and answer with a line of JSON. Weir runs in this process.
// The Java code is in src/; run.sh builds it and starts the command cmd/flink. README.md
// describes the rows, the method, and the advantages of each side.
package flink
