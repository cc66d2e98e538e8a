// Package wire is the protocol between the store and its clients. A frame over TCP has a
// length, the number of its call, and a body.
//
//	request   len(4) | id(8) | op(1) | region | row
//	response  len(4) | id(8) | status(1) | a body by status
//
// Integers are big-endian; strings and lists start with a uvarint length. The number lets
// many calls share a connection, because responses may arrive in any order.
//
// Functions are safe for concurrent use. Only one goroutine may use a reader.
package wire
