package queue

import "time"

// Watermark reports that no element with an earlier or equal event time follows it. It
// travels in the stream with the records, which do not overtake it.
//
// A *Watermark in a stream is an ordinary element.
type Watermark struct {
	// Timestamp is the event time up to which the stream is complete.
	Timestamp time.Time
}
