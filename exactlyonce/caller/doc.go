// Package caller makes requests that take effect once: it gives them ids of package
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
// With checkpoints (asyncop.WithCheckpoints) an element keeps its number after a restart.
//
// Reason-aware retries (strategies.ReasonAware) repeat a lost call, even if it must not
// happen twice, because its requests are deduplicated, unless it has also made a request
// without an id, or got [exactlyonce.ErrStale].
//
// A program without an operator calls the methods of its tracker itself.
//
// # Concurrency
//
// Everything here is safe for concurrent use unless its documentation says otherwise.
package caller
