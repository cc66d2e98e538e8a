// Package hclient is an asynchronous client of the store: [Client.Get] returns at once
// and calls back with the row.
//
//	client := hclient.New(metaAddr)
//	defer client.Close()
//	client.Get(ctx, "DTW", func(row hclient.Result, err error) { … })
//
// All Gets to a server share one connection. The client caches the server of each region.
// It asks the meta server for regions that are not in the cache, and asks again after a
// server answered "not serving" or its connection broke.
//
// The client does not retry. It removes outdated entries from its cache and returns the
// error, and the next Get finds the right server. A missing row is not an error but an
// empty [Result]. Errors are a [*NotServingRegionError], a [*ConnectionError], or the cause
// of the context's end.
package hclient
