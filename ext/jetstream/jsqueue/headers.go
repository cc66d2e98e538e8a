package jsqueue

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery"
)

const (
	headerSchema  = "Weir-Schema"  // of the codec, base64
	headerSubject = "Nats-Subject" // the name that the server gives it in republished messages

	natsReserved = "Nats-"
)

// readHeaders returns what the headers of a message say of it.
func readHeaders(m jetstream.Msg, at *jetstream.MsgMetadata) (meta delivery.Meta, schema []byte, err error) {
	h := make(map[string]string, 8)
	for name, values := range m.Headers() {
		switch {
		case strings.EqualFold(name, headerSchema):
			if schema, err = base64.StdEncoding.DecodeString(strings.Join(values, "")); err != nil {
				return meta, nil, fmt.Errorf("jsqueue: header %s: %w", name, err)
			}
		case !isNats(name):
			h[name] = strings.Join(values, ", ")
		}
	}
	h[headerSubject] = m.Subject()
	meta, err = delivery.MetaFromHeaders(h)
	if meta.Headers == nil { // they are over their limit
		meta.Headers = map[string]string{headerSubject: m.Subject()}
	}
	here := delivery.Origin{Source: at.Stream, Position: strconv.FormatUint(at.Sequence.Stream, 10)}
	if meta.Origin == (delivery.Origin{}) {
		meta.Origin = here
	}
	if meta.ID == "" {
		meta.ID = here.ID()
	}
	return meta, schema, err
}

// writeHeaders returns the headers of a message for a value.
func writeHeaders(meta delivery.Meta, schema []byte) (nats.Header, error) {
	all, err := meta.ToHeaders()
	if err != nil {
		return nil, err
	}
	h := make(nats.Header, len(all)+2)
	values := make([]string, 0, len(all)) // of all of them
	for name, value := range all {
		if isNats(name) {
			continue // they are about the message they came with
		}
		if strings.ContainsAny(name, ": \r\n\x00") || strings.ContainsAny(value, "\r\n\x00") || strings.TrimSpace(value) != value {
			return nil, fmt.Errorf("jsqueue: message %q: the header %q cannot be written: names have no space and colon, values no line end and no space at an end", meta.ID, name)
		}
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if len(schema) > 0 {
		h.Set(headerSchema, base64.StdEncoding.EncodeToString(schema))
	}
	if meta.ID != "" {
		h.Set(jetstream.MsgIDHeader, h.Get("Weir-Id")) // escaped
	}
	return h, nil
}

func isNats(name string) bool {
	return len(name) >= len(natsReserved) && strings.EqualFold(name[:len(natsReserved)], natsReserved)
}
