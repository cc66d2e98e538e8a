// Package lookup avoids repeated calls that look up a row, a user or a price. Elements
// that ask for the same key at the same time share a call, and a cache answers later
// elements.
//
//	users := lookup.New(
//		asyncop.Blocking(func(ctx context.Context, id int64) (User, error) { return db.User(ctx, id) }),
//		cache,                              // ottercache.New of ext/otter, your own, or nil
//		lookup.WithMissTTL(10*time.Second)) // there is no such user: ask again after that
//	enriched := lookup.Join(users,
//		func(o Order) int64 { return o.UserID },
//		func(o Order, u User) Enriched { return Enriched{Order: o, Name: u.Name} })
//	op := asyncop.OrderedWait(enriched, 5*time.Second, 1000)
//
// The lookup function gets only the key. [Join] combines each element with the value.
// Without a cache (nil) calls are only shared. Calls with an effect for each element do
// not belong here.
//
// # Vocabulary
//
//   - A lookup is an attempt of an element.
//   - A load is a call of the wrapped function, for one or many lookups.
//   - A hit is a lookup that the cache answers. A miss begins or joins a load.
//   - An entry is the outcome of a load in the cache: results, their absence (a negative
//     entry), or an error.
//
// # Sharing
//
// A key has a single load at a time. Its results, error or panic are the outcome of all
// lookups that wait for it.
//
//   - A lookup that is cancelled or runs out of time fails alone. The load continues for
//     the others, and its context ends with the last of them. It has the values of the
//     lookup that began the load, but not its deadline.
//   - After a lookup has timed out, the next lookup begins a new load. So a call that
//     hangs costs a single timeout.
//   - If a load fails, the elements of an operator that waited for it share its retry:
//     the strategy is asked once, about the oldest element that is still there, and its
//     decision is for all. Elements with this key that come before the retry wait for it.
//     So a key that fails is loaded as often as the strategy retries one element, with
//     one retry from the retry budget at a time.
//   - An element keeps its own timeout.
//
// # Permits
//
// A load has the permit and the goroutine of the lookup that began it. A hit, and a
// lookup that joins a load, needs neither: it starts even while all permits are taken or
// a backend refuses calls, and does not use the backend's rates and limits. This requires
// that the [Function] is the function of the operator, or is inside [Join] and
// asyncop.HandleFailure only. Inside a wrapper of your own, each lookup takes a permit,
// and a hit gives its cost back to the rates.
//
// # Reasons
//
// The reported stage of a load (predicates.ReportStage, ReportSent) counts for all
// lookups that waited for it. A lookup that joined is in doubt if the request is. An
// error from the cache is in stage ClientDispatch, unless it carries a later stage.
//
// # Negative entries, errors and retries
//
// A negative entry or an error does not answer a retry, which loads again or joins a
// load. So predicates.EmptyResult works with a cache. Other results are kept, even if a
// strategy retries them, so return an error for a value that is not ready yet.
//
// # Concurrency
//
// A [Function] is safe for concurrent use. Its operators share its loads and the cache.
package lookup
