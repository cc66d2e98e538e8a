package keys

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Any accepted header value is a key that can be sent again, with or without quotes, as
// the same key.
func FuzzHeaderKey(f *testing.F) {
	for _, s := range []string{"", `"`, `""`, "order-7", `"order-7"`, `"order-7`, `order-7"`, `"a" "b"`, "a b", "a\\b", "\x00", "ä", strings.Repeat("k", 101)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, err := headerKey(&http.Request{Header: http.Header{header: {value}}}, nil)
		if err != nil {
			require.Empty(t, key)
			return
		}
		for _, b := range []byte(key) {
			require.True(t, '!' <= b && b <= '~' && b != '"' && b != '\\', "%q", key)
		}
		require.Equal(t, strings.Trim(value, `"`), key)
		for _, again := range []string{key, `"` + key + `"`} {
			same, err := headerKey(&http.Request{Header: http.Header{header: {again}}}, nil)
			require.NoError(t, err)
			require.Equal(t, key, same)
		}
	})
}
