// Package bench measures weir beside its peers and beside the floor of channels,
// goroutines and sleeps: the same work, the same pipeline, the same run.
//
// # Vocabulary
//
//   - A workload (W1 to W17) is a question, such as "what does an element cost whose function completes at once?".
//   - A [Group] is one workload under one variant (W1/mode=ordered): its rows may be compared with each other.
//   - A [Row] is one implementation of that work: weir, a peer, code a user writes by hand, or a floor.
//   - A [Sample] is what one run of one row cost, a [Result] the samples of a row over all rounds.
//
// Every row checks its own output: nothing lost, nothing doubled, in order where order is
// promised, and as many calls per element as the workload asks for. A pipeline that is
// fast because it is broken is an error, not a number.
//
// [Measure] runs the rows of a group in turn, round after round, so that a noisy minute hits all of them; the command
// cmd/table prints what it finds, and the benchmarks of this package run the same rows.
package bench
