package kafka

import (
	"encoding/binary"
	"reflect"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/message"
)

// Headers of dead letters in other programs. Spring Kafka writes numbers as big-endian
// bytes; Kafka Connect as text.
const (
	springTopic     = "kafka_dlt-original-topic"
	springPartition = "kafka_dlt-original-partition" // 4 bytes
	springOffset    = "kafka_dlt-original-offset"    // 8 bytes
	springMessage   = "kafka_dlt-exception-message"
	springClass     = "kafka_dlt-exception-fqcn"

	// Spring's retry topics.
	springRetryTopic     = "kafka_original-topic"
	springRetryPartition = "kafka_original-partition"
	springRetryOffset    = "kafka_original-offset"
	springRetryMessage   = "kafka_exception-message"
	springRetryClass     = "kafka_exception-fqcn"
	springAttempts       = "retry_topic-attempts"          // of the next delivery; variable length
	springDue            = "retry_topic-backoff-timestamp" // milliseconds; variable length

	connectTopic     = "__connect.errors.topic"
	connectPartition = "__connect.errors.partition"
	connectOffset    = "__connect.errors.offset"
	connectMessage   = "__connect.errors.exception.message"
	connectClass     = "__connect.errors.exception.class.name"
)

// springHeaders returns the headers that Spring Kafka and Kafka Connect would write to a
// dead letter.
func springHeaders(m *store.Message) (h []kgo.RecordHeader) {
	add := func(name, value string) {
		if value != "" {
			h = append(h, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
	}
	o, class := m.Meta.Origin, causePrefix+string(m.Cause)
	add(springTopic, o.Source)
	if p, err := strconv.ParseInt(o.Partition, 10, 32); err == nil {
		add(springPartition, string(binary.BigEndian.AppendUint32(nil, uint32(p))))
	}
	if p, err := strconv.ParseInt(o.Position, 10, 64); err == nil {
		add(springOffset, string(binary.BigEndian.AppendUint64(nil, uint64(p))))
	}
	add(springMessage, m.Meta.LastError)
	add(springClass, class)
	add(connectTopic, o.Source)
	add(connectPartition, o.Partition)
	add(connectOffset, o.Position)
	add(connectMessage, m.Meta.LastError)
	add(connectClass, class)
	return h
}

// takeSpring takes the history of a message from headers of Spring Kafka or Kafka
// Connect, and removes the headers that it can read. If weir's more detailed headers
// exist, it only removes them.
func takeSpring(headers map[string]string, m *message.Meta) {
	text := func(names ...string) (value string) {
		for _, name := range names {
			if v, ok := headers[name]; ok && value == "" {
				value = v
			}
			delete(headers, name)
		}
		return value
	}
	number := func(names ...string) (value string) {
		for _, name := range names {
			if n, ok := bigEndian(headers[name]); ok && value == "" {
				value = strconv.FormatInt(n, 10)
				delete(headers, name)
			}
		}
		return value
	}
	var f message.Meta
	spring := message.Origin{
		Source:    text(springTopic, springRetryTopic),
		Partition: number(springPartition, springRetryPartition),
		Position:  number(springOffset, springRetryOffset),
	}
	connect := message.Origin{Source: text(connectTopic), Partition: text(connectPartition), Position: text(connectOffset)}
	for _, o := range []message.Origin{spring, connect} {
		if f.Origin == (message.Origin{}) && isName(o.Source) && isName(o.Partition) && isName(o.Position) {
			f.Origin = o
		}
	}
	f.LastError = text(springMessage, springRetryMessage, connectMessage)
	if class := text(springClass, springRetryClass, connectClass); class != "" {
		f.Reasons = []string{class}
	}
	if n, ok := bigEndian(headers[springAttempts]); ok && n >= 1 && n < 1<<31 {
		delete(headers, springAttempts)
		f.Visit, f.Attempts = int(n)-1, int(n)-1 // each of its deliveries is a call
	}
	if ms, ok := bigEndian(headers[springDue]); ok && ms > 0 && ms < 1<<47 {
		delete(headers, springDue)
		f.Due = time.UnixMilli(ms).UTC()
	}
	own := *m
	own.Headers = nil
	if reflect.DeepEqual(own, message.Meta{}) {
		f.Headers = m.Headers
		*m = f
	}
}

// isName reports whether an origin may have the text: see [message.Meta].
func isName(s string) bool { return s != "" && len(s) <= 1024 }

func bigEndian(b string) (n int64, ok bool) {
	if b == "" || len(b) > 8 {
		return 0, false
	}
	n = int64(int8(b[0]))
	for i := 1; i < len(b); i++ {
		n = n<<8 | int64(b[i])
	}
	return n, true
}
