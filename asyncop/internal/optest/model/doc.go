// Package model says what an operator does, by the laws of DESIGN.md. Tests do the same to a model and to what they test, and compare: the
// state machine (asyncop/internal/core), and the whole operator as a flow, by Results, by To and over checkpoints
// (asyncop/internal/tests/streams).
//
// What happens to an operator is a call here: Send, CloseInput, Stop, Complete, Return, Advance, Restore, Take, Refuse, Hold, Release, End.
// What it does in return is then to be seen: the Events, the Calls, the Queue, the Stats, and the Items of a checkpoint. Time is that of the
// test, and a model does not run: after each call, Settle or Advance does what is to be done now, in the order of Settle.
//
// Read the laws in this order: the way of an element is in model.go (accepted, started, ended, emitted), what the clock does is in time.go,
// what keys, the failure sink and checkpoints add is in features.go.
package model
