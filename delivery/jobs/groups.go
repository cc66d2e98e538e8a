package jobs

import (
	"context"
	"time"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/counting"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

// Group is a group of similar dead letters: they have the same cause, reason and error,
// apart from numbers and ids in its text.
type Group struct {
	Cause  store.Cause `json:"cause"`
	Reason string      `json:"reason,omitempty"` // the last reason of a message, or empty
	// Error is the common text of their last errors: words with a digit, and quoted
	// words, are #. At most 200 bytes.
	Error string `json:"error,omitempty"`

	Count       int       `json:"count"`
	First       time.Time `json:"first"`          // when the first of them arrived
	Last        time.Time `json:"last"`           // and the last
	Example     string    `json:"example"`        // the id of the last
	ExampleText string    `json:"exampleText"`    // its last error
	Rest        bool      `json:"rest,omitempty"` // the groups that did not fit: only their count and times are known
}

// maxGroups bounds the memory of [Groups].
const maxGroups = 500

// Groups returns the dead letters of a queue that match f in groups, the largest first.
// Groups reads all of them, page by page, and keeps 500 groups at most: when there are
// more, the smallest are merged into the last group, which has Rest. Messages that arrive
// after it began are left out.
func Groups(ctx context.Context, s store.Lister, queue string, f store.Filter) ([]Group, error) {
	g := counting.NewGroups(maxGroups)
	if err := storearg.Each(ctx, s, queue, f, func(e store.Entry) error {
		text := guard.WithoutSecrets(e.Meta.LastError) // another program may have stored it
		key := counting.Key{Kind: string(e.Cause), Error: counting.Alike(text)}
		if n := len(e.Meta.Reasons); n > 0 {
			key.Reason = e.Meta.Reasons[n-1]
		}
		g.Add(key, e.Arrived, e.Meta.ID, text)
		return nil
	}); err != nil {
		return nil, err
	}
	found, rest := g.All()
	all := make([]Group, 0, len(found)+1)
	for _, f := range found {
		all = append(all, Group{
			Cause: store.Cause(f.Kind), Reason: f.Reason, Error: f.Error, Count: f.Count, First: f.First, Last: f.Last,
			Example: f.Example, ExampleText: f.ExampleText,
		})
	}
	if rest.Count > 0 {
		all = append(all, Group{Count: rest.Count, First: rest.First, Last: rest.Last, Rest: true})
	}
	return all, nil
}
