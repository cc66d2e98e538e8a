// Package jscheckpoint has a store for checkpoints in NATS JetStream, which several
// machines reach, and an input and an output for pipelines with checkpoints (package
// checkpoint).
//
//	_, err := js.CreateOrUpdateStream(ctx, jscheckpoint.StreamConfig("checkpoints"))
//	…
//	store, err := jscheckpoint.Stores(js, "checkpoints", "flights").Open(ctx, "3", grant.Fence)
//	…
//	input := jscheckpoint.NewInput(js, "flights", codec.JSON[Flight](), jscheckpoint.InputConfig{})
//	output := jscheckpoint.NewOutput(js, "departures", "departures", codec.JSON[Departure]())
//
// # Guarantees
//
// The output is exactly once: even after crashes of workers and servers each element is
// in the stream once, in the order of the pipeline.
//
// A pipeline has a single owner (law P1). Opening its store takes it over: each message
// of a store is published only directly behind the earlier messages of its pipeline, so
// the previous run can no longer store, whatever number is free, and its calls return
// [checkpoint.ErrFenced]. Its output is fenced in the same way.
//
// A message that the codec of an input cannot read fails the pipeline each time it is
// restarted, unless the input has a queue for dead letters ([InputConfig]).
//
// # Permissions
//
// A worker publishes to
//
//   - for the store: weir.checkpoints.<stream>.>, $JS.API.STREAM.INFO.<stream>,
//     $JS.API.STREAM.MSG.GET.<stream>, $JS.API.STREAM.PURGE.<stream>
//   - for an input: $JS.API.STREAM.INFO.<stream>, $JS.API.CONSUMER.*.<stream>.>,
//     $JS.API.CONSUMER.MSG.NEXT.<stream>.> and if it has an end $JS.API.STREAM.MSG.GET.<stream>
//   - for an output: its subject, $JS.API.STREAM.INFO.<stream>,
//     $JS.API.STREAM.MSG.GET.<stream>
//
// and subscribes to _INBOX.>. Violations are reported to the error handler of the
// connection. The connection, its credentials and TLS are the caller's: they do not
// appear in logs or errors.
package jscheckpoint
