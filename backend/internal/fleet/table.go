package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/weirflow/weir/internal/unknown"
)

// Table is the record that the processes of a fleet share. Each process writes all of it,
// so a table and its entries keep what a process of a later version has added (law W4).
type Table struct {
	Members map[string]Member `json:"members"` // by the id of the process
	Health  *HealthRecord     `json:"health,omitempty"`
	Pause   *PauseRecord      `json:"pause,omitempty"`

	later map[string]string // JSON members of a later version
}

// Member is the entry of a process.
type Member struct {
	Share   int           `json:"share"`             // permits that it may use or has claimed; at least its running calls
	Need    int           `json:"need"`              // permits that it could use; 0 if it is idle
	Beat    int64         `json:"beat"`              // grows with each write of the process
	Written int64         `json:"written"`           // version of the table that the process wrote last
	Joined  int64         `json:"joined"`            // that version when the process joined, or last missed a step
	Ticket  int64         `json:"ticket"`            // low tickets come first if there are fewer permits than members
	Longest time.Duration `json:"longest"`           // of its calls, in nanoseconds
	Stopped bool          `json:"stopped,omitempty"` // the process has found that the engine lost writes: no process may grow
	Probe   bool          `json:"probe,omitempty"`   // the process has claimed the right to probe the service
	Pace    float64       `json:"pace,omitempty"`    // calls that it starts in a second while the service is up

	later map[string]string // JSON members of a later version
}

// HealthRecord is the health of the service in the table. Its times count from the write
// of the table, because the clocks of the processes need not agree.
type HealthRecord struct {
	Number  int64         `json:"number"` // grows with each change
	By      string        `json:"by"`     // the process that has made the change
	State   State         `json:"state"`
	Why     string        `json:"why,omitempty"`
	Left    time.Duration `json:"left,omitempty"`    // until the end of the pause or of the ramp, in nanoseconds
	Over    time.Duration `json:"over,omitempty"`    // how long the whole ramp takes
	Target  float64       `json:"target,omitempty"`  // calls that the fleet starts in a second at the end of the ramp
	Outage  time.Duration `json:"outage,omitempty"`  // since the start of the outage
	Trouble time.Duration `json:"trouble,omitempty"` // since the start of the first of several successive outages

	later map[string]string // JSON members of a later version
}

// PauseRecord is a pause in the table.
type PauseRecord struct {
	Number int64         `json:"number"` // grows with each change
	By     string        `json:"by"`     // the process that has made the change
	Left   time.Duration `json:"left"`   // from the write of the table, in nanoseconds
	Why    string        `json:"why"`

	later map[string]string // JSON members of a later version
}

// The JSON members that this version knows.
var (
	tableFields  = unknown.Kind{Known: []string{"members", "health", "pause"}}
	memberFields = unknown.Kind{Known: []string{"share", "need", "beat", "written", "joined", "ticket", "longest", "stopped", "probe", "pace"}}
	healthFields = unknown.Kind{Known: []string{"number", "by", "state", "why", "left", "over", "target", "outage", "trouble"}}
	pauseFields  = unknown.Kind{Known: []string{"number", "by", "left", "why"}}
)

// health returns the health of a record that was read before now. In a state of a later
// version no call starts until a probe has succeeded.
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

// isKnown reports whether this version knows the state.
func (s State) isKnown() bool { return s == Up || s == Down || s == Ramping || s == Held }

// record returns the record of a health that is written after now, or nil if no process
// has changed the health.
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

// record returns the record of a pause that is written after now, or nil if no process
// has recorded a pause.
func (p Pause) record(now time.Duration, by mark, later map[string]string) *PauseRecord {
	if by == (mark{}) {
		return nil
	}
	return &PauseRecord{Number: by.number, By: by.by, Left: max(0, p.Until-now), Why: p.Why, later: later}
}

// write returns an object as it is stored: its known fields, and later, its members of a
// later version.
func write(kind *unknown.Kind, known any, later map[string]string) ([]byte, error) {
	text, err := json.Marshal(known)
	if err != nil {
		return nil, err
	}
	return kind.Append(text, later), nil
}

// read reads the output of write into known, and returns the members of a later version.
func read(what string, kind *unknown.Kind, text []byte, known any) (later map[string]string, err error) {
	later, err = kind.Unmarshal(text, known)
	if err != nil {
		return nil, fmt.Errorf("fleet: %s: %w", what, err)
	}
	return later, nil
}

// MarshalJSON returns the table as it is stored.
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

// MarshalJSON returns the entry as it is stored.
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

// MarshalJSON returns the health as it is stored.
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

// MarshalJSON returns the pause as it is stored.
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

// needy is a member that needs permits.
type needy struct {
	id     string
	need   int
	ticket int64
}

// target returns how many permits of limit a member should have. Members that need less
// than an equal part get what they need, and the others share the rest.
func (t Table) target(id string, limit int) int {
	mine := t.Members[id]
	if mine.Need <= 0 {
		return 0
	}
	var all []needy
	for other, x := range t.Members {
		if x.Need > 0 {
			all = append(all, needy{other, x.Need, x.Ticket})
		}
	}
	slices.SortFunc(all, func(a, b needy) int { return cmp.Or(cmp.Compare(a.need, b.need), cmp.Compare(a.id, b.id)) })
	left := limit
	for i, x := range all {
		short := all[i:] // members that have not got their part
		if x.need > left/len(short) {
			return part(short, id, left, mine.Need)
		}
		left -= x.need
	}
	return mine.Need + equalPart(all, id, left) // permits that are left over
}

// part divides left among the members that are short of permits, for the member id. A
// member that is not short gets its need.
func part(short []needy, id string, left, need int) int {
	isShort := slices.ContainsFunc(short, func(x needy) bool { return x.id == id })
	switch {
	case !isShort:
		return need
	case left >= len(short):
		return equalPart(short, id, left)
	}
	mine := short[slices.IndexFunc(short, func(x needy) bool { return x.id == id })]
	before := 0
	for _, x := range short {
		if cmp.Or(cmp.Compare(x.ticket, mine.ticket), cmp.Compare(x.id, id)) < 0 {
			before++
		}
	}
	if before < left {
		return 1
	}
	return 0
}

// equalPart returns the part of n permits of a member. The remainder goes to the first
// members in the order of their ids.
func equalPart(all []needy, id string, n int) int {
	before := 0
	for _, x := range all {
		if x.id < id {
			before++
		}
	}
	equal := n / len(all)
	if before < n%len(all) {
		equal++
	}
	return equal
}
