// Package wire turns ordinary Go values into bytes and back, without help from their types. It is what the default codec
// of package checkpoint is made of.
//
// A [Codec] is built for one Go type. Building it fails, with the path to the culprit, if the type holds something that
// could not be restored exactly. The bytes of a value carry no names and no types: these are in the codec's schema, which
// is stored once beside many values. A [Reader] is built from the schema that the values were written with and the type
// as it is today; it matches fields by name, or refuses.
//
// # Encoding
//
//	bool                one byte, 0 or 1
//	int…, uint…         varint (zigzag), uvarint
//	float…, complex…    their bits, little endian
//	string              length, bytes
//	[]byte, slice, map  0 for nil; else length+1 and the elements; a map's elements are key, value
//	array               the elements; [N]byte: the bytes
//	pointer             0 for nil; else 1 and the value
//	struct              the fields in the order of the schema
//	interface           0 for nil; else the number of the type in the schema's table, from 1, and the value
//	time.Time           see time.go
//	marshalers          length, bytes
//
// Whatever has no bytes by this table (struct{}, [0]T) has one, 0. So every element of a list takes at least one byte, and
// no length that is read can make the reader allocate or loop for more than the bytes that are there.
//
// # Hostile bytes
//
// Decoding never panics by itself, never recurses deeper than maxDepth, and allocates in proportion to the bytes it was
// given (times the size of the Go type). Unmarshal methods of users' types are theirs.
//
// A Codec and a Reader are safe for concurrent use.
package wire
