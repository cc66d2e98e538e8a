package jobs

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
)

// Group is a group of similar dead letters: they have the same cause, reason and error,
// apart from numbers and ids in its text.
type Group struct {
	Cause  store.Cause `json:"cause"`
	Reason string      `json:"reason,omitempty"` // last reason of a message, or empty
	// Error is the common text of their last errors, at most 200 bytes: words with a
	// digit, and quoted words, are #.
	Error string `json:"error,omitempty"`

	Count       int       `json:"count"`
	First       time.Time `json:"first"`          // arrival of the first
	Last        time.Time `json:"last"`           // and the last
	Example     string    `json:"example"`        // the id of the last
	ExampleText string    `json:"exampleText"`    // its last error
	Rest        bool      `json:"rest,omitempty"` // the groups that did not fit: only their count and times are known

	// Keys, Providers and Replaced are up to three values that at least a tenth of the
	// messages have, the most frequent first: their keys, their providers, and the words
	// that # replaces in Error, each with the word before it, such as "account 13".
	Keys      []Frequency `json:"keys,omitempty"`
	Providers []Frequency `json:"providers,omitempty"`
	Replaced  []Frequency `json:"replaced,omitempty"`
	// Arrivals is when the messages arrived.
	Arrivals Histogram `json:"arrivals,omitzero"`
}

// Frequency is how many messages of a group have a value.
type Frequency struct {
	Text    string `json:"text"` // at most 100 bytes of it
	Count   int    `json:"count"`
	AtLeast bool   `json:"atLeast,omitempty"` // more than 32 values: Count may be too low by a 33rd of the messages
}

const (
	maxGroups    = 500 // bounds the memory of a GroupCount
	maxValues    = 32  // of a kind that are counted in each group
	maxReplaced  = 4   // words of an error whose values are counted
	shownValues  = 3
	longestValue = 100 // bytes of a value
)

// Groups returns the dead letters of a queue that match f in groups, the largest first.
// It reads all of them, page by page. The smallest beyond 500 groups are merged into the
// last group, which has Rest. Messages that arrive after it began are left out.
// [CountGroups] does the same in steps.
func Groups(ctx context.Context, s store.Lister, queue string, f store.Filter) ([]Group, error) {
	c := CountGroups(s, queue, f)
	for {
		isDone, err := c.Step(ctx)
		if err != nil {
			return nil, err
		}
		if isDone {
			return c.Groups(), nil
		}
	}
}

type details struct {
	keys, providers *counting.Frequent
	replaced        []*counting.Frequent // by the number of the # in the error
	arrivals        Histogram
}

func newDetails() *details {
	return &details{keys: counting.NewFrequent(maxValues), providers: counting.NewFrequent(maxValues)}
}

func (d *details) add(e *store.Entry, replaced []string) {
	if e.Meta.Key != "" {
		d.keys.Add(valueOf(e.Meta.Key))
	}
	if e.Meta.Provider != "" {
		d.providers.Add(valueOf(e.Meta.Provider))
	}
	for i, text := range replaced[:min(len(replaced), maxReplaced)] {
		if i == len(d.replaced) {
			d.replaced = append(d.replaced, counting.NewFrequent(maxValues))
		}
		d.replaced[i].Add(valueOf(text))
	}
	d.arrivals.add(e.Arrived)
}

func frequencies(least int, counted ...*counting.Frequent) (list []Frequency) {
	for _, f := range counted {
		for _, top := range f.Top(shownValues, least) {
			list = append(list, Frequency{Text: top.Text, Count: top.Count, AtLeast: !f.IsExact()})
		}
	}
	slices.SortStableFunc(list, func(a, b Frequency) int { return b.Count - a.Count })
	return list[:min(len(list), shownValues)]
}

// valueOf returns a copy of the beginning of a value.
func valueOf(text string) string {
	text = text[:min(len(text), longestValue)]
	return strings.Clone(strings.ToValidUTF8(text, "\uFFFD"))
}

func (d *details) into(g *Group) {
	least := max(1, (g.Count+9)/10)
	g.Keys = frequencies(least, d.keys)
	g.Providers = frequencies(least, d.providers)
	g.Replaced = frequencies(least, d.replaced...)
	g.Arrivals = d.arrivals.clone()
}
