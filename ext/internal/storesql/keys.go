package storesql

import (
	"encoding/json"
	"strings"

	"github.com/weirflow/weir/message"
)

// Key returns the key of a message whose column meta has this text as its key. If the
// text is damaged, it returns the text.
func Key(column string) string {
	if !strings.Contains(column, "%") { // it is not escaped
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
