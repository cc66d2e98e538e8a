package oncewire

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestContent(t *testing.T) {
	same := func(equal bool, contentType, body, otherType, otherBody string) {
		t.Helper()
		aType, a := Content(contentType, []byte(body))
		bType, b := Content(otherType, []byte(otherBody))
		require.Equal(t, equal, aType == bType && string(a) == string(b), "%s %s and %s %s", aType, a, bType, b)
	}
	const j = "application/json"
	same(true, j, `{"a":1,"b":[1,{"d":null,"c":"x"}]}`, j, " {\n\"b\": [1, {\"c\":\"\\u0078\",\"d\":null}], \"a\": 1 }\n")
	same(true, j, `{}`, "application/JSON; charset=UTF-8", `{}`)
	same(true, "application/vnd.pay+json;v=1", `[ ]`, `application/vnd.pay+json; v="1"`, `[]`)
	same(false, j, `{}`, "application/vnd.pay+json", `{}`)
	same(false, j, `{}`, j+"; charset=latin1", `{}`)
	same(false, j, `{"a":1}`, j, `{"a":"1"}`)
	same(false, j, `{"a":1}`, j, `{"a":1.0}`)
	same(false, j, `[1,2]`, j, `[2,1]`)
	same(false, j, `{"a":1,"a":2}`, j, `{"a":2}`)
	same(false, j, `{"a":1,"a":2}`, j, `{"a":2,"a":1}`)
	same(false, j, `{"a":1}`, j, `{"a":1}{}`)
	same(false, j, `{"a":"`+"\xff"+`"}`, j, `{"a":"`+"\xfe"+`"}`)
	same(false, "text/plain", `{"a": 1}`, "text/plain", `{"a":1}`)
	same(false, j, strings.Repeat("[", 20_000)+" "+strings.Repeat("]", 20_000), j, strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000))
}

// What differs as Go reads it differs here, too, and the form is stable.
func FuzzContent(f *testing.F) {
	f.Add(`{"a":1}`, ` {"a" : 1}`)
	f.Add(`[true,false,null,"",1e5]`, `{"b":{"a":[]},"a":{}}`)
	f.Fuzz(func(t *testing.T, a, b string) {
		_, x := Content("application/json", []byte(a))
		_, y := Content("application/json", []byte(b))
		if string(x) != string(y) || !json.Valid([]byte(a)) || !json.Valid([]byte(b)) {
			return
		}
		var v, w any
		require.NoError(t, json.Unmarshal([]byte(a), &v))
		require.NoError(t, json.Unmarshal([]byte(b), &w))
		require.Equal(t, v, w)
	})
}
