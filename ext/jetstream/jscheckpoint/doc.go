// Package jscheckpoint has what pipelines with checkpoints (package checkpoint) need of NATS JetStream: a store that several machines reach,
// an input and an output.
//
//	_, err := js.CreateOrUpdateStream(ctx, jscheckpoint.StreamConfig("checkpoints"))
//	…
//	store, err := jscheckpoint.Open(ctx, js, "checkpoints", "flights/3", jscheckpoint.WithEpoch(grant.Fence))
//	…
//	input := jscheckpoint.NewInput(js, "flights", codec.JSON[Flight]())
//	output := jscheckpoint.NewOutput(js, "departures", "departures", codec.JSON[Departure]())
//
// # Guarantees
//
// The output is exactly once: over crashes of workers and servers each element is in the stream once, in the order of the pipeline.
//
// A pipeline has one owner (law P1). Opening its store takes it over: each message of a store is published only directly behind those of its
// pipeline, so the run before can store nothing any more, whatever number is free, and its calls return [checkpoint.ErrFenced]. Its output
// finds out in the same way.
//
// # Permissions
//
// A worker publishes to weir.checkpoints.<stream>.> and to the subject of its output, and to $JS.API.STREAM.INFO.<stream>,
// $JS.API.STREAM.MSG.GET.<stream> and $JS.API.STREAM.PURGE.<stream> of its streams, and $JS.API.CONSUMER.*.<stream>.> and $JS.ACK.<stream>.>
// of its input, and subscribes to _INBOX.>. The connection, its credentials and TLS are the caller's: nothing of them is in logs or errors.
package jscheckpoint
