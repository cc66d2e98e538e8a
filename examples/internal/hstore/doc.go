// Package hstore is an HBase-like store in one process, reached over TCP on loopback. It
// has one table, cut into regions of adjacent row keys, region servers that each serve
// some regions, and a meta server that maps regions to servers.
//
//	        "" ........ C ........ G ........ M ........ P ........ S ........
//	region   r1          r2         r3         r4         r5         r6
//	server   0           1          2          0          1          2
//
// A server answers "not serving" to a Get for a region that it does not serve. A missing
// row is an empty result. Requests are calls of net/rpc.
//
// # Faults
//
// The same seed injects the same faults. Late rows, their delays, and the time of each
// answer are functions of the seed, the row and the number of its Gets. Region moves,
// dropped connections, slow spells and crashes come from a plan whose events are due at a
// number of Gets, and last for a time: see [Faults].
//
// A [Cluster] is safe for concurrent use.
package hstore
