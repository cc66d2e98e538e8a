// Package channel has a source and a sink of messages over Go channels, for tests and for
// programs that have their elements in a channel.
//
//	source := channel.NewSource(orders, nil)
//	for {
//		messages, err := source.Receive(ctx, 100)
//		if err == io.EOF {
//			break // orders is closed, and all of them are done
//		}
//		…
//	}
//
// Everything is in memory, and lost with the process.
package channel
