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
// [DirStore] survives the kill of its process and a power cut at any time.
//
// An [Output] refuses a file that is not empty when the run does not resume from a
// checkpoint: see [Output.WithOverwrite]. The file belongs to one run at a time: see
// [Output.Lock]. If another program writes to it, the run fails and leaves the bytes in
// place; a restart moves them to a file beside it.
//
// # Hostile bytes
//
// Readers return errors for damaged or malicious files: see package checkpoint.
package files
