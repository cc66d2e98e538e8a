// Package bench measures weir against its peers and a floor of channels, goroutines and
// sleeps: the same work in the same run.
//
// # Vocabulary
//
//   - A workload (W1 to W17) answers a question, such as "what is the cost of an element
//     whose function completes at once?".
//   - A [Group] is a workload in one variant (W1/mode=ordered). Its rows are comparable.
//   - A [Row] is one implementation of the work: weir, a peer, handwritten code, or a
//     floor.
//   - A [Sample] is the cost of one run of a row. A [Result] holds a row's samples of all
//     rounds.
//
// Every row checks its output: each element exactly once, in order if promised, with the
// expected number of calls. A broken row returns an error.
//
// [Measure] runs the rows of a group in turn, round after round, so that a noisy minute
// affects all. The command cmd/table prints the results, and the benchmarks of this
// package run the same rows.
package bench
