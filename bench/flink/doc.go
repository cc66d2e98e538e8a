// Package flink measures weir beside Apache Flink's Async I/O: the same works on the same
// machine in the same run, in turn, round after round.
//
// Flink runs in Java processes, one for each of its rows. They read what to run from a
// pipe, one line a run, and answer with a line of JSON. weir runs in this process. The
// Java side is in src/; run.sh builds it and starts the command cmd/flink. README.md has
// the rows, the method, and the advantages that each side has.
package flink
