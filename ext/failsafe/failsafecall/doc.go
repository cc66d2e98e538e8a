// Package failsafecall puts hedges of [github.com/failsafe-go/failsafe-go] around the
// function of an operator: [Hedged] makes a second call beside a slow call, and takes the
// first answer. It does so only for calls that may happen twice.
//
// The other policies of failsafe-go are not offered: an operator has retries and timeouts
// of its own, and package backend bounds calls and closes when a service is down, both
// without a goroutine for each waiting element.
//
// failsafe-go uses the real clock, even if the operator has another clock.
package failsafecall
