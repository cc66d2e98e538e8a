// Package modeltest is a model of an operator, written from the laws of DESIGN.md. Tests
// make the same inputs to the model and to the subject, and compare them. The subject is
// the state machine (asyncop/internal/core), or the whole operator
// (asyncop/internal/tests/streams).
//
// Each input is a method (Send or Put, CloseInput, Stop, Complete, Return, ReturnBatch,
// Take, Refuse, Release, Barrier, Restore, End) or a field (OutOpen, SinkOpen, HoldNext,
// Shared). The outputs are Events, Calls, Queue, Batches, Stats and Items. The time of a
// model is the time of the test: Settle does the work that is due now, Advance the work
// that is due until a given time. For the state machine alone, whose driver emits the
// results, Step does the work of one step.
//
// Read model.go first, then time.go (timers), then features.go (keys, batches, the
// failure sink, checkpoints).
package modeltest
