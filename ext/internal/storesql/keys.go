package storesql

import (
	"encoding/json"
	"strings"

	"github.com/weirflow/weir/message"
)

// Key returns the key that the column meta has as this text, or a damaged text unchanged.
func Key(column string) string {
	if !strings.Contains(column, "%") { // not escaped
		return column
	}
	b, err := json.Marshal(map[string]string{"key": column})
	if err != nil {
		return column
	}
	var m message.Meta
	err = m.UnmarshalJSON(b)
	if err != nil {
		return column
	}
	return m.Key
}
