// Package call holds what several goroutines touch while an operator runs: the calls, and how their outcomes come back to
// the loop. What only the loop touches is in the packages above it.
//
//   - A [Token] ties something that runs elsewhere to the element that waits for it: its context, its end, its letter to the
//     loop. An [Attempt] is the token of a call, and the future that user code completes. Other things that an element
//     waits for embed a Token.
//   - A [Host] is what the tokens of an operator share: the mailbox, the wake-up of the loop, the counters, the contexts.
//   - [Workers] do jobs that may block, on goroutines that are used again.
//
// # Letters
//
// A letter has the reference ([Ref]) of what its element waits for. The turn of a reference is over when the element goes on: what
// comes then finds nothing (law A2). So the phase of the element says what a letter is about, and no letter needs a kind.
//
// # Permits
//
// An attempt gives its permit back exactly once: when the loop has let go of it and no function of it runs any more. The bits
// of its state are only ever set. The goroutine that sets the one that completes this condition gives the permit back: the loop
// in [Token.LetGo] and [Token.Cut], the goroutine of a call in [Token.Returned].
//
// Package guard stands around all calls of user code that may panic or end their goroutine (law A6).
package call
