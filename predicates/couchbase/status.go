package couchbase

import "fmt"

// Status is a status code of the key-value service.
type Status uint16

// The statuses in the list of response codes.
const (
	NotMyVBucket                Status = 0x07
	Locked                      Status = 0x09
	TemporaryFailure            Status = 0x86
	CollectionOutdated          Status = 0x88 // also: unknown collection
	SyncWriteInProgress         Status = 0xa2
	SyncWriteReCommitInProgress Status = 0xa4
)

// String returns the number, such as "0x07".
func (s Status) String() string { return fmt.Sprintf("0x%02x", uint16(s)) }

// known are the ranges of statuses that a client knows, listed or not. The server's error
// map explains all others, including 0x85, busy.
var known = [...]struct{ first, last Status }{
	{0x00, 0x09}, // success, key-value, bucket
	{0x1f, 0x25}, // authentication, range, rollback, access, initialisation
	{0x81, 0x84}, // command, memory, support, internal
	{0x86, 0x86}, // temporary failure
	{0x88, 0x88}, // collection
	{0x8c, 0x8d}, // scope, DCP stream id
	{0xa0, 0xa4}, // durability
	{0xc0, 0xd3}, // sub-document
}

// Known reports whether a client knows the status without the server's error map.
func (s Status) Known() bool {
	for _, r := range known {
		if r.first <= s && s <= r.last {
			return true
		}
	}
	return false
}
