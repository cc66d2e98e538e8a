// Package wire is the protocol between the store and its clients: frames over
// TCP, each a length, the number of the call it belongs to, and a body.
//
//	request   len(4) | id(8) | op(1) | region | row
//	response  len(4) | id(8) | status(1) | a body by status
//
// Integers are big-endian, strings and lists carry a uvarint length. The
// number lets many calls share a connection: answers come in any order.
//
// Functions are safe for concurrent use; a reader belongs to one goroutine.
package wire
