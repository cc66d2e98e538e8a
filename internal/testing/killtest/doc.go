// Package killtest tests records: it runs a stream of calls to counters, over HTTP, while
// client and server processes are killed. The counters' database also stores the answers.
//
//	clients ──▶ network ──▶ servers ──▶ database
//	   ▲           │            ▲
//	   └── killed ─┴── killed ──┘
//
// The network, in the test's process, is a load balancer that loses, doubles, delays and
// refuses requests and answers.
package killtest
