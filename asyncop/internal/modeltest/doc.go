// Package modeltest says what an operator does, by the laws of DESIGN.md. Tests do the same to a model and to what they test, and compare: the
// state machine (asyncop/internal/core), and the whole operator as a flow, by Results, by To and over checkpoints
// (asyncop/internal/tests/streams).
//
// What happens to an operator is a call here: Send or Put, CloseInput, Stop, Complete, Return, ReturnBatch, Take, Refuse, Release, Barrier,
// Restore, End; or a field: OutOpen, SinkOpen, HoldNext, Shared. What the operator does is then to be seen: Events, Calls, Queue, Batches,
// Stats, Items. Time is that of the test, and a model does not run: Settle does what is to be done now, Advance what is to be done until
// then. For the state machine alone, which leaves time and what leaves to its driver, Turn does what one of its turns does.
//
// Read the laws in this order: the way of an element is in model.go (accepted, started, ended, emitted), what the clock does is in time.go,
// what keys, the failure sink and checkpoints add is in features.go.
package modeltest
