package counting

import (
	"cmp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Key is the fingerprint of a failure.
type Key struct {
	Kind   string // the cause of a dead letter, or the type of an error
	Reason string // "": none was named
	Error  string // what the errors have in common: see [Alike]
}

// Group is failures with the same key.
type Group struct {
	Key
	Count       int
	First, Last time.Time
	Example     string // which one the last was
	ExampleText string // its error
}

// Groups are failures that are alike, in a bounded number of groups. The zero value is
// not ready: see [NewGroups]. Owned by its user.
type Groups struct {
	most  int
	byKey map[Key]*Group
	rest  Group // those that had no room
}

// NewGroups returns groups: at most so many, and the rest.
func NewGroups(most int) *Groups { return &Groups{most: most, byKey: map[Key]*Group{}} }

// Add counts a failure, and reports whether it is the first of its group.
func (g *Groups) Add(key Key, at time.Time, example, text string) (isNew bool) {
	group := g.byKey[key]
	if group == nil {
		if len(g.byKey) == g.most {
			g.drop()
		}
		group, isNew = &Group{Key: key}, true
		g.byKey[key] = group
	}
	group.span(&Group{Count: 1, First: at, Last: at})
	group.Example, group.ExampleText = example, text
	return isNew
}

// AddRest counts a failure of which nothing is known.
func (g *Groups) AddRest(at time.Time) { g.rest.span(&Group{Count: 1, First: at, Last: at}) }

// All returns the groups, the largest first, and what had no room: its Count is 0 if
// there is nothing.
func (g *Groups) All() (all []Group, rest Group) {
	for _, group := range g.byKey {
		all = append(all, *group)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(b.Count-a.Count, b.Last.Compare(a.Last), strings.Compare(a.Error, b.Error), strings.Compare(a.Example, b.Example))
	})
	return all, g.rest
}

// drop makes room: the half with the fewest failures goes into the rest.
func (g *Groups) drop() {
	keys := make([]Key, 0, len(g.byKey))
	for key := range g.byKey {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b Key) int {
		x, y := g.byKey[a], g.byKey[b]
		return cmp.Or(x.Count-y.Count, x.Last.Compare(y.Last), strings.Compare(x.Error, y.Error))
	})
	for _, key := range keys[:g.most/2] {
		g.rest.span(g.byKey[key])
		delete(g.byKey, key)
	}
}

// span counts what is of another group in g.
func (g *Group) span(other *Group) {
	if g.Count == 0 || other.First.Before(g.First) {
		g.First = other.First
	}
	if other.Last.After(g.Last) {
		g.Last = other.Last
	}
	g.Count += other.Count
}

// maxText bounds the text of a group, in bytes.
const maxText = 200

// Alike returns a text without what differs between failures of one kind: # takes the
// place of each word that has a digit, such as a number, an address or an id, and of a
// quoted word.
func Alike(text string) string {
	var b strings.Builder
	for text != "" && b.Len() < maxText {
		word := wordOf(text)
		switch r, size := utf8.DecodeRuneInString(text); {
		case strings.ContainsFunc(word, unicode.IsDigit):
			b.WriteByte('#')
			text = text[len(word):]
		case word != "":
			b.WriteString(word)
			text = text[len(word):]
		case (r == '"' || r == '\'' || r == '`') && quotedWord(text) > 0:
			b.WriteByte('#')
			text = text[quotedWord(text):]
		default:
			b.WriteString(text[:size])
			text = text[size:]
		}
	}
	s := b.String()
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}

// wordOf returns the word that a text begins with, or "". Signs between letters and
// digits belong to it.
func wordOf(text string) string {
	end := 0
	for i, r := range text {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			end = i + utf8.RuneLen(r)
		case !strings.ContainsRune("-_.:/@+", r) || end < i: // or two in a row
			return text[:end]
		}
	}
	return text[:end]
}

// quotedWord returns the length of the word in quotes that a text begins with, quotes
// included; 0: it begins with none.
func quotedWord(text string) int {
	end := strings.IndexByte(text[1:], text[0])
	if end <= 0 || end > 100 || strings.ContainsFunc(text[1:1+end], unicode.IsSpace) {
		return 0
	}
	return end + 2
}
