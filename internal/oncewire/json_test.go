package oncewire

import (
	"encoding/json"
	"runtime"
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

	// The form of JSON is never a body that is compared byte by byte.
	same(false, j, `{"a":1,}`, j, `{"a":1}`)
	same(false, j, `[1,]`, j, `[1]`)

	// Half of a surrogate pair is not a character: encoding/json reads each as U+FFFD.
	same(false, j, `{"to":"\ud800"}`, j, `{"to":"\udc01"}`)
	same(false, j, `{"to":"\ud800"}`, j, `{"to":"\ufffd"}`)
	same(false, j, `{"to":"\ud800\ud800\udc00"}`, j, `{"to":"\ud801\ud800\udc00"}`)
	same(false, j, `{"\udc01":1}`, j, `{"\udc02":1}`)
	same(true, j, `{"to":"\ud83d\ude00"}`, j, `{"to":"\uD83D\uDE00"}`)
	same(true, j, `{"to":"\ud83d\ude00"}`, j, "{\"to\" : \"\U0001f600\"}")
	same(true, j, `{"to":"\\ud800"}`, j, `{ "to":"\\ud800"}`)
	same(false, j, `{"to":"\\ud800"}`, j, `{"to":"\\udc01"}`)
	same(false, j, strings.Repeat("[", 20_000)+" "+strings.Repeat("]", 20_000), j, strings.Repeat("[", 20_000)+strings.Repeat("]", 20_000))
}

// A deeply nested body costs about as much as a flat body of its size. Regression: a
// megabyte cost tens of gigabytes.
func TestDeepContent(t *testing.T) {
	const levels, j = 9_000, "application/json"
	long := `"` + strings.Repeat("x", 100_000) + `"`
	for name, level := range map[string][2]string{"array": {`[`, `]`}, "object": {`{"b":`, `}`}, "unsorted": {`{"b":`, `,"a":0}`}} {
		t.Run(name, func(t *testing.T) {
			body := []byte(strings.Repeat(level[0], levels) + long + strings.Repeat(level[1], levels))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, content := Content(j, body)
			runtime.ReadMemStats(&after)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(200*len(body)))
			require.True(t, strings.Contains(string(content), long))
		})
	}
	nested := func(levels int, inner string) string {
		return strings.Repeat("[", levels) + inner + strings.Repeat("]", levels)
	}
	_, shallow := Content(j, []byte(nested(50, `{ "b":1, "a":2 }`)))
	_, same := Content(j, []byte(nested(50, `{"a":2,"b":1}`)))
	require.Equal(t, string(shallow), string(same))
}

// Bodies that differ when Go decodes them have different forms, and the form is stable.
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
