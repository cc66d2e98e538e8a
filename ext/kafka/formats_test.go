package kafka

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/weirflow/weir/internal/testing/golden"
)

// A record of a message with the headers of others that a dead letter has, and the states
// of an input and an output (law W4).
func TestFormats(t *testing.T) {
	m := golden.Message()
	r, err := record("orders-dead", m.Payload, m.Meta)
	require.NoError(t, err)
	var written strings.Builder
	fmt.Fprintf(&written, "%q\n%q\n", r.Key, r.Value)
	for _, h := range append(r.Headers, springHeaders(&m)...) {
		fmt.Fprintf(&written, "%s: %q\n", h.Key, h.Value)
	}
	stored := &kgo.Record{}
	lines := strings.Split(strings.TrimSuffix(string(golden.Written(t, "record", []byte(written.String()))), "\n"), "\n")
	scan := func(quoted string) (b []byte) {
		_, err := fmt.Sscanf(quoted, "%q", &b)
		require.NoError(t, err, quoted)
		return b
	}
	stored.Key, stored.Value = scan(lines[0]), scan(lines[1])
	for _, line := range lines[2:] {
		name, value, _ := strings.Cut(line, ": ")
		stored.Headers = append(stored.Headers, kgo.RecordHeader{Key: name, Value: scan(value)})
	}
	meta, err := metaOf(stored, "")
	require.NoError(t, err)
	require.Equal(t, m.Meta, meta)
	require.Equal(t, m.Payload, stored.Value)

	s, err := decodeState(golden.Written(t, "output-1", appendState(nil, 300, [][]byte{appendRecord(nil, r)})))
	require.NoError(t, err)
	require.EqualValues(t, 300, s.base)
	got, err := decodeRecord(s.records[0])
	require.NoError(t, err)
	require.Equal(t, &kgo.Record{Key: r.Key, Value: r.Value, Headers: r.Headers}, got)

	in := &input[string]{}
	require.NoError(t, in.Seek(golden.Written(t, "input", (&input[string]{offset: 300, epoch: 4}).Position())))
	require.EqualValues(t, 300, in.offset)
	require.EqualValues(t, 4, in.epoch)
}
