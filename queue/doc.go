// Package queue holds the elements that an asynchronous operator has in flight, and decides which of them may leave.
//
// # Vocabulary
//
//   - An entry is a slot of the queue. It holds a record or a control element.
//   - A record is pending until [Queue.Complete] is called for it; then it may leave when the order rules allow it.
//   - A control element (a [Watermark]) is complete from the start. It is a wall: records do not cross it in either direction.
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
// Records of the oldest segment leave in the order in which they completed; when none is left, the wall leaves and the next
// segment becomes the oldest. The pictures show completions above and departures below, for the input R1 R2 R3 W R4:
//
//	ordered    completed  -- R2 ----- R1 -- R4 ----- R3 ---------------
//	           leaving    ----------- R1 R2 -------- R3 W R4 ----------
//
//	unordered  completed  -- R2 ----- R1 -- R4 ----- R3 ---------------
//	           leaving    -- R2 ----- R1 ----------- R3 W R4 ----------
//
// Both kinds remember the input order of all entries, completed entries included: [Queue.All] walks it. A checkpoint needs that, and so do
// deadlines, which come in input order when every element has the same timeout.
//
// # Bounds
//
// The queue holds at most its capacity of entries, control elements included (law Q2): pending records, completed records that wait for their
// turn, and walls. Every operation takes constant time, whatever the number of entries; memory is taken for the entries in the queue, not for
// its capacity.
//
// # Concurrency
//
// A queue has a single owner, normally an operator's loop goroutine. Its methods must not be called concurrently.
//
// The semantics follow StreamElementQueue in Apache Flink, whose unordered queue however forgets the input order inside a segment.
package queue
