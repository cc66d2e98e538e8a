package storesql

import "github.com/weirflow/weir/internal/storearg"

// Limits of one statement of [store.ByKey.TakeByKey], as texts.
const (
	KeysLooked   = "1000" // keys, with due messages or not
	OldestLooked = "100"  // due messages, of which those without a key are taken
)

// DueKeys are the next keys of a round that have due messages.
type DueKeys struct {
	Keys []string
	Next string // of [store.ByKey.TakeByKey]

	before *string // key of the row before
	found  int     // of the same row
}

// Add adds a row: a key, and the number of keys with due messages before it. The key has
// due messages if the number of the next row is higher. Rows come in key order. The last
// row has the key after the visited ones, or nil at the end.
func (d *DueKeys) Add(key *string, found int) {
	if d.before != nil {
		if found > d.found {
			d.Keys = append(d.Keys, *d.before)
		}
		d.Next = storearg.Next(*d.before)
	}
	if key == nil {
		d.Next = ""
	}
	d.before, d.found = key, found
}

// EscapedAll returns names as in the column meta.
func EscapedAll(names []string) ([]string, error) {
	list := make([]string, len(names))
	for i, name := range names {
		var err error
		list[i], err = Escaped(name)
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}
