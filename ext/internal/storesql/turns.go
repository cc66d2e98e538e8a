package storesql

import "github.com/weirflow/weir/internal/storearg"

// What [store.ByKey.TakeByKey] looks at in one statement, as texts.
const (
	KeysLooked   = "1000" // keys, whether they have messages that are due or not
	OldestLooked = "100"  // messages, for those without a key
)

// Turns are the keys whose turn it is.
type Turns struct {
	Keys []string // of which messages are due
	Next string   // of [store.ByKey.TakeByKey]

	last  *string
	found int
}

// Add adds a row of keys, in order: how many of those before it have messages that are due. The last row is behind those that were looked
// at; it has no key if none is left.
func (t *Turns) Add(key *string, found int) {
	if t.last != nil {
		if found > t.found {
			t.Keys = append(t.Keys, *t.last)
		}
		t.Next = storearg.Next(*t.last)
	}
	if key == nil {
		t.Next = ""
	}
	t.last, t.found = key, found
}

// EscapedAll returns names as the column meta has them.
func EscapedAll(names []string) ([]string, error) {
	list := make([]string, len(names))
	for i, name := range names {
		var err error
		if list[i], err = Escaped(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}
