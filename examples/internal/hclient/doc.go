// Package hclient is an asynchronous client of the store: [Client.Get] returns at once
// and calls back with the row.
//
//	client := hclient.New(metaAddr)
//	defer client.Close()
//	client.Get(ctx, "DTW", func(row hclient.Result, err error) { … })
//
// All Gets to a server share one connection. The client caches the server of each region,
// and asks the meta server again after "not serving" or a broken connection.
//
// The client does not retry: it removes outdated cache entries and returns the error. A
// missing row is an empty [Result]. Errors are a [*NotServingRegionError], a
// [*ConnectionError], or the cause of the context's end.
package hclient
