// Package call has the state that goroutines share while an operator runs: the calls, and
// the mailbox that brings their results to the loop.
//
// DESIGN.md lists the laws, such as A2, in section 3.
//
//   - A [Token] ties code that runs elsewhere to the element that waits for it. It is the
//     context of the code, and its letter to the loop. An [Attempt] is the token of a
//     call, and the future that user code completes. Other tokens are questions to
//     strategies, handlers of failures, and offers to the failure sink.
//   - A [Host] is shared by the tokens of an operator: the mailbox, the wake-up of the
//     loop, the counters, the contexts.
//   - [Workers] run jobs that may block, on reused goroutines.
//
// # Letters
//
// A letter refers ([Ref]) to the element that waits for it, by index and generation of
// its slot. The generation ends when the element continues, and later letters find no
// slot (law A2).
//
// # Completion in place
//
// A function may complete its attempt while AsyncInvoke runs on the loop. The loop looks
// at the attempt when AsyncInvoke returns ([Token.EndInvoke]), so no letter is needed.
// Two bits decide: the loop sets postsLetter in EndInvoke, and the goroutine that
// completes the attempt sets inPlace in publish, if the mailbox is empty. There are three
// cases:
//
//	in place   inPlace was set first: no letter, and EndInvoke returns true
//	after      postsLetter was set first: a letter
//	behind     the mailbox was not empty, so inPlace was not set: a letter
//
// An atomic Or returns the bits that were set before, so both goroutines agree on which
// bit was first. In the case behind, the attempts in the mailbox were complete before
// this one, and come first (law Q1): when AsyncInvoke returns, the loop reads the mailbox
// (core.Machine.invoked).
//
// # Permits
//
// A permit becomes free when the function of the attempt does not run, and
//
//	the operator's permit   the loop has released the attempt
//	the backend's permit    the attempt has ended
//
// The goroutine that sets the last bit of a condition frees the permit. The loop does it
// in [Token.Release] and [Token.Cut], the goroutine of a call when the call completes or
// its function returns. Bits are never cleared, so this happens once.
//
// # Contexts
//
// The context of a call answers these keys itself. For others, the values of observers
// come first, then the operator's context.
//
//	key              attempt           batch             other tokens         why
//	NumberKey        its number        nil               their number, or 0   a batch has several attempts
//	AttemptKey       the attempt       nil               outer                a blocking call keeps its permit
//	CostKey          its cost          shared by its     outer                calls report costs
//	                                   members
//	ReservationKey   its reservation,  outer             outer                an attempt without a permit has one
//	                 or nil
//	BatchKey         its batch, or     outer             outer                the function joins the batch
//	                 outer
//	BackendKey       its stamp, or     its stamp, or     outer                a call lends its permit to operators inside of it;
//	                 outer             outer                                  outer if the key names another backend
//	ctxkey.Stage     the attempt       all its members   outer                clients report stages and requests
//	ctxkey.Borrow    the attempt       nil               outer                a batch makes one call
//	ctxkey.Members   nil               contexts of its   outer                members of an outer call are not its own
//	                                   members
//	ctxkey.Message   its history, or   nil               its history, or nil  an outer message belongs to another element
//	                 nil
//
// ctxkey.Delivery is treated as ctxkey.Message, and returns the handle of the message.
// Outer is the context of a call that the operator runs inside of, if any.
//
// A context ends with its attempt or question, a batch's with its last member. If the
// operator has ended the context, context.Cause is the operator's. After a purge (of a
// member), it is message.ErrPurged. Otherwise it is the error of the context: see
// Token.parent.
//
// User code that may panic or end its goroutine runs below a guard (law A6).
package call
