// Package failsafecall puts hedges of [github.com/failsafe-go/failsafe-go] around the
// function of an operator: see [Hedged].
//
// The operator and package backend replace the other policies, without a goroutine for
// each waiting element.
//
// failsafe-go uses the real clock, even if the operator has another clock.
package failsafecall
