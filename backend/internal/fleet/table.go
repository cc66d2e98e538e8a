package fleet

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/unknown"
)

// Table is the record that a fleet shares. Each process writes all of it, so a table and
// its entries keep additions of later versions (law W4).
type Table struct {
	Members map[string]Member `json:"members"` // by process id
	Health  *Record           `json:"health,omitempty"`
	Pause   *Record           `json:"pause,omitempty"` // only the fields from Number to Left, without State

	later map[string]string // unknown JSON members
}

// Member is a process's entry.
type Member struct {
	Share   int           `json:"share"`             // permits that it may use or has claimed; at least its running calls
	Need    int           `json:"need"`              // usable permits; 0 if idle
	Beat    int64         `json:"beat"`              // grows with each write
	Written int64         `json:"written"`           // version of the table that the process last wrote
	Joined  int64         `json:"joined"`            // that version when it joined, or last missed a step
	Ticket  int64         `json:"ticket"`            // low tickets come first if there are fewer permits than members
	Longest time.Duration `json:"longest"`           // of its calls, in nanoseconds
	Stopped bool          `json:"stopped,omitempty"` // it has found that the engine lost writes: no process may grow
	Probe   bool          `json:"probe,omitempty"`   // it has claimed the right to probe
	Pace    float64       `json:"pace,omitempty"`    // calls started in a second while the service is up

	later map[string]string // unknown JSON members
}

// Record is the service's health in the table, or a pause. Its times count from the
// write, because clocks may differ.
type Record struct {
	Number  int64         `json:"number"` // grows with each change
	By      string        `json:"by"`     // the changing process
	State   State         `json:"state,omitempty"`
	Why     string        `json:"why,omitempty"`
	Left    time.Duration `json:"left,omitempty"`    // until the end of the pause or ramp, in nanoseconds
	Over    time.Duration `json:"over,omitempty"`    // length of the whole ramp
	Target  float64       `json:"target,omitempty"`  // calls that the fleet starts in a second at the end of the ramp
	Outage  time.Duration `json:"outage,omitempty"`  // since the start of the outage
	Trouble time.Duration `json:"trouble,omitempty"` // since the start of the first of several successive outages

	later map[string]string // unknown JSON members
}

// The known JSON members.
var (
	tableFields  = unknown.Kind{Known: []string{"members", "health", "pause"}}
	memberFields = unknown.Kind{Known: []string{"share", "need", "beat", "written", "joined", "ticket", "longest", "stopped", "probe", "pace"}}
	recordFields = unknown.Kind{Known: []string{"number", "by", "state", "why", "left", "over", "target", "outage", "trouble"}}
)

// write returns an object as stored: its known fields, and later, its unknown members.
func write(kind *unknown.Kind, known any, later map[string]string) ([]byte, error) {
	text, err := json.Marshal(known)
	return kind.Append(text, later), err
}

// MarshalJSON returns the table as stored.
func (t Table) MarshalJSON() ([]byte, error) {
	type known Table
	return write(&tableFields, known(t), t.later)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (t *Table) UnmarshalJSON(text []byte) (err error) {
	type known Table
	t.later, err = tableFields.Unmarshal(text, (*known)(t))
	return err
}

// MarshalJSON returns the entry as stored.
func (x Member) MarshalJSON() ([]byte, error) {
	type known Member
	return write(&memberFields, known(x), x.later)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (x *Member) UnmarshalJSON(text []byte) (err error) {
	type known Member
	x.later, err = memberFields.Unmarshal(text, (*known)(x))
	return err
}

// MarshalJSON returns the record as stored.
func (r Record) MarshalJSON() ([]byte, error) {
	type known Record
	return write(&recordFields, known(r), r.later)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (r *Record) UnmarshalJSON(text []byte) (err error) {
	type known Record
	r.later, err = recordFields.Unmarshal(text, (*known)(r))
	return err
}

// target returns how many of limit permits a member should have. Members that need less
// than an equal part get their need, and the others share the rest. Surplus permits are
// divided, too. If there are fewer permits than members with a need, the members with the
// lowest tickets get one each.
func (t Table) target(id string, limit int) int {
	if t.Members[id].Need <= 0 {
		return 0
	}
	needy := slices.DeleteFunc(slices.Collect(maps.Keys(t.Members)), func(id string) bool { return t.Members[id].Need <= 0 })
	if limit < len(needy) {
		slices.SortFunc(needy, func(a, b string) int {
			return cmp.Or(cmp.Compare(t.Members[a].Ticket, t.Members[b].Ticket), cmp.Compare(a, b))
		})
		return min(1, max(0, limit-slices.Index(needy, id)))
	}
	slices.SortFunc(needy, func(a, b string) int { return cmp.Compare(t.Members[a].Need, t.Members[b].Need) })
	left := limit
	short := needy // members without their part
	for len(short) > 0 && t.Members[short[0]].Need <= left/len(short) {
		left -= t.Members[short[0]].Need
		short = short[1:]
	}
	switch {
	case len(short) == 0:
		return t.Members[id].Need + equalPart(needy, id, left)
	case slices.Contains(short, id):
		return equalPart(short, id, left)
	}
	return t.Members[id].Need
}

// equalPart returns a member's part of n permits. The remainder goes to the first members
// by id. By need, a permit would move with each change of a need, and be unused meanwhile.
func equalPart(members []string, id string, n int) int {
	after := 0
	for _, other := range members {
		if other > id {
			after++
		}
	}
	return (n + after) / len(members)
}
