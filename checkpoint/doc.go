// Package checkpoint makes pipelines that survive their process: it stores elements in
// flight at intervals, and a restart resumes from there.
//
// # Vocabulary
//
//   - A participant is a part of a pipeline that has a state: the position of a source,
//     the elements in flight of an operator, the unpublished output of a sink. Its name
//     stays the same from run to run.
//   - Its state is the data, in its own encoding, that it needs after a restart.
//   - A checkpoint is a number, from 1, and the states of all participants at the same
//     point of the stream: a [Snapshot]. Its [Kind] is [Periodic] if the stream
//     continued, [Drain] if it had come to its end, and [Suspend] if it was stopped in
//     order to be resumed.
//   - A barrier is a control element of the stream. Elements before it belong to the
//     checkpoint, elements after it do not.
//   - A [Store] keeps the newest snapshots.
//
// Package weir/flow has flows that let barriers pass. Package checkpoint/participant is
// for authors of sources, operators and sinks.
//
// # Topologies
//
// Barriers are not aligned, so there must be a single path from the source to each step:
// a line, or a tree that branches with flow.FanOut of go-streams. If branches met again,
// a barrier would overtake elements of a slower branch, which the checkpoint would lose.
//
//	Source → flows, operators → Sink                     supported
//	FanOut, each branch with a Sink of its own           supported
//	PassThrough, flows of your own that keep the order   supported
//	two Sources on one Coordinator                       Start fails
//	flow.Merge, ZipWith, RoundRobin, Split               the run fails when one reads a Source, a Flow or an operator
//	another join                                         the run fails when a barrier arrives for the second time
//	Via or To twice                                      panics
//
// An element after the final barrier fails the run before the final checkpoint is stored.
// Two mistakes are not detected:
//
//   - Your code, or a PassThrough, splits the stream, each barrier takes a single branch,
//     and the branches meet again.
//   - Branches with slow flows meet again: a checkpoint may complete before the second
//     barrier fails the run.
//
// Package partitions runs a pipeline for each partition of an input.
//
// # Stores
//
// If the newest snapshot is damaged, [Latest] falls back to the one before and reports
// the damage. Package checkpoint/files has a store in a directory, inputs of lines and
// CSV, and an output; weir's extensions have stores in databases and object stores.
// Package checkpointtest checks your own store, input or output.
//
// # Changing a pipeline
//
// A restart needs the participants of the checkpoint, under the same names: see
// [WithNewParticipants]. The function, capacity, timeout and strategy of an operator may
// change. So may the types of its elements, if their codec can read the old elements.
//
// # Failures
//
// A periodic checkpoint that fails, or takes longer than [WithTimeout], is aborted, and
// the next follows. [WithTolerableFailures] ends the run after too many. Save of a final
// checkpoint is repeated until the timeout, and so is every Commit. A run whose store
// another run has taken gets [ErrFenced] and ends.
//
// # The end of the stream
//
// A stream ends cleanly with a final checkpoint. [Suspend] stores the elements in flight,
// at any time. [Drain] finishes them first: a [Source] asks for it at the end of its
// input, [Coordinator.Finish] whenever it is called.
//
//	source    a  b  c  END  7  8           9      END: the marker of the end of the input
//	operator     a  b       7  8  c  END   9      7, 8: checkpoints, which overtake c and END; 9: the final one
//
// An operator passes the marker on when all elements before it have left. The final
// checkpoint follows when all participants have reported the marker. Draining is not
// bounded by [WithTimeout]. Checkpoints continue meanwhile, so a job that is killed while
// it drains resumes from the last of them, and sends the marker again.
//
// # Hostile bytes
//
// For damaged or malicious files, positions and states readers return errors. They do not
// panic or loop, nor allocate more memory than the bytes present can fill.
package checkpoint
