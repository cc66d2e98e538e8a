package counting_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/internal/counting"
)

func TestFrequent_FewTexts(t *testing.T) {
	f := counting.NewFrequent(3)
	for range 5 {
		f.Add("a")
	}
	for range 7 {
		f.Add("b")
	}
	f.Add("c")
	require.True(t, f.IsExact())
	require.Equal(t, []counting.TextCount{{"b", 7}, {"a", 5}}, f.Top(5, 2))
	require.Equal(t, []counting.TextCount{{"b", 7}}, f.Top(1, 0))
}

// A text that is frequent among an endless variety is kept, and its count is too low by a
// bounded number.
func TestFrequent_ManyTexts(t *testing.T) {
	f := counting.NewFrequent(9)
	for i := range 10_000 {
		f.Add(fmt.Sprint("once ", i))
		if i%4 == 0 {
			f.Add("often")
		}
	}
	require.False(t, f.IsExact())
	top := f.Top(1, 0)[0]
	require.Equal(t, "often", top.Text)
	require.LessOrEqual(t, top.Count, 2500)
	require.GreaterOrEqual(t, top.Count, 2500-12_500/10)
}

func TestAlikeParts(t *testing.T) {
	common, replaced := counting.AlikeParts(`account 13 of "XQQ": no answer of 10.0.0.1:80, 7`)
	require.Equal(t, "account # of #: no answer of #, #", common)
	require.Equal(t, counting.Alike(`account 13 of "XQQ": no answer of 10.0.0.1:80, 7`), common)
	require.Equal(t, []string{"account 13", "of XQQ", "of 10.0.0.1:80", "10.0.0.1:80 7"}, replaced)

	but := counting.AlikeBut(`account 13 of "XQQ": no answer of 10.0.0.1:80, 7`, func(word string) bool { return word == "account 13" || word == "of XQQ" })
	require.Equal(t, `account 13 of "XQQ": no answer of #, #`, but)
}
