// Package server serves requests that take effect once: [Results] find the earlier
// attempts of a request by its id and decide whether it runs.
//
//	results := server.NewResults(server.Config{})
//	mux.Handle("POST /charges", authenticate(results.Handler(charge, server.HandlerConfig{Scope: userOf})))
//
// Results keep their records in memory, so a restart loses them. With
// [exactlyonce.Records] they are in a database, stored in the transaction of the effect:
// they survive a restart, and several servers can share them.
//
// # Retention
//
//	an answer      until its client declares it done, or for AnswerAge     then its request is stale
//	a client       for ClientSilence after its last request                then only its mark is left
//	a mark         for 24 times ClientSilence                              then requests sent before are stale
//
// A mark lies above the highest number that was answered. A request below it is stale: it
// may have been executed. A request above it was not, so a client that was idle continues
// with its next number. When the mark is gone, a request is stale if it was first sent
// before that ([exactlyonce.ID.Age]), and new otherwise. An attempt that does not know
// when its request was first sent is then new, such as the request that a restarted
// program makes for an element that it reads again, or for a message whose worker was
// killed.
//
// # Concurrency
//
// Everything here is safe for concurrent use unless its documentation says otherwise.
package server
