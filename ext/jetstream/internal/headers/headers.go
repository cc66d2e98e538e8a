// Package headers reads the headers of messages that weir, or another program, has published.
package headers

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/weirflow/weir/message"
)

// Schema is the name of the header with the schema of the codec, in base64.
const Schema = "Weir-Schema"

// Subject is the name of the header with the subject of a message, which the server gives it in republished messages.
const Subject = "Nats-Subject"

const reserved = "Nats-"

// Read returns what the headers of a message say of it, which is on a subject and at a place in a stream. What is sound is returned with an
// error, too.
func Read(all nats.Header, subject, stream string, seq uint64) (meta message.Meta, schema []byte, err error) {
	h := make(map[string]string, 8)
	for name, values := range all {
		switch {
		case strings.EqualFold(name, Schema): // below
		case !OfServer(name):
			h[name] = strings.Join(values, ", ")
		}
	}
	h[Subject] = subject
	meta, err = message.MetaFromHeaders(h)
	if meta.Headers == nil { // they are over their limit
		meta.Headers = map[string]string{Subject: subject}
	}
	here := message.Origin{Source: stream, Position: strconv.FormatUint(seq, 10)}
	if meta.Origin == (message.Origin{}) {
		meta.Origin = here
	}
	if meta.ID == "" {
		meta.ID = here.ID()
	}
	schema, damaged := ReadSchema(all)
	return meta, schema, errors.Join(err, damaged)
}

// ReadSchema returns the schema of the codec that has written a message, or nil.
func ReadSchema(h nats.Header) (schema []byte, err error) {
	for name, values := range h {
		if strings.EqualFold(name, Schema) {
			if schema, err = base64.StdEncoding.DecodeString(strings.Join(values, "")); err != nil {
				return nil, fmt.Errorf("jetstream: header %s: %w", name, err)
			}
		}
	}
	return schema, nil
}

// OfServer says whether a header is one of the server: it is about the message it came with.
func OfServer(name string) bool {
	return len(name) >= len(reserved) && strings.EqualFold(name[:len(reserved)], reserved)
}
