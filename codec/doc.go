// Package codec turns values into bytes and back: the elements of a stream, for checkpoints and other stores.
//
// Values are encoded one by one, by any goroutine: see [Codec]. What a codec has to know to read them later, above all the
// names and kinds of fields, is stored once beside them, as its schema: see [SchemaCodec]. So values are small. A program
// whose types have changed reads what still fits, and refuses what it would have to guess.
//
//	                      exact    types of interfaces   fields that change       a struct of 8 fields: size, time to write
//	[Default]             yes      [Register]            by name, checked first    81 B, 346 ns
//	gob, one stream       no       gob.Register          by name                   98 B, 445 ns
//	[JSON]                no       lost                  by name                  190 B, 3 times that of Default
//	[Func]                yours    yours                 yours                    yours
//
// The second row is encoding/gob at its best, with one stream for all values. [Gob] is not that: values are read one by one,
// so it begins a stream for each and repeats the types in it, which takes 240 bytes.
//
// Package codectest checks a codec of your own.
//
// # Hostile bytes
//
// Schemas and values may be damaged or made to harm: decoders return errors. They do not panic, do not loop, do not recurse
// without bounds, and allocate no more than the bytes that are there can fill. There is one exception: if the type
// has got fields since, one byte may stand for a value of any size. weir cannot bound methods of your own types, such as
// UnmarshalBinary; their panics become errors.
package codec
