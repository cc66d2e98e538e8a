// Package flink measures weir against Apache Flink's Async I/O: the same work on the same
// machine, in turn, round after round.
//
// Each row of Flink has a Java process, which reads a line per run from a pipe, and
// answers with a line of JSON. The Java code is in src/; run.sh builds it and starts the
// command cmd/flink. README.md describes the rows, the method, and the advantages of each
// side.
package flink
