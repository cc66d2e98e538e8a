package core

import (
	"context"
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/observe"
	"github.com/weirflow/weir/internal/decision"
	"github.com/weirflow/weir/internal/gate"
)

// moments are where features hook in. A feature is a file of this package whose name begins with feature_: messages, observers, order of
// keys, batches and so on. The core names none of them, and works with all of them deleted.
//
//	accepted ─▶ mayStart ─▶ started ─▶ over (again? ─▶ mayStart …) ─▶ ended ─▶ left
//
// The core calls a list in the order in which features were added. Without features a list is empty, and costs one length check.
type moments[IN, OUT any] struct {
	accepted  []func(s *Slot[IN, OUT]) (goesOn bool)                                // has taken a slot; false: the feature decides what follows
	entering  []func(s *Slot[IN, OUT], p phase)                                     // leaves its phase for p
	bound     []func(s *Slot[IN, OUT], t *call.Token)                               // waits for something that runs elsewhere
	started   []func(s *Slot[IN, OUT], a *call.Attempt[OUT]) (goesOn bool)          // has an attempt; false: that is complete
	decided   []func(s *Slot[IN, OUT], d decision.Decision, again bool)             // there was a reason for another attempt
	over      []func(s *Slot[IN, OUT], o *outcome, again bool, delay time.Duration) // its attempt has ended, and this follows
	released  []func(s *Slot[IN, OUT], a *call.Attempt[OUT], how call.Released)     // its attempt has ended
	ended     []func(s *Slot[IN, OUT], how observe.EndKind)                         // has ended
	completes []func(s *Slot[IN, OUT])                                              // may leave the queue, when its turn comes
	left      []func()                                                              // the head of the queue leaves

	turnBegins []func() (ends bool) // true: the turn is to end at once
	freed      []func()             // calls that had kept their permits have returned
	turnEnds   []func()
	isBusy     []func() bool // another turn is due now
	brokenOff  []func()      // user code has broken off what the core was doing
	cut        []func()      // the run is abandoned
	forget     []func()      // the core is not used any more

	on [phases]phaseMoments[IN, OUT]

	// What a feature does in place of the core. nil: the core does what stands at the end of the comment.
	timeoutOf   func(s *Slot[IN, OUT]) time.Duration                                                           // of its own; Timeout
	isCrowded   func() bool                                                                                    // none is accepted; false
	freshSince  func() time.Duration                                                                           // when the first of those that wait for their first attempt got there
	nextFresh   func() *Slot[IN, OUT]                                                                          // to make its first attempt after the one that is not fresh any more; the next in the queue
	mayCall     func(s *Slot[IN, OUT]) bool                                                                    // may compete for a permit; true
	inTurn      func(s *Slot[IN, OUT]) bool                                                                    // its outcome may take effect; true
	start       func(s *Slot[IN, OUT])                                                                         // the newest; nil: all that wait
	startsAt    func() time.Duration                                                                           // of those that wait; Now
	admit       func(s *Slot[IN, OUT]) bool                                                                    // takes what a call needs beside the operator's permit; true
	join        func(s *Slot[IN, OUT]) (goesOn bool)                                                           // has the call that was admitted last made for s, too; false: it has ended
	opensAt     func() time.Duration                                                                           // when to ask admit again; Now
	newAttempt  func(s *Slot[IN, OUT]) *call.Attempt[OUT]                                                      // nil: one of the core's
	contextOf   func(s *Slot[IN, OUT], own call.Cancellable) context.Context                                   // of user code that runs for s; own
	own         func(a *call.Attempt[OUT]) call.Cancellable                                                    // the context of an attempt
	describe    func(s *Slot[IN, OUT]) context.Context                                                         // what is known of s; Host.Values
	ask         func(s *Slot[IN, OUT])                                                                         // a strategy that may block
	prepare     func(s *Slot[IN, OUT], a *call.Attempt[OUT], before func(context.Context) error) (goesOn bool) // what the strategy wants done first
	calledAfter func(done <-chan struct{})                                                                     // a call for several elements is being formed, and is made when done is closed; nil: none is
	callsOf     func(elements int) int                                                                         // how many calls so many elements need; as many
	heard       func(s *Slot[IN, OUT], o gate.Evidence) (outage bool)                                          // the outcome of its attempt, with its reason; no
	forgiven    func(s *Slot[IN, OUT]) (attempts int)                                                          // that do not count; 0
	closed      func(s *Slot[IN, OUT]) (why error, wait time.Duration)                                         // why it could not start; nil
	giveBack    func(s *Slot[IN, OUT], why error, wait time.Duration) (taken bool)                             // s is delivered again after a wait; no
	rescue      func(s *Slot[IN, OUT], failure error, timedOut bool) (taken bool)                              // has results in place of a failure, maybe
	wayOf       func(s *Slot[IN, OUT]) []observe.Step                                                          // what its attempts have been through; nil
	offer       func(s *Slot[IN, OUT])                                                                         // hands s over, which has failed
}

// phaseMoments are what a feature does in a phase that is its own.
type phaseMoments[IN, OUT any] struct {
	answered func(s *Slot[IN, OUT])            // the letter has come
	fired    func(s *Slot[IN, OUT])            // the timer is due
	cut      func(s *Slot[IN, OUT], late bool) // the phase ends: at the deadline, or with the run
	inTurn   func(s *Slot[IN, OUT])            // the outcome may take effect now
}
