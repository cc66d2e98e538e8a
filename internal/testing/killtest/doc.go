// Package killtest runs a stream of calls to counters while client and server processes
// are killed. The processes communicate over HTTP, and the counters' database also stores
// the answers. It is for tests of records.
//
//	clients ──▶ network ──▶ servers ──▶ database
//	   ▲           │            ▲
//	   └── killed ─┴── killed ──┘
//
// The network runs in the test's process. It is a load balancer that loses, doubles,
// delays and refuses requests and answers.
package killtest
