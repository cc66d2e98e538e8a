package store

import (
	"slices"
	"strings"
	"time"
)

// Filter chooses messages. All set fields must match; the zero value matches every
// message.
type Filter struct {
	IDs      []string  `json:"ids,omitempty"` // any of them
	Key      string    `json:"key,omitempty"`
	Source   string    `json:"source,omitempty"` // the origin's source
	Provider string    `json:"provider,omitempty"`
	Cause    Cause     `json:"cause,omitempty"`
	Reason   string    `json:"reason,omitempty"` // one of the reasons
	Error    string    `json:"error,omitempty"`  // a part of the last error
	Since    time.Time `json:"since,omitzero"`   // arrived then or later
	Before   time.Time `json:"before,omitzero"`  // arrived earlier
}

// Match reports whether an entry matches.
func (f *Filter) Match(e *Entry) bool {
	m := &e.Meta
	switch {
	case len(f.IDs) > 0 && !slices.Contains(f.IDs, m.ID),
		f.Key != "" && f.Key != m.Key,
		f.Source != "" && f.Source != m.Origin.Source,
		f.Provider != "" && f.Provider != m.Provider,
		f.Cause != "" && f.Cause != e.Cause,
		f.Reason != "" && !slices.Contains(m.Reasons, f.Reason),
		f.Error != "" && !strings.Contains(m.LastError, f.Error),
		!f.Since.IsZero() && e.Arrived.Before(f.Since),
		!f.Before.IsZero() && !e.Arrived.Before(f.Before):
		return false
	}
	return true
}
