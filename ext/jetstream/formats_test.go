package jetstream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/testing/golden"
)

// The subject, the headers and the body of a message of an engine's stream (law W4).
func TestFormatOfAMessage(t *testing.T) {
	s := &Engine{prefix: root + "S."}
	m := golden.Message()
	p, err := s.encode("orders", &m)
	require.NoError(t, err)
	leasedNow := state{kind: leased, position: 7, arrived: uint64(golden.At.UnixNano()), fence: 3, lapses: 2, due: 9, span: uint64(time.Minute)}
	written := fmt.Sprintf("%s\n%s: %s\n%s: %s\n\n%s", p.subject, headerState, leasedNow, headerWhy, p.why, p.body)

	head, stored, _ := strings.Cut(string(golden.Written(t, "message", []byte(written))), "\n\n")
	lines := strings.Split(head, "\n")
	h := nats.Header{}
	for _, line := range lines[1:] {
		name, value, _ := strings.Cut(line, ": ")
		h.Set(name, value)
	}
	r, err := newRecord(lines[0], 8, golden.At, h, []byte(stored))
	require.NoError(t, err)
	require.Equal(t, leasedNow, r.state)
	got, err := r.message()
	require.NoError(t, err)
	m.Meta.Due = instant(9)
	require.Equal(t, m, got)
	var counted why
	require.NoError(t, json.Unmarshal([]byte(r.why), &counted))
	require.Equal(t, why{store.Exhausted, m.Meta.Reasons}, counted)
}

// The formats beside the messages: a lock, and the subjects (law W4). The last subject is
// of earlier versions, whose workers stored the choice of a provider for a message of
// another program's stream there.
func TestFormatsBesideMessages(t *testing.T) {
	s := &Engine{prefix: root + "S."}
	h := holding{"relay", "host 1", 7, time.Minute}
	b, err := json.Marshal(h)
	require.NoError(t, err)
	written := fmt.Sprintf("%s\n%s\n%s\n%s\n%s\n", b, locks{s}.subject("relay"), s.recordSubject("job", "000000000001"), s.prefix+nameToken+token("orders"), s.prefix+"=choice."+token("orders")+".17")
	lock, _, _ := strings.Cut(string(golden.Written(t, "beside", []byte(written))), "\n")
	var got holding
	require.NoError(t, json.Unmarshal([]byte(lock), &got))
	require.Equal(t, h, got)
}
