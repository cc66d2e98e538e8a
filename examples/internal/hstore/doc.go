// Package hstore is an HBase-like store in one process, reached over TCP on loopback. It
// has one table, cut into regions of adjacent row keys, region servers that each serve
// some regions, and a meta server that maps regions to servers.
//
//	        "" ........ C ........ G ........ M ........ P ........ S ........
//	region   r1          r2         r3         r4         r5         r6
//	server   0           1          2          0          1          2
//
// A server answers "not serving" to a Get for a region that it does not serve, or no
// longer serves. Then the client has to ask the meta server again. A missing row is an
// empty result, not an error. The requests and responses are calls of net/rpc.
//
// # Faults
//
// The store injects faults, and the same seed injects the same faults. Which rows are
// late, by how much, and how long each answer takes are functions of the seed, the row
// and the number of its Gets. Region moves, dropped connections, slow spells and crashes
// come from a plan whose events are due at a number of Gets, not at a time: see [Faults].
// The length of a spell is a time.
//
// A [Cluster] is safe for concurrent use.
package hstore
