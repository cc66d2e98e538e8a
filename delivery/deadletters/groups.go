package deadletters

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
)

// Group is dead letters that failed alike: for the same cause and reason, and with the same error but for the numbers and ids in it.
type Group struct {
	Cause  store.Cause `json:"cause"`
	Reason string      `json:"reason,omitempty"` // the last of a message; "": none was named
	// Error is what their last errors have in common: words with a digit, and quoted words, are #. At most 200 bytes.
	Error string `json:"error,omitempty"`

	Count       int       `json:"count"`
	First       time.Time `json:"first"`          // when the first of them arrived
	Last        time.Time `json:"last"`           // and the last
	Example     string    `json:"example"`        // the id of the last
	ExampleText string    `json:"exampleText"`    // its last error
	Rest        bool      `json:"rest,omitempty"` // these are the groups that had no room: their count and times are all that is known
}

// maxGroups bounds the memory of [Groups].
const maxGroups = 500

// Groups returns the dead letters of a queue that match in groups, the largest first. It reads all of them, page by page, and keeps 500
// groups at most: when there are more, the smallest go into one that has Rest, which is the last. What arrives after it began is left out.
func Groups(ctx context.Context, s Lister, queue string, f store.Filter) ([]Group, error) {
	g := grouping{byKey: map[groupKey]*Group{}}
	if err := each(ctx, s, queue, f, func(e store.Entry) error {
		g.add(e)
		return nil
	}); err != nil {
		return nil, err
	}
	all := make([]Group, 0, len(g.byKey)+1)
	for _, group := range g.byKey {
		all = append(all, *group)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(b.Count-a.Count, b.Last.Compare(a.Last), strings.Compare(a.Error, b.Error), strings.Compare(a.Example, b.Example))
	})
	if g.rest.Count > 0 {
		all = append(all, g.rest)
	}
	return all, nil
}

// groupKey is the fingerprint of a failure.
type groupKey struct {
	cause         store.Cause
	reason, error string
}

type grouping struct {
	byKey map[groupKey]*Group
	rest  Group
}

func (g *grouping) add(e store.Entry) {
	key := groupKey{cause: e.Cause, error: alike(e.Meta.LastError)}
	if n := len(e.Meta.Reasons); n > 0 {
		key.reason = e.Meta.Reasons[n-1]
	}
	group := g.byKey[key]
	if group == nil {
		if len(g.byKey) == maxGroups {
			g.drop()
		}
		group = &Group{Cause: key.cause, Reason: key.reason, Error: key.error}
		g.byKey[key] = group
	}
	group.span(Group{Count: 1, First: e.Arrived, Last: e.Arrived})
	group.Example, group.ExampleText = e.Meta.ID, e.Meta.LastError
}

// drop makes room: the half with the fewest messages goes into the rest.
func (g *grouping) drop() {
	keys := make([]groupKey, 0, len(g.byKey))
	for key := range g.byKey {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b groupKey) int {
		x, y := g.byKey[a], g.byKey[b]
		return cmp.Or(x.Count-y.Count, x.Last.Compare(y.Last), strings.Compare(x.Error, y.Error))
	})
	for _, key := range keys[:maxGroups/2] {
		g.rest.Rest = true
		g.rest.span(*g.byKey[key])
		delete(g.byKey, key)
	}
}

// span counts what is of another group in g.
func (g *Group) span(other Group) {
	if g.Count == 0 || other.First.Before(g.First) {
		g.First = other.First
	}
	if other.Last.After(g.Last) {
		g.Last = other.Last
	}
	g.Count += other.Count
}

// maxAlike bounds the text of a group.
const maxAlike = 200

// alike returns a text without what differs between failures of one kind: # takes the place of each word that has a digit, such as a
// number, an address or an id, and of a quoted word.
func alike(text string) string {
	var b strings.Builder
	for text != "" && b.Len() < maxAlike {
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
	if len(s) > maxAlike {
		s = s[:maxAlike]
	}
	return strings.ToValidUTF8(s, "")
}

// wordOf returns the word that a text begins with, or "". Signs between letters and digits belong to it.
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

// quotedWord returns the length of the word in quotes that a text begins with, quotes included; 0: it begins with none.
func quotedWord(text string) int {
	end := strings.IndexByte(text[1:], text[0])
	if end <= 0 || end > 100 || strings.ContainsFunc(text[1:1+end], unicode.IsSpace) {
		return 0
	}
	return end + 2
}
