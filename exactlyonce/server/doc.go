// Package server serves requests that take effect once: [Results] find the earlier
// attempts of a request by its id and decide whether it runs.
//
//	results := server.NewResults(server.Config{})
//	mux.Handle("POST /charges", authenticate(results.Handler(charge, server.HandlerConfig{Scope: userOf})))
//
// A restart loses records in memory. [exactlyonce.Records] in a database survive it, and
// several servers can share them.
//
// # Retention
//
//	an answer      until its client declares it done, or for AnswerAge     then its request is stale
//	a client       for ClientSilence after its last request                then only its mark is left
//	a mark         for 24 times ClientSilence                              then requests sent before are stale
//
// A mark lies above the highest answered number. A request below it may have been
// executed, so it is stale. An idle client continues with its next number. After the mark
// was removed, a request is stale if it was first sent before ([exactlyonce.ID.Age]), and
// new otherwise, even if the attempt does not know when it was first sent: a restarted
// program reads its element again, or the worker of its message was killed.
//
// # Concurrency
//
// Everything here is safe for concurrent use unless its documentation says otherwise.
package server
