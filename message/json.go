package message

import (
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/internal/unknown"
)

// storedMeta is Meta as JSON. Identifiers may not be UTF-8, so they are escaped as in
// headers. Invalid characters of descriptions are replaced.
type storedMeta struct {
	ID             string            `json:"id,omitempty"`
	Key            string            `json:"key,omitempty"`
	Origin         *storedOrigin     `json:"origin,omitempty"`
	Visit          int               `json:"visit,omitempty"`
	Attempts       int               `json:"attempts,omitempty"`
	FirstFailure   time.Time         `json:"firstFailure,omitzero"`
	LastFailure    time.Time         `json:"lastFailure,omitzero"`
	Due            time.Time         `json:"due,omitzero"`
	LastError      string            `json:"lastError,omitempty"`
	Reasons        []string          `json:"reasons,omitempty"`
	UnsafeToRepeat bool              `json:"outcomeUnknown,omitempty"`
	Request        string            `json:"request,omitempty"`
	Remembered     time.Time         `json:"remembered,omitzero"`
	Provider       string            `json:"provider,omitempty"`
	Merges         int               `json:"merges,omitempty"`
	Headers        map[string]string `json:"headers,omitempty"`
}

// metaMembers has the members of storedMeta. A later version adds headers instead of
// members: see ours.
var metaMembers = unknown.Kind{Prefix: reserved + "Meta-", Known: []string{
	"id", "key", "origin", "visit", "attempts", "firstFailure", "lastFailure", "due", "lastError", "reasons", "outcomeUnknown",
	"request", "remembered", "provider", "merges", "headers",
}}

type storedOrigin struct {
	Source    string `json:"source,omitempty"`
	Partition string `json:"partition,omitempty"`
	Position  string `json:"position,omitempty"`
}

// MarshalJSON returns m as it is stored, without zero fields. The error names a field
// that is over its limit.
func (m Meta) MarshalJSON() ([]byte, error) {
	if err := m.fit(); err != nil {
		return nil, refused(m.ID, err)
	}
	s := storedMeta{
		ID: escape(m.ID, ""), Key: escape(m.Key, ""), Provider: escape(m.Provider, ""), Request: escape(m.Request, ""),
		Visit: m.Visit, Attempts: m.Attempts, Merges: m.Merges, UnsafeToRepeat: m.UnsafeToRepeat,
		FirstFailure: m.FirstFailure, LastFailure: m.LastFailure, Due: m.Due, Remembered: m.Remembered,
		LastError: readable(m.LastError),
	}
	if o := m.Origin; o != (Origin{}) {
		s.Origin = &storedOrigin{escape(o.Source, ""), escape(o.Partition, ""), escape(o.Position, "")}
	}
	for _, r := range m.Reasons {
		s.Reasons = append(s.Reasons, readable(r))
	}
	members, headers := metaMembers.Split(m.Headers)
	s.Headers = make(map[string]string, len(headers)+4) // omitted if it is empty
	for name, value := range headers {
		s.Headers[escape(name, "")] = escape(value, "")
	}
	// These fields are headers, since an earlier version passes headers on (law W4).
	if !m.Deadline.IsZero() {
		s.Headers[headerDeadline] = m.Deadline.Format(time.RFC3339Nano)
	}
	if m.Put != "" {
		s.Headers[headerPut] = storedHeader(m.Put)
	}
	if m.Outage != "" {
		s.Headers[headerOutage] = storedHeader(m.Outage)
	}
	if m.MergeJob != 0 {
		s.Headers[headerMergeJob] = strconv.Itoa(m.MergeJob)
	}
	if len(m.Timeline) > 0 {
		s.Headers[headerTimeline] = storedHeader(timelineText(m.Timeline))
	}
	b, err := json.Marshal(s)
	return metaMembers.Append(b, members), err
}

// storedHeader returns a field as a value of storedMeta.Headers. It is escaped twice:
// once as ToHeaders does, and once more like all values of the map.
func storedHeader(text string) string { return escape(escape(text, ""), "") }

// UnmarshalJSON reads the output of MarshalJSON. An unknown member becomes a header whose
// name begins with "Weir-Meta-", and MarshalJSON writes it as it was.
func (m *Meta) UnmarshalJSON(b []byte) error {
	read, err := metaFromJSON(b)
	if err != nil {
		return fmt.Errorf("delivery: stored meta: %w", err)
	}
	*m = read
	return nil
}

func metaFromJSON(b []byte) (m Meta, err error) {
	var s storedMeta
	later, err := metaMembers.Unmarshal(b, &s)
	if err != nil {
		return Meta{}, err
	}
	m = Meta{
		Visit: s.Visit, Attempts: s.Attempts, Merges: s.Merges, UnsafeToRepeat: s.UnsafeToRepeat,
		FirstFailure: s.FirstFailure, LastFailure: s.LastFailure, Due: s.Due, Remembered: s.Remembered,
		LastError: s.LastError, Reasons: s.Reasons,
	}
	if s.Origin == nil {
		s.Origin = &storedOrigin{}
	}
	for _, f := range []struct {
		from string
		to   *string
	}{
		{s.ID, &m.ID},
		{s.Key, &m.Key},
		{s.Request, &m.Request},
		{s.Provider, &m.Provider},
		{s.Origin.Source, &m.Origin.Source},
		{s.Origin.Partition, &m.Origin.Partition},
		{s.Origin.Position, &m.Origin.Position},
	} {
		*f.to, err = unescape(f.from)
		if err != nil {
			return Meta{}, err
		}
	}
	if len(s.Headers)+len(later) > 0 {
		m.Headers = make(map[string]string, len(s.Headers)+len(later))
		maps.Copy(m.Headers, later)
		for name, value := range s.Headers {
			name, err = unescape(name)
			if err != nil {
				return Meta{}, err
			}
			if _, twice := m.Headers[name]; twice {
				return Meta{}, fmt.Errorf("header %q is there twice", name)
			}
			m.Headers[name], err = unescape(value)
			if err != nil {
				return Meta{}, err
			}
		}
	}
	m, err = m.readOwnHeaders()
	if err != nil {
		return Meta{}, err
	}
	return m, m.fit()
}

// readOwnHeaders moves the headers that are fields of Meta to these fields. This version
// stores some fields as headers, and an earlier version passes on headers that it does
// not know. A header does not replace a field that m has already.
func (m Meta) readOwnHeaders() (Meta, error) {
	own := maps.Clone(m.Headers)
	maps.DeleteFunc(own, func(name, _ string) bool { return !isOurs(name) })
	if len(own) == 0 {
		return m, nil
	}
	maps.DeleteFunc(m.Headers, func(name, _ string) bool { return isOurs(name) })
	all, err := m.ToHeaders()
	if err != nil {
		return Meta{}, err
	}
	for name, value := range own {
		if _, there := all[name]; !there {
			all[name] = value
		}
	}
	return metaFromHeaders(all)
}

// readable returns s as UTF-8 without NUL, which databases refuse.
func readable(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
