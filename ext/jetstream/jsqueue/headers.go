package jsqueue

import (
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/ext/jetstream/internal/headers"
)

// writeHeaders returns the headers of a message for a value.
func writeHeaders(meta delivery.Meta, schema []byte) (nats.Header, error) {
	all, err := meta.ToHeaders()
	if err != nil {
		return nil, err
	}
	h := make(nats.Header, len(all)+2)
	values := make([]string, 0, len(all)) // of all of them
	for name, value := range all {
		if headers.OfServer(name) {
			continue // they are about the message they came with
		}
		if strings.ContainsAny(name, ": \r\n\x00") || strings.ContainsAny(value, "\r\n\x00") || strings.TrimSpace(value) != value {
			return nil, fmt.Errorf("jsqueue: message %q: the header %q cannot be written: names have no space and colon, values no line end and no space at an end", meta.ID, name)
		}
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if len(schema) > 0 {
		h.Set(headers.Schema, base64.StdEncoding.EncodeToString(schema))
	}
	if meta.ID != "" {
		h.Set(jetstream.MsgIDHeader, h.Get("Weir-Id")) // escaped
	}
	return h, nil
}
