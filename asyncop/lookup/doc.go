// Package lookup avoids repeated calls that look up a row, a user, a price. Elements that ask for the same key at the same time share a call,
// and a cache answers later elements.
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
// The function that looks up gets only the key: its value is for all elements with that key. [Join] puts each element and the value of its key
// together. Without a cache (nil) calls are shared only. Lookups are for calls that may happen once for many elements: calls with an effect for
// each of them do not belong here.
//
// # Vocabulary
//
//   - A lookup is an attempt of an element.
//   - A load is a call of the wrapped function. One load may answer many lookups.
//   - A hit is a lookup that the cache answers. A miss is any other: it begins or joins a load.
//   - An entry is the outcome of a load in the cache: results, the absence of results (a negative entry), or an error.
//
// # Sharing
//
// There is a single load per key at a time. Its outcome is the outcome of all lookups that wait for it, be it results, an
// error or a panic.
//
//   - A lookup that is cancelled or runs out of time fails alone. The load continues for the others, and its context ends
//     with the last of them. This context has the values of the lookup that began the load, but not its deadline.
//   - After a lookup has timed out, the load that it waited for takes no new lookups: the next lookup begins another load. So a
//     call that hangs costs a single timeout, not a timeout for each later element.
//   - Lookups retry by themselves, each by the strategy of its operator. The first retry begins a new load; others join it.
//
// # Permits
//
// The load runs with the permit and on the goroutine of the lookup that began it. Lookups that wait for it do not need a goroutine; like all
// attempts they keep their permits meanwhile. Hits, and lookups that join a load, are free at the rates of a backend.
//
// # Reasons
//
// A report of a load about its stage counts for all lookups that waited for it (predicates.ReportStage, ReportSent). A lookup that joined the
// load has not sent a request itself, but its retry would repeat the request of the load. So it is in doubt if the request is. An error that
// comes from the cache is in stage ClientDispatch: the lookup has not sent a request. If the error carries a stage of its own, the later stage
// counts.
//
// # Negative entries, errors and retries
//
// A retry is not answered by a negative entry or by an error: it loads again, or joins a load. So a strategy with predicates.EmptyResult works
// with a cache in between. Other results are kept, even if a strategy retries them, so let the function return an error for a value that is not
// ready yet.
//
// # Concurrency
//
// A [Function] is safe for concurrent use, and may serve several operators, which then share their loads and the cache.
package lookup
