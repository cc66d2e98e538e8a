package exactlyonce_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/internal/oncewire"
)

const digits = "0af7651916cd43dd8448eb211c80319c"

var client = exactlyonce.Client{
	0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c, 0x80, 0x31, 0x9c,
}

func TestClient(t *testing.T) {
	require.True(t, exactlyonce.Client{}.IsZero())
	a, b := exactlyonce.NewClient(), exactlyonce.NewClient()
	require.False(t, a.IsZero())
	require.NotEqual(t, a, b)
	require.Equal(t, digits, client.String())
}

func TestIDIsWrittenAndRead(t *testing.T) {
	for text, id := range map[string]exactlyonce.ID{
		`"` + digits + `";seq=17;attempt=2;first=12;step="charge"`: {
			Client: client, Sequence: 17, Attempt: 2, First: 12, Step: "charge",
		},
		`"` + digits + `";seq=1;attempt=3;age=90`: {Client: client, Sequence: 1, Attempt: 3, Age: 90 * time.Second},
		`"` + digits + `";seq=1;attempt=1`:        {Client: client, Sequence: 1, Attempt: 1},
		`"` + digits + `";seq=999999999999999;attempt=999999999;first=999999999999999;step="` + strings.Repeat("x", 64) + `"`: {
			Client: client, Sequence: oncewire.MaxSequence, Attempt: oncewire.MaxAttempt,
			First: oncewire.MaxSequence, Step: strings.Repeat("x", oncewire.MaxStep),
		},
	} {
		require.NoError(t, id.Validate())
		require.Equal(t, text, id.String())
		got, err := parseID(text)
		require.NoError(t, err)
		require.Equal(t, id, got)
	}
	got, err := parseID(`"` + digits + `"; step="a.b_c:d-9";  first=3; attempt=2; seq=4`)
	require.NoError(t, err, "parameters have no order")
	later, err := parseID(`"` + digits + `";seq=4;attempt=2;hops=7;shade="blue"`)
	require.NoError(t, err, "parameters of a later version")
	require.Equal(t, exactlyonce.ID{Client: client, Sequence: 4, Attempt: 2}, later)
	ancient, err := parseID(`"` + digits + `";seq=4;attempt=2;age=999999999999999`)
	require.NoError(t, err)
	require.NoError(t, ancient.Validate())
	require.Greater(t, ancient.Age, 290*365*24*time.Hour)
	require.Equal(t, exactlyonce.ID{Client: client, Sequence: 4, Attempt: 2, First: 3, Step: "a.b_c:d-9"}, got)

	var back struct{ ID exactlyonce.ID }
	text, err := json.Marshal(struct{ ID exactlyonce.ID }{got})
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, got, back.ID)
	_, err = exactlyonce.ID{}.MarshalText()
	require.ErrorIs(t, err, exactlyonce.ErrInvalid)
	require.ErrorIs(t, back.ID.UnmarshalText([]byte("x")), exactlyonce.ErrInvalid)
	require.Equal(t, got, back.ID, "left as it is")
}

