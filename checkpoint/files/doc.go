// Package files keeps checkpoints, inputs and outputs of pipelines in files.
//
//   - [OpenDir] opens a directory as a [checkpoint.Store].
//   - [OpenLines] and [OpenCSV] read a file as a [checkpoint.Input]: line by line, or record by record.
//   - [NewLineOutput], [NewJSONLinesOutput] and [NewOutput] write a file as a [checkpoint.Output]: each element exactly once.
//
// A pipeline from file to file has all three:
//
//	store, err := files.OpenDir("/var/lib/flights/checkpoints")
//	…
//	lines, err := files.OpenLines("keys.txt")
//	…
//	source := checkpoint.NewSource(coordinator, "keys", lines)
//	sink := checkpoint.NewSink(coordinator, "rows", files.NewLineOutput("rows.txt"))
//
// # Durability
//
// [DirStore] is durable when the process is killed and when the machine loses its power, at any moment: a snapshot is written to a temporary
// file, synced, renamed, and the directory synced, before an older snapshot is removed. A
// directory belongs to a single process at a time: see [LockedError].
//
// An [Output] refuses a file that is not empty when the run does not resume from a
// checkpoint, unless [Output.WithOverwrite] was called. It belongs to a single run at a
// time, too: see [Output.Lock]. It does not cut off what something else has written to
// its file: the run fails, and a restart keeps the bytes beside the file.
//
// # Hostile bytes
//
// Files may be damaged or malicious. Readers then return errors. They do not panic or
// loop, and do not allocate more memory than the bytes present can fill.
package files
