// Package hclient is an asynchronous client of the store: [Client.Get] returns at once
// and calls back when the row is there.
//
//	client := hclient.New(metaAddr)
//	defer client.Close()
//	client.Get(ctx, "DTW", func(row hclient.Result, err error) { … })
//
// All Gets to a server share one connection. The client remembers which server serves
// which region; it asks the meta server when it does not know, and again after a server
// answered "not serving" or its connection broke.
//
// # Failures
//
// The client tries nothing again by itself: it forgets what turned out wrong, reports the
// error, and the next Get finds the right way. A missing row is no error, but an empty
// [Result]. Errors are a [*NotServingRegionError], a [*ConnectionError], a [*RemoteError]
// (the server refused the request), [ErrClosed], or the cause of the context's end.
//
// # Callbacks
//
// Every Get calls back exactly once: on the goroutine that reads the connection, or
// before Get returns. A callback must not block, and must not call [Client.Close]; it may
// call Get.
package hclient
