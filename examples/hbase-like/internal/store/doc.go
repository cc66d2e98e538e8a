// Package store is an HBase-like store in one process, reached over TCP on loopback: one
// table, cut into regions of adjacent row keys, each served by one of several region
// servers, and a meta server that knows which.
//
//	        "" ........ C ........ G ........ M ........ P ........ S ........
//	region   r1          r2         r3         r4         r5         r6
//	server   0           1          2          0          1          2
//
// A Get that reaches a server which does not serve the region (any more) is answered "not
// serving", and the client has to ask the meta server again. A row that is not there is
// an empty result, not an error.
//
// # Faults
//
// The store gets into trouble on purpose, and the same trouble for the same seed. Which
// rows are late and by how much, and how long each answer takes, are functions of seed,
// row and how often the row was asked for. Region moves, dropped connections, slow spells
// and crashes come from a plan whose events are due at a number of Gets, not at a time:
// see [Faults]. How long a spell lasts is a time.
//
// Rows live in the cluster, as in HBase they live in a file system below the
// servers: a server that comes back serves the same data.
//
// A [Cluster] is safe for concurrent use.
package store
