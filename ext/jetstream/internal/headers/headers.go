// Package headers reads the headers of messages, by weir or other programs.
package headers

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/weirflow/weir/message"
)

// Schema is the header with the codec's schema, in base64.
const Schema = "Weir-Schema"

// Subject is the header with the original subject, which the server sets in republished
// messages.
const Subject = "Nats-Subject"

const reserved = "Nats-"

// Place is the place of a message in a stream.
type Place struct {
	Stream      string
	Incarnation string // of the stream: see Incarnation
	Seq         uint64
}

// Incarnation distinguishes a stream from earlier streams of the same name.
func Incarnation(created time.Time) string { return strconv.FormatInt(created.UnixNano(), 36) }

// Read returns a message's metadata from its headers, subject and place. It returns the
// sound headers with an error, too. A missing id, or origin of the put, comes from the
// place.
func Read(all nats.Header, subject string, at Place) (meta message.Meta, schema []byte, err error) {
	h := make(map[string]string, 8)
	for name, values := range all {
		switch {
		case strings.EqualFold(name, Schema):
		case !OfServer(name):
			h[name] = strings.Join(values, ", ")
		}
	}
	h[Subject] = subject
	meta, err = message.MetaFromHeaders(h)
	if meta.Headers == nil { // over their limit
		meta.Headers = map[string]string{Subject: subject}
	}
	here := message.Origin{Source: at.Stream, Position: strconv.FormatUint(at.Seq, 10)}
	if meta.Origin == (message.Origin{}) {
		meta.Origin = here
	}
	place := here.IDIn(at.Incarnation)
	meta.ID = cmp.Or(meta.ID, place)
	meta.Put = cmp.Or(meta.Put, place) // law W5
	schema, damaged := ReadSchema(all)
	return meta, schema, errors.Join(err, damaged)
}

// ReadSchema returns the schema of the codec that wrote a message, or nil.
func ReadSchema(h nats.Header) (schema []byte, err error) {
	for name, values := range h {
		if strings.EqualFold(name, Schema) {
			schema, err = base64.StdEncoding.DecodeString(strings.Join(values, ""))
			if err != nil {
				return nil, fmt.Errorf("jetstream: header %s: %w", name, err)
			}
		}
	}
	return schema, nil
}

// OfServer reports whether a header belongs to the server and describes its message.
func OfServer(name string) bool {
	return len(name) >= len(reserved) && strings.EqualFold(name[:len(reserved)], reserved)
}
