package console

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPayloadText_Forms(t *testing.T) {
	deep := strings.Repeat("[", 9000) + strings.Repeat("]", 9000)
	for _, c := range []struct {
		name, payload, form, chosen string
		more                        bool
	}{
		{"JSON", `{"a":[1,2]}`, "", "json", false},
		{"JSON as text", `{"a":[1,2]}`, "text", "text", false},
		{"nested JSON", deep, "", "text", false},
		{"nested JSON that is asked for", deep, "json", "text", false},
		{"bytes", "\xff\x00", "", "hex", false},
		{"long text", strings.Repeat("x", maxShown+1), "", "text", true},
	} {
		chosen, text, more := payloadText([]byte(c.payload), c.form)
		assert.Equal(t, c.chosen, chosen, c.name)
		assert.Equal(t, c.more, more, c.name)
		assert.NotEmpty(t, text, c.name)
		assert.LessOrEqual(t, len(text), maxIndented, c.name)
	}
}

// indentedSize is an upper bound for everything that json.Indent accepts.
func FuzzIndentedSize(f *testing.F) {
	f.Add([]byte(`{"a":[1,{"b":"\"]["}],"c":{}}`))
	f.Add([]byte(strings.Repeat("[", 100) + strings.Repeat("]", 100)))
	f.Add([]byte(`[ 1 , 2 ]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var pretty bytes.Buffer
		if json.Indent(&pretty, b, "", indent) == nil {
			require.LessOrEqual(t, pretty.Len(), indentedSize(b, 1<<30))
		}
	})
}
