package jobs

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/guard"
	"github.com/weirflow/weir/internal/storearg"
)

// Spec specifies a job. Do, Queue, By and Why are required, and To for a Merge.
type Spec struct {
	Do    store.Action `json:"do"`
	Queue string       `json:"queue"`
	To    string       `json:"to,omitempty"` // queue of merged messages

	Filter store.Filter `json:"filter,omitzero"` // default: all messages. Its texts are UTF-8
	Max    int          `json:"max,omitempty"`   // most messages; 0 means no limit
	Rate   float64      `json:"rate,omitempty"`  // messages a second; 0 means no limit

	// Of a Merge: an entry that was merged so often stays, since it may fail each time; 0
	// means [DefaultMaxMerges].
	MaxMerges int `json:"maxMerges,omitempty"`
	// Of a Merge: include entries in doubt ([store.RepeatInDoubt]). Their calls may have
	// taken effect, and would be repeated under another id. Entries that the server still
	// remembers (Meta.Remembered) are merged in any case, under the same id.
	UnsafeToRepeat bool `json:"outcomeUnknown,omitempty"`
	// Of a Merge: leave entries in place whose workers died or hung while they had them
	// ([store.RepeatLookFirst]). The console and the command set it by default.
	LeaveLapsed bool `json:"leaveLapsed,omitempty"`

	// Of a Purge: also remove messages in the layers of Queue, its queue of blocked
	// messages and its dead letters, and end their calls: see [Jobs.CancelKey]. Queue
	// must not be the name of such a queue, and Filter.Key is required.
	Family bool `json:"family,omitempty"`

	By  string `json:"by"`  // its author
	Why string `json:"why"` // its reason
}

// Progress counts the messages that a job has processed.
type Progress struct {
	Done    int `json:"done"`             // merged, removed, held, released or made due
	Looping int `json:"looping"`          // stayed: merged MaxMerges times
	Unsafe  int `json:"inDoubt"`          // stayed: calls in doubt (store.RepeatInDoubt)
	Lapsed  int `json:"lapsed,omitempty"` // stayed: a person should look first (LeaveLapsed)
	// Skipped messages were taken by a worker, are gone, could not be moved, were already
	// in the wanted state, or are pointers that cannot be merged
	// (store.Message.PointsTo).
	Skipped int `json:"skipped"`
}

// Job is a job as the engine keeps it. It is over when Ended is set.
type Job struct {
	ID int `json:"id"` // later jobs have higher IDs
	Spec
	Progress
	Total int `json:"total"` // messages that matched at the start
	// Uncounted reports that Total is not known yet ([Config].CountTime). The job counts
	// its messages when it runs. Total then includes messages that have arrived since the
	// start, which the job leaves alone.
	Uncounted bool      `json:"uncounted,omitempty"`
	Begun     time.Time `json:"begun"`
	Ended     time.Time `json:"ended,omitzero"`
	Paused    bool      `json:"paused,omitempty"`
	Cancelled bool      `json:"cancelled,omitempty"`
	Error     string    `json:"error,omitempty"`  // of the last step, which is tried again
	Runner    string    `json:"runner,omitempty"` // process of the last step
	// Sent are the ids of the messages that a merge with a Max of at most 10 has sent
	// back, to see how they end.
	Sent []string `json:"sent,omitempty"`

	// Its progress. A later version may know actions and filters that this version does
	// not.
	Format int       `json:"format"`
	In     string    `json:"in,omitempty"`     // with Family: the queue of the next step; "" means Queue
	Again  bool      `json:"again,omitempty"`  // with Family: second pass over In
	After  int64     `json:"after,omitempty"`  // position of the last step
	Until  int64     `json:"until,omitempty"`  // position at which the pass ends
	Next   time.Time `json:"next,omitzero"`    // earliest time of the next step, because of Rate
	Bounds *bounds   `json:"bounds,omitempty"` // with Family: the messages that were put before the start

	version    int64 // of the record
	unreadable bool  // Error has the reason
}

// Reached returns the progress of the job: it has handled n of the messages. Messages that
// stay are handled as well, except by a job with a Max, which ends when it has changed that
// many. If the job is Uncounted, of is not known yet.
func (j *Job) Reached() (n, of int) {
	if j.Max > 0 {
		of = min(j.Max, j.Total)
		return min(j.Done, of), of
	}
	return j.Done + j.Looping + j.Unsafe + j.Lapsed + j.Skipped, j.Total
}

