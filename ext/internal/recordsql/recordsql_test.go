package recordsql

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
)

// What is gone is stale, whatever else is known of it; other content is no attempt of the request.
func TestState(t *testing.T) {
	one, two := [32]byte{1}, [32]byte{2}
	answer := []byte("answer")
	for name, c := range map[string]struct {
		found       Found
		fingerprint [32]byte
		want        exactlyonce.State
		err         error
	}{
		"no record":                    {found: Found{Mark: 5}, want: exactlyonce.StateNew},
		"below the mark":               {found: Found{Mark: 6}, want: exactlyonce.StateStale},
		"below the mark, with answer":  {found: Found{Mark: 6, Present: true, Answered: true, Answer: answer}, want: exactlyonce.StateStale},
		"answered":                     {found: Found{Present: true, Answered: true, Answer: answer}, want: exactlyonce.StateCompleted},
		"its answer is gone":           {found: Found{Present: true}, want: exactlyonce.StateStale},
		"of a collected client":        {found: Found{Mark: Collected}, want: exactlyonce.StateStale},
		"same content":                 {found: Found{Present: true, Fingerprint: one[:], Answered: true, Answer: answer}, fingerprint: one, want: exactlyonce.StateCompleted},
		"other content":                {found: Found{Present: true, Fingerprint: one[:], Answered: true}, fingerprint: two, err: exactlyonce.ErrMismatch},
		"other content, answer gone":   {found: Found{Present: true, Fingerprint: one[:]}, fingerprint: two, err: exactlyonce.ErrMismatch},
		"content that is not compared": {found: Found{Present: true, Fingerprint: one[:], Answered: true, Answer: answer}, want: exactlyonce.StateCompleted},
		"stored without fingerprint":   {found: Found{Present: true, Answered: true, Answer: answer}, fingerprint: two, want: exactlyonce.StateCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			req := exactlyonce.Request{ID: exactlyonce.ID{Sequence: 5}, Fingerprint: c.fingerprint}
			state, got, err := c.found.State(&req)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, state)
			if c.want == exactlyonce.StateCompleted {
				require.Equal(t, answer, got)
			} else {
				require.Nil(t, got)
			}
		})
	}
}
