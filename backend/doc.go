// Package backend protects the service that operators call: how many calls may run, how
// fast they start, how many are retries, and whether the service is up at all. All
// operators that call a service share its Backend.
//
//	pay := backend.New("payments",
//		backend.Adaptive(8, 200),                 // calls at a time, found by measuring; or backend.Limit(50)
//		backend.Rate(500, time.Second),           // by cost, if calls have one; or backend.AdaptiveRate
//		backend.RetryBudget(0.2))                 // retries, as a share of first attempts
//
// # Signals
//
//	throttled    429, RESOURCE_EXHAUSTED, another    no call starts until the demanded time, or for 100 ms; then calls
//	             answer that demands a delay         start at the same rate as before, from an empty bucket
//	overloaded   503, 529, a lost call               a demanded time is obeyed in the same way; the call counts as lost
//	down         too many calls were lost            the states below
//
// A throttle of a call with a tenant delays only the tenant. Demanded delays are obeyed
// up to [LongestPause].
//
// Lost calls are timeouts, and failures that package netretry, httpretry or grpcretry
// names as a refused or broken connection, 408, 502, 503, 504, 529, DEADLINE_EXCEEDED or
// UNAVAILABLE. The operator's strategy names them (strategies.ReasonAware); without it
// only errors of net and httpretry are known. Every other outcome is an answer.
//
// # States
//
//	           ┌─────────────── too large a share of lost calls ───────────────┐
//	           ▼                                                               │
//	up ─▶ down until t ─▶ probing (one call, another element each time) ─▶ ramping ─▶ up
//	           ▲                │ lost                                         │ relapse
//	           └────────────────┴──────────────────────────────────────────────┘     by hand: held
//
// Lost calls take the backend down for 250 ms ([LossShare]). After a lost probe it is
// down again for an eighth of the outage so far, at least 250 ms and at most 10 s, or for
// the demanded delay. Two successive probes are of different elements, unless no other
// element has asked for one second. After ten seconds without an end of the probe,
// another element may try; the first answer counts. Calls in flight when the backend goes
// down run to their end, and are no evidence about the time after it.
//
// After a successful probe the rate of starts grows to its value before the outage, in
// proportion to the time ([Ramp]). A relapse takes the backend down for 250 ms again, and
// its outage adds to the length of the next ramp.
//
// # Laws
//
//   - B1: No attempt starts while its backend or its tenant is down or held, over its
//     limit or rate.
//   - B2: Waiting for a backend does not use up an attempt or a retry, and does not hold a
//     permit or a goroutine.
//   - B3: Operators that wait are served in turn. An operator asks for retries first,
//     oldest first.
//   - B4: A backend or a tenant that is down recovers through a probe. The rate of starts
//     then grows with time, within a ramp that does not depend on latency, and at most half
//     as long as the outage. A relapse takes it down again. With [Shared] one process of
//     the fleet probes, and the ramp is the fleet's.
//   - B5: With [Shared], the calls that all processes make at the same time never exceed
//     the limit, with the exceptions in docs/fleet.md.
//   - B6: A throttle does not take the backend down, uses up no attempt, retry or visit,
//     and delays only the calls that the service has asked to delay.
//
// # Tenants
//
// Elements of other tenants overtake a tenant that must wait. But an operator with a FIFO
// input, or in ordered mode, fills up with the elements of a flooding tenant: then all
// wait. Fairness between tenants needs a queue that serves tenants in turn
// (delivery.WithFairByKey), and an unordered operator.
//
// With [TenantBreaker] each tenant has these states. An element of a tenant that is down
// waits in its slot; a worker's message leaves its slot at once, and is released if it
// was not called.
//
// # The adaptive limit
//
// [Adaptive] compares how long calls take with how long they take beside half as many,
// which it tries every twelve seconds. While twice the calls cost less than a fifth more
// time, the limit grows by a tenth a step. From two fifths on it shrinks, and if more
// than a twentieth of the calls is lost.
package backend
