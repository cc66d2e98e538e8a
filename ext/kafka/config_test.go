package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The error of a configuration names the field that is missing, and no other.
func TestMissingFields(t *testing.T) {
	decode := func(*kgo.Record) (int, error) { return 0, nil }
	encode := func(int) (*kgo.Record, error) { return nil, nil }
	input := func(c InputConfig[int]) error { _, err := openInput(t.Context(), c); return err }
	output := func(c OutputConfig[int]) error { _, err := newOutput(c); return err }
	for _, c := range []struct {
		err  error
		want string
	}{
		{input(InputConfig[int]{Decode: decode}), "kafka: OpenInput: Topic is empty"},
		{input(InputConfig[int]{Topic: "orders"}), "kafka: OpenInput: Decode is nil"},
		{output(OutputConfig[int]{Topic: "orders", Encode: encode}), "kafka: NewOutput: TransactionalID is empty"},
		{output(OutputConfig[int]{TransactionalID: "id", Encode: encode}), "kafka: NewOutput: Topic is empty"},
		{output(OutputConfig[int]{TransactionalID: "id", Topic: "orders"}), "kafka: NewOutput: Encode is nil"},
		{(&Group{Topics: []string{"orders"}}).Run(t.Context(), nil), "kafka: Group.Name is empty"},
		{(&Group{Name: "group"}).Run(t.Context(), nil), "kafka: Group.Topics is empty"},
		{(&Group{Name: "group", Topics: []string{"orders", ""}}).Run(t.Context(), nil), `kafka: Group.Topics has an empty name: ["orders" ""]`},
	} {
		require.EqualError(t, c.err, c.want)
	}
}
