// Package caller makes requests that take effect once: it gives them the ids of package
// exactlyonce.
//
// A [Tracker] numbers the elements of a stream, and [Transport] sends the ids:
//
//	tracker := caller.NewTracker(caller.Config{})
//	client := &http.Client{Transport: caller.Transport(nil, "https://pay.example.com/charges")}
//	op := asyncop.OrderedWaitWithRetry(charge, time.Minute, 100,
//		strategies.ReasonAware(httpretry.Classifier[Receipt](), nil), asyncop.WithObserver(tracker))
//
// A function that makes several requests for an element names them by [WithStep].
//
// In an operator with checkpoints (asyncop.WithCheckpoints) the tracker's state is part
// of them. After a restart an element keeps its number.
//
// Reason-aware retries (strategies.ReasonAware) detect that the requests of an attempt
// are deduplicated. They repeat a call that was lost in flight, even if it must not
// happen twice. A request without an id in the same call prevents that, and so does
// [exactlyonce.ErrStale].
//
// The package does not import an operator: a program without an operator calls the
// methods of its tracker itself.
//
// # Concurrency
//
// Everything here is safe for concurrent use unless its documentation says otherwise.
package caller