// format is the latest known format.
const format = 4

// format returns the first format that has all of s (law W4). A version that knows only
// earlier formats leaves the job to others.
func (s *Spec) format() int {
	switch {
	case s.Family:
		return 4
	case s.LeaveLapsed:
		return 3
	case s.Do == store.Due:
		return 2
	default:
		return 1
	}
}

func (j *Job) queue() string {
	if j.In == "" {
		return j.Queue
	}
	return j.In
}

// State returns running, paused, cancelled, done, or unreadable. If it is unreadable,
// Error has the reason, and the job can only be cancelled.
func (j *Job) State() string {
	switch {
	case j.unreadable:
		return "unreadable"
	case j.Cancelled:
		return "cancelled"
	case !j.Ended.IsZero():
		return "done"
	case j.Paused:
		return "paused"
	}
	return "running"
}

func (j *Job) runs() bool {
	return j.Ended.IsZero() && !j.Paused && !j.unreadable && j.Format <= format
}

// actions are the values of Spec.Do.
var actions = []store.Action{store.Merge, store.Purge, store.Hold, store.Release, store.Due}

func (s *Spec) check() error {
	switch {
	case !slices.Contains(actions, s.Do):
		return fmt.Errorf("jobs: unknown action %q: Do must be one of %q", s.Do, actions)
	case s.By == "" || s.Why == "":
		return errors.New("jobs: who starts the job, and why? By and Why are required")
	case s.Do == store.Merge && s.To == s.Queue:
		return fmt.Errorf("jobs: Queue and To are both %q", s.To)
	case s.Do != store.Merge && (s.To != "" || s.MaxMerges != 0 || s.UnsafeToRepeat || s.LeaveLapsed):
		return fmt.Errorf("jobs: To, MaxMerges, UnsafeToRepeat and LeaveLapsed are for a merge, and not for a %s", s.Do)
	case s.Family && s.Do != store.Purge:
		return fmt.Errorf("jobs: Family is for a purge, and not for a %s", s.Do)
	case s.Family && s.Filter.Key == "":
		return errors.New("jobs: Family is for the messages of a key, and Filter.Key is empty: set it to the key")
	case s.Family && storearg.PartOf(s.Queue).Role != storearg.RoleMain:
		return fmt.Errorf("jobs: queue %q belongs to queue %q: name that queue, whose layers and dead letters are included",
			s.Queue, storearg.PartOf(s.Queue).Queue)
	case s.Max < 0 || s.MaxMerges < 0 || !(s.Rate >= 0):
		return fmt.Errorf("jobs: Max %d, MaxMerges %d and Rate %v must not be negative", s.Max, s.MaxMerges, s.Rate)
	}
	if err := storearg.Queue(s.Queue); err != nil {
		return err
	}
	if s.Do == store.Merge {
		if err := storearg.Queue(s.To); err != nil {
			return fmt.Errorf("jobs: To: %w", err)
		}
		from := storearg.PartOf(s.Queue)
		if from.Role == storearg.RoleLayer && from.Queue == s.To {
			return fmt.Errorf("jobs: %q is a layer of %q: its messages keep their visits and their order if they are made due", s.Queue, s.To)
		}
		if from.Role == storearg.RoleBlocked && from.Queue == s.To {
			return fmt.Errorf("jobs: messages of %q wait for earlier messages of their keys: a merge would break that order", s.Queue)
		}
	}
	f := &s.Filter
	for _, text := range append([]string{f.Key, f.Source, f.Provider, f.Reason, f.Error, string(f.Cause), s.By, s.Why}, f.IDs...) {
		if !utf8.ValidString(text) {
			return fmt.Errorf("jobs: %q is not UTF-8", text)
		}
	}
	return nil
}

// readJob reads a record. With an error, it returns the known fields.
func readJob(r store.Record) (j Job, err error) {
	err = json.Unmarshal([]byte(r.Value), &j)
	if err != nil {
		err = fmt.Errorf("jobs: job %q cannot be read: %w", r.Name, err)
		id, _ := strconv.Atoi(r.Name) // by lineName
		var later struct {
			Format int `json:"format"`
		}
		_ = json.Unmarshal([]byte(r.Value), &later) // or it is not known
		j = Job{ID: id, Format: later.Format, Error: guard.Text(err), unreadable: true}
	}
	j.version = r.Version
	return j, err
}
