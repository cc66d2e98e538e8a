// Package jscheckpoint has a store, an input and an output in NATS JetStream for
// pipelines with checkpoints (package checkpoint).
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
// Even after crashes of workers and servers each element is in the output's stream once,
// in the order of the pipeline.
//
// A pipeline has a single owner (law P1). Opening its store takes it over: each message
// of a store is published only directly behind the pipeline's earlier messages, so the
// calls of the previous run return [checkpoint.ErrFenced]. Its output is fenced in the
// same way.
//
// # Permissions
//
// A worker publishes to
//
//   - for the store: weir.checkpoints.<stream>.>, $JS.API.STREAM.INFO.<stream>,
//     $JS.API.STREAM.MSG.GET.<stream>, $JS.API.STREAM.PURGE.<stream>
//   - for an input: $JS.API.STREAM.INFO.<stream>, $JS.API.CONSUMER.*.<stream>.>,
//     $JS.API.CONSUMER.MSG.NEXT.<stream>.> and if it has an end
//     $JS.API.STREAM.MSG.GET.<stream>
//   - for an output: its subject, $JS.API.STREAM.INFO.<stream>,
//     $JS.API.STREAM.MSG.GET.<stream>
//
// and subscribes to _INBOX.>. The connection's error handler gets violations. The
// connection is the caller's; its credentials do not appear in logs or errors.
package jscheckpoint
