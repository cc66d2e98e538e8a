// Package killtest runs a stream of calls against counters, while the client and server
// processes are killed: HTTP between processes, and answers in the database of the
// counters. It is for the tests of records.
//
//	clients ──▶ network ──▶ servers ──▶ database
//	   ▲           │            ▲
//	   └── killed ─┴── killed ──┘
//
// The network is a part of the test's process. It is a load balancer, and it loses,
// doubles, delays and refuses requests and answers.
package killtest
