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
	Reason string // "" if the failure has no reason
	Error  string // the common part of the error texts: see [Alike]
}

// Group counts failures with the same key.
type Group struct {
	Key
	Count       int
	First, Last time.Time
	Example     string // identifies the last failure
	ExampleText string // error text of the last failure
}

// Groups counts similar failures in a bounded number of groups. Make it with [NewGroups].
// It is not safe for concurrent use.
type Groups struct {
	most  int
	byKey map[Key]*Group
	rest  Group // failures without a group
}

// NewGroups returns an empty Groups with at most the given number of groups, and a rest.
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
	if !at.Before(group.Last) {
		group.Example, group.ExampleText = example, text
	}
	group.span(&Group{Count: 1, First: at, Last: at})
	return isNew
}

// AddRest counts a failure in the rest, if its key is unknown.
func (g *Groups) AddRest(at time.Time) { g.rest.span(&Group{Count: 1, First: at, Last: at}) }

// All returns the groups, the largest first, and the rest, whose Count may be 0.
func (g *Groups) All() (all []Group, rest Group) {
	for _, group := range g.byKey {
		all = append(all, *group)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(b.Count-a.Count, b.Last.Compare(a.Last), strings.Compare(a.Error, b.Error), strings.Compare(a.Example, b.Example))
	})
	return all, g.rest
}

// drop moves the half of the groups with the fewest failures to the rest.
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

// span adds the count and time span of other to g.
func (g *Group) span(other *Group) {
	if g.Count == 0 || other.First.Before(g.First) {
		g.First = other.First
	}
	if other.Last.After(g.Last) {
		g.Last = other.Last
	}
	g.Count += other.Count
}

// maxText limits the error text of a group, in bytes.
const maxText = 200

// Alike returns a text that is equal for similar failures: # replaces each word that
// contains a digit, such as a number, an address or an id, and each quoted word.
func Alike(text string) string {
	return AlikeBut(text, func(string) bool { return false })
}

// AlikeParts returns the text of [Alike], and the words that # replaces, each after the
// word before it, such as "account 13".
func AlikeParts(text string) (common string, replaced []string) {
	common = AlikeBut(text, func(word string) bool {
		replaced = append(replaced, word)
		return false
	})
	return common, replaced
}

// AlikeBut is [Alike] except for words for which keeps returns true: # does not replace
// them. keeps gets each word as [AlikeParts] returns it.
func AlikeBut(text string, keeps func(word string) bool) string {
	before := ""
	replaced := func(word, written string) string {
		part := strings.TrimSpace(before + " " + word)
		before = word
		if keeps(part) {
			return written
		}
		return "#"
	}
	var b strings.Builder
	for text != "" && b.Len() < maxText {
		word := wordOf(text)
		switch r, size := utf8.DecodeRuneInString(text); {
		case strings.ContainsFunc(word, unicode.IsDigit):
			b.WriteString(replaced(word, word))
			text = text[len(word):]
		case word != "":
			b.WriteString(word)
			before = word
			text = text[len(word):]
		case (r == '"' || r == '\'' || r == '`') && quotedWord(text) > 0:
			quoted := text[:quotedWord(text)]
			b.WriteString(replaced(quoted[1:len(quoted)-1], quoted))
			text = text[len(quoted):]
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

// wordOf returns the word at the start of text, or "". A single sign between letters or
// digits belongs to the word.
func wordOf(text string) string {
	end := 0
	for i, r := range text {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r):
			end = i + utf8.RuneLen(r)
		case !strings.ContainsRune("-_.:/@+", r) || end < i: // another character, or two signs in a row
			return text[:end]
		}
	}
	return text[:end]
}

// quotedWord returns the length of the quoted word at the start of text, including the
// quotes. It returns 0 if the quotes are empty, contain a space or more than 100 bytes,
// or do not close.
func quotedWord(text string) int {
	end := strings.IndexByte(text[1:], text[0])
	if end <= 0 || end > 100 || strings.ContainsFunc(text[1:1+end], unicode.IsSpace) {
		return 0
	}
	return end + 2
}
