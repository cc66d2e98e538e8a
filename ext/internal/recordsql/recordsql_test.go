package recordsql

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/exactlyonce"
)

// A request below the mark is stale, whatever else is known of it; other content is not
// an attempt of the request.
func TestFind(t *testing.T) {
	one, two := [32]byte{1}, [32]byte{2}
	answer := []byte("answer")
	for name, c := range map[string]struct {
		found       Found
		fingerprint [32]byte
		want        bool
		err         error
	}{
		"no record":                    {found: Found{Mark: 5}},
		"below the mark":               {found: Found{Mark: 6}, err: exactlyonce.ErrStale},
		"below the mark, with answer":  {found: Found{Mark: 6, Present: true, Answered: true, Answer: answer}, err: exactlyonce.ErrStale},
		"answered":                     {found: Found{Present: true, Answered: true, Answer: answer}, want: true},
		"its answer is gone":           {found: Found{Present: true}, err: exactlyonce.ErrStale},
		"of a collected client":        {found: Found{Mark: Collected}, err: exactlyonce.ErrStale},
		"same content":                 {found: Found{Present: true, Fingerprint: one[:], Answered: true, Answer: answer}, fingerprint: one, want: true},
		"other content":                {found: Found{Present: true, Fingerprint: one[:], Answered: true}, fingerprint: two, err: exactlyonce.ErrMismatch},
		"other content, answer gone":   {found: Found{Present: true, Fingerprint: one[:]}, fingerprint: two, err: exactlyonce.ErrMismatch},
		"content that is not compared": {found: Found{Present: true, Fingerprint: one[:], Answered: true, Answer: answer}, want: true},
		"stored without fingerprint":   {found: Found{Present: true, Answered: true, Answer: answer}, fingerprint: two, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			req := exactlyonce.Request{ID: exactlyonce.ID{Sequence: 5}, Fingerprint: c.fingerprint}
			got, found, err := c.found.Find(&req)
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.want, found)
			if c.want {
				require.Equal(t, answer, got)
			} else {
				require.Nil(t, got)
			}
		})
	}
}
