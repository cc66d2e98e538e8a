package counting

import (
	"cmp"
	"slices"
	"strings"
)

// Frequent counts the most frequent of many texts in bounded memory: it is the algorithm
// of Misra and Gries ("Finding repeated elements", 1982). Make it with [NewFrequent]. It
// is not safe for concurrent use.
type Frequent struct {
	most    int
	counts  map[string]int
	isExact bool // no count was reduced
}

// TextCount is how often a text occurred.
type TextCount struct {
	Text  string
	Count int // it may be too low if there are many texts, and is never too high
}

// NewFrequent returns a Frequent that keeps at most the given number of texts. Counts are
// exact as long as there are no more texts. A text is kept if its count is more than
// total/(most+1).
func NewFrequent(most int) *Frequent {
	return &Frequent{most: most, counts: map[string]int{}, isExact: true}
}

// Add counts a text.
func (f *Frequent) Add(text string) {
	_, isKept := f.counts[text]
	if isKept || len(f.counts) < f.most {
		f.counts[text]++
		return
	}
	f.isExact = false
	for other, n := range f.counts {
		if n == 1 {
			delete(f.counts, other)
		} else {
			f.counts[other] = n - 1
		}
	}
}

// Top returns up to n texts with at least the given count, the most frequent first.
func (f *Frequent) Top(n, least int) []TextCount {
	var all []TextCount
	for text, count := range f.counts {
		if count >= least {
			all = append(all, TextCount{text, count})
		}
	}
	slices.SortFunc(all, func(a, b TextCount) int {
		return cmp.Or(b.Count-a.Count, strings.Compare(a.Text, b.Text))
	})
	return all[:min(n, len(all))]
}

// IsExact reports whether all counts are exact.
func (f *Frequent) IsExact() bool { return f.isExact }
