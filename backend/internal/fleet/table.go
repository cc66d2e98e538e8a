package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Table is the record that the processes of a fleet share.
type Table struct {
	Members map[string]Member `json:"members"` // by the id of the process
}

// Member is the entry of a process.
type Member struct {
	Share   int           `json:"share"`             // permits that its calls may use; at least its running calls
	Need    int           `json:"need"`              // permits that it could use; 0 if it is idle
	Beat    int64         `json:"beat"`              // grows with each write of the process
	Longest time.Duration `json:"longest"`           // of its calls, in nanoseconds
	Stopped bool          `json:"stopped,omitempty"` // the process has found that the engine lost writes: no process may grow
}

// rotateEach is the number of writes for each process after which permits move on, if
// there are fewer permits than processes: some seconds.
const rotateEach = 4

// target returns how many permits of limit a member should have. version makes the
// members take turns if there are fewer permits than members.
func (t Table) target(id string, limit int, version int64) int {
	if t.Members[id].Need <= 0 {
		return 0
	}
	ids := slices.Sorted(maps.Keys(t.Members))
	ids = slices.DeleteFunc(ids, func(id string) bool { return t.Members[id].Need <= 0 })
	byNeed := slices.Clone(ids)
	slices.SortStableFunc(byNeed, func(a, b string) int { return cmp.Compare(t.Members[a].Need, t.Members[b].Need) })
	left := limit
	for i, other := range byNeed {
		short := len(byNeed) - i // members that have not got their part
		need := t.Members[other].Need
		if need > left/short {
			return part(byNeed[i:], ids, id, left, version, t.Members[id].Need)
		}
		left -= need
	}
	spare := left / len(ids)
	if slices.Index(ids, id) < left%len(ids) {
		spare++
	}
	return t.Members[id].Need + spare
}

// part divides left among the members that are short of permits, for the member id. A
// member that is not short gets its need.
func part(short, ids []string, id string, left int, version int64, need int) int {
	if !slices.Contains(short, id) {
		return need
	}
	n := len(short)
	ordered := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return !slices.Contains(short, id) })
	place := slices.Index(ordered, id)
	equal := left / n
	if equal == 0 { // members take turns
		place = (place + int(version/int64(rotateEach*n)%int64(n))) % n
	}
	if place < left%n {
		return equal + 1
	}
	return equal
}
