// Package files keeps checkpoints, inputs and outputs of pipelines in files.
//
//   - [OpenDir] opens a directory as a [checkpoint.Store].
//   - [OpenLines] and [OpenCSV] read a file as a [checkpoint.Input]: line by line, or
//     record by record.
//   - [NewLineOutput], [NewJSONLinesOutput] and [NewOutput] write a file as a
//     [checkpoint.Output]: each element exactly once.
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
// [DirStore] survives the kill of its process and a power cut at any time. Its directory
// belongs to a single process at a time: see [LockedError].
//
// An [Output] refuses a file that is not empty when the run does not resume from a
// checkpoint: see [Output.WithOverwrite]. The file belongs to a single run at a time,
// too: see [Output.Lock]. If another program writes to the file, the run fails and leaves
// the bytes in place; a restart moves them to a file beside it.
//
// # Hostile bytes
//
// Files may be damaged or malicious. Readers then return errors. They do not panic or
// loop, and do not allocate more memory than the bytes present can fill.
package files
