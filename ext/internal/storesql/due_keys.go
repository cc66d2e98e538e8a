package storesql

import (
	"strconv"

	"github.com/weirflow/weir/internal/storearg"
)

// Limits of one statement of [store.ByKey.TakeByKey], as texts.
const (
	KeysLooked   = "1000" // keys that it visits, with due messages or not
	OldestLooked = "100"  // oldest due messages among which it looks for messages without a key
)

// The state of a key that a statement of TakeByKey has visited, as a text.
const (
	KeyIdle = "0" // it has no due messages, or is to be skipped
	KeyDue  = "1"
	KeyFull = "2" // it has due messages, and is at [store.KeyRound].Limit
)

// DueKeys are the next keys of a round that have due messages.
type DueKeys struct {
	Keys    []string
	Next    string // of [store.ByKey.TakeByKey]
	HasFull bool   // keys at their limit were left out

	before *string // key of the row before
}

// Add adds a row. Rows come in the order of keys. A row has a key, and the state of the
// key of the row before: a step of the statement only knows the state of the key that it
// leaves. So the key of the last row was not visited. It is nil if there are no more
// keys.
func (d *DueKeys) Add(key *string, before string) {
	if d.before != nil {
		if before == KeyDue {
			d.Keys = append(d.Keys, *d.before)
		}
		d.HasFull = d.HasFull || before == KeyFull
		d.Next = storearg.Next(*d.before)
	}
	if key == nil {
		d.Next = ""
	}
	d.before = key
}

// MarkLimited marks the lease of a message as granted within [store.KeyRound].Limit. It is
// an assignment for the UPDATE that leases the message, and raises its fence. The next
// lease has another fence, so the mark does not hold for it. A program of an earlier
// version raises the fence as well, and does not set the mark.
const MarkLimited = `, limited = fence + 1`

// IsLimited is the condition that the message f has a lease with the mark. The index
// weir_messages_flight has only such messages.
const IsLimited = `f.limited = f.fence AND f.leased IS NOT NULL`

// SharesLimit returns the condition that two queues share the limits of keys
// ([store.KeyRound].Limit). queue and main are SQL expressions of their names. The
// condition is true if queue is main, or is its layer or its blocked queue: see
// [storearg.PartOf] and [storearg.Part.SharesLimit]. Both databases accept it.
func SharesLimit(queue, main string) string {
	layers := storearg.LayersOf("")
	begin := "length(" + main + ") + " + strconv.Itoa(len(layers))
	number := "substr(" + queue + ", " + begin + " + 1)"
	return "(" + queue + " = " + main + " OR " + queue + " = " + main + " || '" + storearg.BlockedOf("") + "'" +
		" OR substr(" + queue + ", 1, " + begin + ") = " + main + " || '" + layers + "'" +
		" AND ltrim(" + number + ", '0123456789') = '' AND ltrim(" + number + ", '0') <> '')"
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