func TestValidate_InvalidIDs(t *testing.T) {
	valid := exactlyonce.ID{Client: client, Sequence: 5, Attempt: 1, First: 5, Step: "s"}
	require.NoError(t, valid.Validate())
	for what, change := range map[string]func(id *exactlyonce.ID){
		"the client is zero":                  func(id *exactlyonce.ID) { id.Client = exactlyonce.Client{} },
		"sequence number 0":                   func(id *exactlyonce.ID) { id.Sequence = 0 },
		"sequence number -1":                  func(id *exactlyonce.ID) { id.Sequence = -1 },
		"sequence number 1000000000000000":    func(id *exactlyonce.ID) { id.Sequence = 1_000_000_000_000_000 },
		"attempt number 0":                    func(id *exactlyonce.ID) { id.Attempt = 0 },
		"attempt number 1000000000":           func(id *exactlyonce.ID) { id.Attempt = 1_000_000_000 },
		"first incomplete number -1":          func(id *exactlyonce.ID) { id.First = -1 },
		"first incomplete number 6":           func(id *exactlyonce.ID) { id.First = 6 },
		"age -1s is negative":                 func(id *exactlyonce.ID) { id.Age = -time.Second },
		"a step of 65 bytes":                  func(id *exactlyonce.ID) { id.Step = strings.Repeat("x", 65) },
		`step "a b" has another character`:    func(id *exactlyonce.ID) { id.Step = "a b" },
		`step "a\"b" has another character`:   func(id *exactlyonce.ID) { id.Step = `a"b` },
		`step "a\r\nb" has another character`: func(id *exactlyonce.ID) { id.Step = "a\r\nb" },
	} {
		id := valid
		change(&id)
		err := id.Validate()
		require.ErrorIs(t, err, exactlyonce.ErrInvalid)
		require.ErrorContains(t, err, what)
		_, err = parseID(id.String())
		require.ErrorIs(t, err, exactlyonce.ErrInvalid, what)
	}

	start := `"` + digits + `"`
	for _, text := range []string{
		"", digits, `"` + digits, `""`, `"` + digits[1:] + `";seq=1;attempt=1`,
		`"` + strings.ToUpper(digits) + `";seq=1;attempt=1`, `"` + digits[1:] + `g";seq=1;attempt=1`,
		start, start + ";seq=1", start + ";attempt=1", start + ";seq=1;attempt=1;", start + ";seq=1;attempt=1;first",
		start + ";seq=1;attempt=1;seq=1", start + ";seq=1;attempt=1;other=1;other=1", start + ";seq=1;attempt=1;age=0", start + ";seq=1;attempt=1;age=1.5", start + ";seq=01;attempt=1",
		start + ";seq=+1;attempt=1", start + ";seq=-1;attempt=1", start + ";seq=1.0;attempt=1", start + ";seq=;attempt=1",
		start + ";seq=1 ;attempt=1", start + " ;seq=1;attempt=1", start + ";seq=1;attempt=1;first=0",
		start + `;seq=1;attempt=1;step=""`, start + `;seq=1;attempt=1;step=a`, start + `;seq=1;attempt=1;step="`,
		start + `;seq=1;attempt=1;step="a;b"`, start + `;seq=1;attempt=1;step="a\"b"`, start + ";seq=1,attempt=1",
		start + ";seq=1;attempt=1, " + start + ";seq=1;attempt=1", "\t" + start + ";seq=1;attempt=1",
		start + ";" + strings.Repeat(" ", 256) + "seq=1;attempt=1", start + ";seq=1;attempt=4294967297",
	} {
		_, err := parseID(text)
		require.ErrorIs(t, err, exactlyonce.ErrInvalid, text)
	}
}

func drawID(t *rapid.T) exactlyonce.ID {
	id := exactlyonce.ID{
		Sequence: rapid.Int64Range(1, oncewire.MaxSequence).Draw(t, "seq"),
		Attempt:  rapid.IntRange(1, oncewire.MaxAttempt).Draw(t, "attempt"),
		Step:     rapid.StringMatching(`[A-Za-z0-9._:-]{0,64}`).Draw(t, "step"),
	}
	id.Age = time.Duration(rapid.Int64Range(0, 9_000_000_000).Draw(t, "age")) * time.Second
	id.First = rapid.Int64Range(0, id.Sequence).Draw(t, "first")
	copy(id.Client[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "client"))
	id.Client[0] |= 1
	return id
}

func TestID_ReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := drawID(t)
		got, err := parseID(id.String())
		require.NoError(t, err)
		require.Equal(t, id, got)
	})
}

// Any input is refused as invalid, or is an id that is written and read unchanged.
func FuzzID(f *testing.F) {
	f.Add(`"` + digits + `";seq=17;attempt=2;first=12;step="charge"`)
	f.Add(`"` + digits + `"; attempt=2;  seq=17`)
	f.Add(`"";seq=1`)
	f.Fuzz(func(t *testing.T, text string) {
		id, err := parseID(text)
		if err != nil {
			require.ErrorIs(t, err, exactlyonce.ErrInvalid)
			require.Equal(t, exactlyonce.ID{}, id)
			return
		}
		require.NoError(t, id.Validate())
		again, err := parseID(id.String())
		require.NoError(t, err)
		require.Equal(t, id, again)
	})
}

func TestRequestFromContext(t *testing.T) {
	_, ok := exactlyonce.RequestFromContext(t.Context())
	require.False(t, ok)
	req := exactlyonce.Request{ID: exactlyonce.ID{Client: client, Sequence: 1, Attempt: 1}, Scope: "alice"}
	got, ok := exactlyonce.RequestFromContext(context.WithValue(t.Context(), oncewire.RequestKey{}, req))
	require.True(t, ok)
	require.Equal(t, req, got)
}
