package storesql

import (
	"strconv"

	"github.com/weirflow/weir/internal/storearg"
)

// Limits of one statement of [store.ByKey.TakeByKey], as texts.
const (
	KeysLooked   = "1000" // keys, with due messages or not
	OldestLooked = "100"  // due messages, of which those without a key are taken
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

// Add adds a row: a key, and the state of the key of the row before. Rows come in key
// order. The last row has the key after the visited ones, or nil at the end.
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

// MarkLimited is the change of a message that is leased within [store.KeyRound].Limit, in
// an UPDATE that raises its fence. The mark holds for this lease only: the next one has
// another fence, also if a program of an earlier version takes the message.
const MarkLimited = `, limited = fence + 1`

// IsLimited is the condition that the message f has a lease with the mark. The index
// weir_messages_flight has only such messages.
const IsLimited = `f.limited = f.fence AND f.leased IS NOT NULL`

// InTurns returns the condition that the messages of a queue share the limit of
// [store.KeyRound] with the queue main, in the SQL of both databases: see
// [storearg.PartOf] and [storearg.Part.TakesTurns]. queue and main are expressions.
func InTurns(queue, main string) string {
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
