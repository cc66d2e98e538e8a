// Package codec turns values into bytes and back: the elements of a stream, for
// checkpoints and other stores.
//
// Each value is encoded by itself, on any goroutine. A schema, stored once beside the
// values, helps to decode them: see [SchemaCodec]. The schema of the codecs here is their
// name.
//
//	             exact                  types of interfaces   fields that change   a struct of 8 fields
//	[Default]    or refused             refused               by name              190 B, JSON
//	[JSON]       no                     lost                  by name              190 B, JSON
//	[Gob]        no                     gob.Register          by name              240 B: each value repeats its types
//	[Func]       yours                  yours                 yours                yours
//
// # Hostile bytes
//
// For damaged or malicious schemas and values decoders return errors. They do not panic,
// loop or recurse without bounds, nor allocate more than the bytes present can fill,
// except that a single byte may represent a value of any size if fields were added to the
// type. weir cannot bound your types' methods, such as UnmarshalBinary; their panics
// become errors.
package codec
