// Package codec turns values into bytes and back: the elements of a stream, for
// checkpoints and other stores.
//
// Each value is encoded by itself, by any goroutine: see [Codec]. The knowledge that a
// codec needs to read them later is stored once beside them, as its schema: see
// [SchemaCodec]. The schema of the codecs here is their name.
//
//	             exact                  types of interfaces   fields that change   a struct of 8 fields
//	[Default]    or refused             refused               by name              190 B, JSON
//	[JSON]       no                     lost                  by name              190 B, JSON
//	[Gob]        no                     gob.Register          by name              240 B: each value repeats its types
//	[Func]       yours                  yours                 yours                yours
//
// Package codectest checks a codec of your own.
//
// # Hostile bytes
//
// Schemas and values may be damaged or malicious: decoders return errors. They do not
// panic, loop or recurse without bounds, and do not allocate more than the bytes present
// can fill. An exception: if the type has got fields since, a single byte may stand for a
// value of any size. weir cannot bound methods of your own types, such as
// UnmarshalBinary; their panics become errors.
package codec
