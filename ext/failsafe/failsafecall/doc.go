// Package failsafecall puts hedges of [github.com/failsafe-go/failsafe-go] around the function of an operator: [Hedged] makes a second
// call beside one that is slow, and takes the first answer. It does so only for calls that may happen twice.
//
// The other policies of failsafe-go have no place here: an operator has retries and timeouts of its own, and package backend bounds calls
// and closes when a service is down. They hold no goroutine while an element waits.
//
// failsafe-go uses the real clock, also if the operator has another one.
package failsafecall
