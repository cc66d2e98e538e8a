// Package queue holds an operator's elements in flight, and decides which of them may
// leave.
//
// # Vocabulary
//
//   - An entry is a slot of the queue. It holds a record or a control element.
//   - A record is pending until [Queue.Complete]; then it may leave when the order allows
//     it.
//   - A control element (a [Watermark]) is complete from the start. It is a wall that
//     records do not cross.
//   - A segment is the part between two walls.
//
// # Order
//
// An ordered queue is a FIFO: only its oldest entry may leave.
//
// An unordered queue is a row of segments:
//
//	R1 R2 | W1 | R3 R4 | W2 | R5
//
// Records of the oldest segment leave in the order in which they completed. When the
// segment is empty, its wall leaves and the next segment becomes the oldest. The pictures
// show completions above and departures below, for the input R1 R2 R3 W R4:
//
//	ordered    completed  -- R2 ----- R1 -- R4 ----- R3 ---------------
//	           leaving    ----------- R1 R2 -------- R3 W R4 ----------
//
//	unordered  completed  -- R2 ----- R1 -- R4 ----- R3 ---------------
//	           leaving    -- R2 ----- R1 ----------- R3 W R4 ----------
//
// Both kinds keep the input order of all entries ([Queue.All]), for checkpoints, and for
// deadlines, which are in input order if every element has the same timeout.
//
// # Bounds
//
// The capacity bounds all entries (law Q2): pending records, completed records that wait
// to leave, and walls. Every operation takes constant time. The memory depends on the
// entries in the queue, not on its capacity.
//
// # Concurrency
//
// A queue has a single owner, normally an operator's loop goroutine.
//
// The semantics follow Flink's StreamElementQueue, whose unordered queue does not keep
// the input order within a segment.
package queue
