package couchbase

import "fmt"

// Command is a command of the key-value service, with its number in the binary protocol.
// Only commands with a rule have a name here.
type Command uint8

// The commands with rules.
const (
	Get                    Command = 0x00
	Noop                   Command = 0x0a
	GetReplica             Command = 0x83
	ObserveSeqno           Command = 0x91
	Observe                Command = 0x92 // by CAS
	Unlock                 Command = 0x95
	GetClusterConfig       Command = 0xb5 // of a bucket (carrier) or of the cluster (global)
	GetCollectionsManifest Command = 0xba
	GetCollectionID        Command = 0xbb
	SubdocGet              Command = 0xc5
	SubdocExists           Command = 0xc6
	SubdocMultiLookup      Command = 0xd0
	SubdocGetCount         Command = 0xd2

	firstDCP Command = 0x50
	lastDCP  Command = 0x65
)

var commandNames = map[Command]string{
	Get:                    "get",
	Noop:                   "noop",
	GetReplica:             "get replica",
	ObserveSeqno:           "observe seqno",
	Observe:                "observe",
	Unlock:                 "unlock",
	GetClusterConfig:       "get cluster config",
	GetCollectionsManifest: "get collections manifest",
	GetCollectionID:        "get collection id",
	SubdocGet:              "subdoc get",
	SubdocExists:           "subdoc exists",
	SubdocMultiLookup:      "subdoc multi lookup",
	SubdocGetCount:         "subdoc get count",
}

// String returns the name of the command, or its number.
func (c Command) String() string {
	if name, ok := commandNames[c]; ok {
		return name
	}
	return fmt.Sprintf("command 0x%02x", uint8(c))
}

// Idempotent reports whether the command is in RFC 0049's list. Other commands are not
// idempotent: a get that locks or touches changes the document.
func (c Command) Idempotent() bool {
	switch c {
	case GetClusterConfig, Get, GetCollectionID, GetCollectionsManifest, Noop, Observe, ObserveSeqno, GetReplica,
		SubdocGet, SubdocExists, SubdocGetCount, SubdocMultiLookup:
		return true
	default:
		return false
	}
}

// DCP reports whether the command belongs to the change protocol, to which the list of
// response codes does not apply.
func (c Command) DCP() bool { return firstDCP <= c && c <= lastDCP }
