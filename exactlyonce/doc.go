// Package exactlyonce lets a call that may be repeated take effect once.
//
// An answer can get lost on its way back. The caller then cannot know whether its request took effect, and repeats it. With an
// [ID], which is the same in every attempt, the called side finds the earlier attempt and gives its answer again.
//
// # Vocabulary
//
//   - A client is one incarnation of a calling program: 128 random bits. See [Client].
//   - A sequence number counts what a client asks for, from 1. In a stream it belongs to an element.
//   - A step names one of several requests that are made for the same sequence number.
//   - An attempt is one sending of a request. Attempts of a request differ in their attempt number only.
//   - The first incomplete number promises that the client repeats nothing below it.
//   - A record is what the called side knows of a request: that it runs, or its answer.
//
// # The calling side
//
// A [Tracker] numbers the elements of a stream, and [Transport] sends the ids:
//
//	tracker := exactlyonce.NewTracker(exactlyonce.TrackerConfig{})
//	client := &http.Client{Transport: exactlyonce.Transport(nil, "https://pay.example.com/charges")}
//	op := asyncop.OrderedWaitWithRetry(charge, time.Minute, 100,
//		strategies.ReasonAware(httpretry.Classifier[Receipt](), nil), asyncop.WithObserver(tracker))
//
// A function that makes several requests for an element names them by [WithStep].
//
// In an operator with checkpoints (asyncop.WithCheckpoints) the tracker's state is a part of them. After a restart, an element
// is called under the number that it had before.
//
// Reason-aware retries (strategies.ReasonAware) know from the attempt that its requests are tracked: a call that was lost in
// flight is then repeated, also one that must not happen twice. A request without an id in the same call prevents that, and so
// does [ErrStale].
//
// # The called side
//
// [Results] finds the earlier attempts of a request and decides whether it runs. It keeps its
// records in memory, so a restart loses them. With [Records] they are in a database, stored in the transaction of the effect:
// they survive a restart, and several servers can share them.
//
// # What is remembered, and for how long
//
//	an answer      until its client says that it is done with it, or for AnswerAge     then its request is stale
//	a client       for ClientSilence after its last request                            then its mark is left
//	a mark         for 24 times ClientSilence                                          then what was sent before is stale
//
// A mark lies above the highest number that was answered. What is below it is stale: it may have been executed. What is above it
// was not, so a client that was idle continues with its next number. When the mark is gone, a request is stale if it was first sent
// before that ([ID.Age]), and new otherwise. An attempt that does not know when its request was first sent is new then: one that a
// restarted program makes for an element that it reads again, or for a message whose worker was killed.
//
// # Concurrency
//
// Everything here is safe for concurrent use unless its documentation says otherwise.
//
// # Sources
//
// Kudu's design document "RPC Retry and Failover" and its ResultTracker; RIFL (Lee et al., SOSP 2015).
package exactlyonce
