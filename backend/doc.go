// Package backend protects the service that operators call: how many calls may run, how fast they start, how many are retries, and whether the
// service is up at all. A Backend belongs to a single service, and all operators that call the service share it.
//
//	pay := backend.New("payments",
//		backend.Adaptive(8, 200),                 // calls at a time, found by measuring; or backend.Limit(50)
//		backend.Rate(500, time.Second),           // by cost, if calls have one
//		backend.RetryBudget(0.2))                 // retries, as a share of first attempts
//
// # States
//
//	          ┌── Retry-After, pushback; too large a share of 429, 503, refused, timeouts ──┐
//	          ▼                                                                             │
//	up ───▶ down until t ───▶ probing (one call, another element each time) ─▶ ramping ─▶ up
//	          ▲                     │ fails                                       │ relapse
//	          └─────────────────────┴─────────────────────────────────────────────┘     by hand: held
//
// A server that names a time takes the backend down until then, for a minute at most ([LongestPause]). If the call has a tenant, only the tenant is
// paused. Lost calls without a time take it down for 1 s, then twice as long each time, up to 10 s: see [LossShare]. Lost calls are timeouts, and
// failures that package netretry, httpretry or grpcretry names as a refused or broken connection, 408, 429, 502, 503, 504, DEADLINE_EXCEEDED,
// RESOURCE_EXHAUSTED or UNAVAILABLE. The operator's strategy names them (strategies.ReasonAware); without it only errors of net and httpretry
// are known. Every other outcome is an answer.
//
// After that a single call tries the service, then load grows back over five seconds, by time and by answers. Two successive probes are never
// of the same element, unless no other element has asked for a second or more. A probe that has not ended after ten seconds lets another element
// try; the first answer counts. Calls in flight when the backend goes down run to their end, and do not count as evidence for the time after it.
//
// # Laws
//
//   - B1: No attempt starts while its backend is down or held, over its limit or rate.
//   - B2: Waiting for a backend does not use up an attempt or a retry, and does not hold a permit or a goroutine.
//   - B3: Operators that wait are served in turn. An operator asks for retries first, oldest first.
//   - B4: A backend that is down comes back by a probe, and its load grows back on a ramp; a relapse takes it down.
//
// # Tenants
//
// Elements of other tenants overtake a tenant that must wait, if its operator has elements of others. An operator with a FIFO input, or in
// ordered mode, fills up with the elements of a tenant that floods: then all wait. Fairness between tenants needs a queue that serves tenants in
// turn (FairByKey of delivery.QueueConfig), and an unordered operator.
//
// # The adaptive limit
//
// [Adaptive] compares how long calls take with how long they take beside half as many, which it tries every twelve seconds. While twice the
// calls cost less than a fifth more time, the limit grows by a tenth a step; from two fifths on it shrinks, as it does if more than a twentieth
// of the calls is lost.
package backend
