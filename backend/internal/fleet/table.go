package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/unknown"
)

// Table is the record that a fleet shares. Each process writes all of it, so a table and
// its entries keep additions of later versions (law W4).
type Table struct {
	Members map[string]Member `json:"members"` // by process id
	Health  *HealthRecord     `json:"health,omitempty"`
	Pause   *PauseRecord      `json:"pause,omitempty"`

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

// HealthRecord is the service's health in the table. Its times count from the write,
// because clocks may differ.
type HealthRecord struct {
	Number  int64         `json:"number"` // grows with each change
	By      string        `json:"by"`     // the changing process
	State   State         `json:"state"`
	Why     string        `json:"why,omitempty"`
	Left    time.Duration `json:"left,omitempty"`    // until the end of the pause or ramp, in nanoseconds
	Over    time.Duration `json:"over,omitempty"`    // length of the whole ramp
	Target  float64       `json:"target,omitempty"`  // calls that the fleet starts in a second at the end of the ramp
	Outage  time.Duration `json:"outage,omitempty"`  // since the start of the outage
	Trouble time.Duration `json:"trouble,omitempty"` // since the start of the first of several successive outages

	later map[string]string // unknown JSON members
}

// PauseRecord is a pause in the table.
type PauseRecord struct {
	Number int64         `json:"number"` // grows with each change
	By     string        `json:"by"`     // the changing process
	Left   time.Duration `json:"left"`   // from the write of the table, in nanoseconds
	Why    string        `json:"why"`

	later map[string]string // unknown JSON members
}

// The known JSON members.
var (
	tableFields  = unknown.Kind{Known: []string{"members", "health", "pause"}}
	memberFields = unknown.Kind{Known: []string{"share", "need", "beat", "written", "joined", "ticket", "longest", "stopped", "probe", "pace"}}
	healthFields = unknown.Kind{Known: []string{"number", "by", "state", "why", "left", "over", "target", "outage", "trouble"}}
	pauseFields  = unknown.Kind{Known: []string{"number", "by", "left", "why"}}
)

// health returns a record's health that was read before now. In an unknown state no call
// starts until a probe has succeeded.
func (r *HealthRecord) health(now time.Duration) Health {
	h := Health{
		State: r.State, Why: r.Why, Until: now + bounded(r.Left), Over: bounded(r.Over), Target: min(max(0, r.Target), maxTarget),
		Outage: now - bounded(r.Outage), Trouble: now - bounded(r.Trouble),
	}
	if !r.State.isKnown() {
		h.State = Down
	}
	return h
}

func (s State) isKnown() bool { return s == Up || s == Down || s == Ramping || s == Held }

// record returns a health's record to write after now, or nil if it never changed.
func (h Health) record(now time.Duration, by mark, later map[string]string) *HealthRecord {
	switch {
	case by == (mark{}):
		return nil
	case h.State == Up:
		return &HealthRecord{Number: by.number, By: by.by, State: Up, later: later}
	}
	return &HealthRecord{
		Number: by.number, By: by.by, State: h.State, Why: h.Why, Left: max(0, h.Until-now), Over: h.Over, Target: h.Target,
		Outage: max(0, now-h.Outage), Trouble: max(0, now-h.Trouble), later: later,
	}
}

// record returns a pause's record to write after now, or nil if there was no pause.
func (p Pause) record(now time.Duration, by mark, later map[string]string) *PauseRecord {
	if by == (mark{}) {
		return nil
	}
	return &PauseRecord{Number: by.number, By: by.by, Left: max(0, p.Until-now), Why: p.Why, later: later}
}

// write returns an object as stored: its known fields, and later, its unknown members.
func write(kind *unknown.Kind, known any, later map[string]string) ([]byte, error) {
	text, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	return kind.Append(text, later), nil
}

// read reads the output of write into known, and returns the unknown members.
func read(what string, kind *unknown.Kind, text []byte, known any) (later map[string]string, err error) {
	later, err = kind.Unmarshal(text, known)
	if err != nil {
		return nil, fmt.Errorf("fleet: %s: %w", what, err)
	}
	return later, nil
}

// MarshalJSON returns the table as stored.
func (t Table) MarshalJSON() ([]byte, error) {
	type known Table
	return write(&tableFields, known(t), t.later)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (t *Table) UnmarshalJSON(text []byte) (err error) {
	type known Table
	*t = Table{}
	t.later, err = read("table", &tableFields, text, (*known)(t))
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
	*x = Member{}
	x.later, err = read("entry", &memberFields, text, (*known)(x))
	return err
}

// MarshalJSON returns the health as stored.
func (r HealthRecord) MarshalJSON() ([]byte, error) {
	type known HealthRecord
	return write(&healthFields, known(r), r.later)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (r *HealthRecord) UnmarshalJSON(text []byte) (err error) {
	type known HealthRecord
	*r = HealthRecord{}
	r.later, err = read("health", &healthFields, text, (*known)(r))
	return err
}

// MarshalJSON returns the pause as stored.
func (r PauseRecord) MarshalJSON() ([]byte, error) {
	type known PauseRecord
	return write(&pauseFields, known(r), r.later)
}

// UnmarshalJSON reads the output of MarshalJSON.
func (r *PauseRecord) UnmarshalJSON(text []byte) (err error) {
	type known PauseRecord
	*r = PauseRecord{}
	r.later, err = read("pause", &pauseFields, text, (*known)(r))
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
	slices.SortFunc(needy, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.Members[a].Need, t.Members[b].Need), cmp.Compare(a, b))
	})
	left, mine := limit, 0
	for i, other := range needy {
		equal := left / (len(needy) - i)
		part := min(t.Members[other].Need, equal)
		left -= part
		if other == id {
			mine = part
		}
	}
	return mine + (left+slices.Index(needy, id))/len(needy)
}
