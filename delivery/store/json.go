package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"unicode/utf8"

	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/unknown"
	"github.com/weirflow/weir/message"
)

// messageJSON is a message as JSON. At most one payload field is set.
type messageJSON struct {
	Meta          message.Meta    `json:"meta"`
	Cause         Cause           `json:"cause,omitempty"`
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 []byte          `json:"payloadBase64,omitempty"`
	Schema        []byte          `json:"schema,omitempty"` // base64
	Batch         json.RawMessage `json:"batch,omitempty"`  // of dead letters of an earlier version: ignored, not written
	CRC           json.RawMessage `json:"crc,omitempty"`    // likewise
}

// messageMembers has the members that this version knows.
var messageMembers = unknown.Kind{
	Prefix: "Weir-Message-", Known: []string{"meta", "cause", "payload", "payloadBase64", "schema", "batch", "crc"},
}

// MarshalJSON returns m without its delay, in one line. A JSON payload is embedded as it
// is; any other payload is base64.
func (m Message) MarshalJSON() ([]byte, error) {
	j := messageJSON{Meta: m.Meta, Cause: m.Cause, Schema: m.Schema}
	later, headers := messageMembers.Split(m.Meta.Headers)
	j.Meta.Headers = headers
	if isEmbeddable(m.Payload) {
		j.Payload = m.Payload
	} else {
		j.PayloadBase64 = m.Payload
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // otherwise a JSON payload would change
	if err := e.Encode(j); err != nil {
		return nil, fmt.Errorf("store: message %q: %w", guard.Shown(m.Meta.ID), err)
	}
	return messageMembers.Append(bytes.TrimSuffix(b.Bytes(), []byte("\n")), later), nil
}

// isEmbeddable reports whether a payload is JSON that stays the same, byte for byte,
// inside other JSON.
func isEmbeddable(payload []byte) bool {
	if !utf8.Valid(payload) || !json.Valid(payload) || string(payload) == "null" {
		return false
	}
	var b bytes.Buffer
	return json.Compact(&b, payload) == nil && bytes.Equal(b.Bytes(), payload) && !bytes.ContainsAny(payload, "\u2028\u2029<>&")
}

// UnmarshalJSON reads the output of MarshalJSON, even if reformatted. An unknown member
// becomes a header whose name begins with "Weir-Message-", which MarshalJSON writes as it
// was.
func (m *Message) UnmarshalJSON(b []byte) error {
	var j messageJSON
	later, err := messageMembers.Unmarshal(b, &j)
	if err != nil {
		return fmt.Errorf("store: message: %w", err)
	}
	if len(later) > 0 && j.Meta.Headers == nil {
		j.Meta.Headers = map[string]string{}
	}
	maps.Copy(j.Meta.Headers, later)
	if j.Payload != nil && j.PayloadBase64 != nil {
		return errors.New("store: message: it has two payloads")
	}
	*m = Message{Meta: j.Meta, Cause: j.Cause, Payload: j.PayloadBase64, Schema: j.Schema}
	if j.Payload != nil && string(j.Payload) != "null" {
		var line bytes.Buffer
		if err := json.Compact(&line, j.Payload); err != nil {
			return fmt.Errorf("store: message: payload: %w", err)
		}
		m.Payload = line.Bytes()
	}
	return m.Validate()
}
