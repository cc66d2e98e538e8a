package kafka

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/message"
)

func place(r *kgo.Record) message.Origin {
	return message.Origin{
		Source:    r.Topic,
		Partition: strconv.FormatInt(int64(r.Partition), 10),
		Position:  strconv.FormatInt(r.Offset, 10),
	}
}

// incarnation distinguishes a topic from earlier topics of the same name. It is the first
// eight characters of the topic id, as kafka-topics.sh shows it, or "" with brokers
// before 3.1, whose fetches lack the id.
type incarnation string

func incarnationOf(t kgo.FetchTopic) incarnation {
	if t.TopicID == [16]byte{} {
		return ""
	}
	return incarnation(base64.RawURLEncoding.EncodeToString(t.TopicID[:6]))
}

// eachRecord calls f for each record, with the incarnation of its topic.
func eachRecord(fetches kgo.Fetches, f func(r *kgo.Record, in incarnation)) {
	for _, fetch := range fetches {
		for _, t := range fetch.Topics {
			in := incarnationOf(t)
			for _, p := range t.Partitions {
				for _, r := range p.Records {
					f(r, in)
				}
			}
		}
	}
}

// metaOf returns the metadata of the message in a record: see the package documentation.
// The error names a damaged header of weir; the Meta still has the other headers. A
// record without an id gets one from its topic, incarnation, partition and offset.
func metaOf(r *kgo.Record, in incarnation) (message.Meta, error) {
	m, err := metaOfHeaders(r.Headers)
	if m.Origin == (message.Origin{}) {
		m.Origin = place(r)
	} else {
		in = "" // another program copied the record, so the original's incarnation is unknown
	}
	if m.ID == "" {
		m.ID = m.Origin.IDIn(string(in))
	}
	if m.Key == "" {
		m.Key = string(r.Key)
	}
	return m, err
}

// originOfPut returns the origin of the put of a message from a record (law W5): the
// place of the record, unless the message was handed over.
func originOfPut(m *message.Meta, r *kgo.Record, in incarnation) string {
	switch {
	case m.Put != "":
		return m.Put
	case len(r.Headers) == 0:
		return m.ID // of the same place
	default:
		return place(r).IDIn(string(in))
	}
}

// metaOfHeaders returns the metadata in headers. It must be cheap without headers, as
// most records of other programs are.
func metaOfHeaders(hs []kgo.RecordHeader) (m message.Meta, err error) {
	if len(hs) == 0 {
		return m, nil
	}
	headers := make(map[string]string, len(hs))
	var earlier map[string]int // number of earlier headers by name
	for _, h := range hs {
		if h.Key == "" { // a map of headers has no place for it
			continue
		}
		if before, twice := headers[h.Key]; twice {
			if earlier == nil {
				earlier = map[string]int{}
			}
			earlier[h.Key]++
			headers[fmt.Sprintf("%s%d-%s", earlierPrefix, earlier[h.Key], h.Key)] = before
		}
		headers[h.Key] = string(h.Value)
	}
	m, err = message.MetaFromHeaders(headers)
	takeSpring(m.Headers, &m)
	if len(m.Headers) == 0 {
		m.Headers = nil
	}
	return m, err
}

// record returns a record for a topic. The message's key is the record's key, not a
// header.
func record(topic string, payload []byte, m message.Meta) (*kgo.Record, error) {
	r := &kgo.Record{Topic: topic, Value: payload}
	if m.Key != "" {
		r.Key, m.Key = []byte(m.Key), ""
	}
	headers, err := m.ToHeaders()
	if err != nil {
		return nil, err
	}
	long := 0
	for _, v := range headers {
		long += len(v)
	}
	r.Headers = make([]kgo.RecordHeader, 0, len(headers))
	values := make([]byte, 0, long) // of all of them
	again := false
	for name, v := range headers {
		from := len(values)
		values = append(values, v...)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: name, Value: values[from:len(values):len(values)]})
		again = again || strings.HasPrefix(name, earlierPrefix)
	}
	slices.SortFunc(r.Headers, func(a, b kgo.RecordHeader) int { return cmp.Compare(a.Key, b.Key) })
	if again {
		r.Headers = inOrder(r.Headers)
	}
	return r, nil
}

// earlierPrefix begins the names of repeated headers, all but the last:
// "Weir-Earlier-1-name" and so on. So a map has them all, and they pass through other
// engines.
const earlierPrefix = "Weir-Earlier-"

// inOrder restores repeated headers.
func inOrder(hs []kgo.RecordHeader) []kgo.RecordHeader {
	type numbered struct {
		kgo.RecordHeader
		n int
	}
	all := make([]numbered, len(hs))
	for i, h := range hs {
		all[i] = numbered{h, math.MaxInt}
		rest, ok := strings.CutPrefix(h.Key, earlierPrefix)
		number, name, _ := strings.Cut(rest, "-")
		if n, err := strconv.Atoi(number); ok && err == nil && name != "" {
			all[i].Key, all[i].n = name, n
		}
	}
	slices.SortFunc(all, func(a, b numbered) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.n, b.n)) })
	for i, h := range all {
		hs[i] = h.RecordHeader
	}
	return hs
}
