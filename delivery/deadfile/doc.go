// Package deadfile keeps dead letters without a database: elements that an operator has
// given up go to a file of JSON lines, and can be delivered again as messages, for
// example after a fix.
//
//	dead, err := deadfile.Open("/var/lib/orders/dead", codec.JSON[Order]())
//	…
//	op := asyncop.OrderedWait(charge, timeout, capacity, asyncop.WithFailureSink(dead.Take))
//
// JSON holds text in UTF-8: codec.JSON replaces other bytes of a string, so let elements
// be []byte where the text may be of another encoding.
//
// Later, perhaps in another program:
//
//	replay, err := dead.Replay()
//	…
//	for {
//		messages, err := replay.Receive(ctx, 100)
//		if err == io.EOF {
//			break // all of them are done
//		}
//		…
//	}
//	err = replay.Close(ctx)
//
// # The directory
//
//	dead.jsonl      the dead letters, one a line: read it with less, grep and jq
//	replay.jsonl    those that are being replayed: what dies meanwhile goes to a new dead.jsonl
//	replay.done     which of those are done, or wait
//	damaged.jsonl   lines that cannot be read any more, as they are
//	LOCK            locked by the process that has the directory
//
// A line:
//
//	{"batch":0,"meta":{"id":"orders/0/17","attempts":4,"lastError":"503"},"cause":"exhausted","payload":{"n":5},"crc":"e3069283"}
//
// The payload is the value as the codec encodes it, if that is JSON on a single line;
// else it is in payloadBase64. Do not edit lines in place, since the checksum would not
// match. The command `weir dead import` puts such a file into a store.
//
// # Guarantees
//
// An element for which Append or Take has returned nil is on the disk, even after a power
// cut. It stays there until its message is acknowledged in a replay: elements are never
// removed by age, number or size (law D5). After a crash an element may be handed over
// again, and a message may be replayed again, with the same id.
//
// A last line that a crash has cut off is dropped, since its Append has not returned. A
// line that was damaged later is kept apart and logged as an error. Damage to the last
// batch that looks like a torn write is taken for a torn write.
//
// # Costs
//
// A call waits for a sync of the disk, which calls of several goroutines share. Opening
// reads the file once. For filters, or for more dead letters than a person can read, use
// a queue on an engine.
package deadfile
