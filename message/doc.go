// Package message has the message: an element of a stream with its acknowledgement and
// its history. A [Settlement] is an acknowledgement (laws D1 and D2), and [Meta] has the
// history (law D6). Package delivery and operators share this package.
package message
