package message

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	headerID             = "Weir-Id"
	headerPut            = "Weir-Put"
	headerKey            = "Weir-Key"
	headerSource         = "Weir-Origin-Source"
	headerPartition      = "Weir-Origin-Partition"
	headerPosition       = "Weir-Origin-Position"
	headerVisit          = "Weir-Visit"
	headerAttempts       = "Weir-Attempts"
	headerFirstFailure   = "Weir-First-Failure"
	headerLastFailure    = "Weir-Last-Failure"
	headerDue            = "Weir-Due"
	headerDeadline       = "Weir-Deadline"
	headerLastError      = "Weir-Last-Error"
	headerReasons        = "Weir-Reasons"
	headerTimeline       = "Weir-Way"
	headerUnsafeToRepeat = "Weir-Outcome-Unknown"
	headerRequest        = "Weir-Request"
	headerRemembered     = "Weir-Remembered"
	headerProvider       = "Weir-Provider"
	headerOutage         = "Weir-Outage"
	headerMerges         = "Weir-Merges"
	headerMergeJob       = "Weir-Merge-Job"
)

// ours has the lower-case names of the headers that this version writes. Other reserved
// names are of later versions: their headers are passed on (law W4). A later version adds
// fields of a message only as headers, here and in JSON, since every engine keeps
// headers.
var ours = func() map[string]bool {
	var m Meta
	names := map[string]bool{
		strings.ToLower(headerReasons): true, strings.ToLower(headerTimeline): true, strings.ToLower(headerUnsafeToRepeat): true,
	}
	for _, f := range m.texts() {
		names[strings.ToLower(f.name)] = true
	}
	for _, f := range m.counts() {
		names[strings.ToLower(f.name)] = true
	}
	for _, f := range m.instants() {
		names[strings.ToLower(f.name)] = true
	}
	return names
}()

// text is a header with a text of at most limit bytes.
type text struct {
	name  string
	value *string
	limit int
}

// The functions texts, counts and instants return the fields of a Meta that are headers,
// in arrays to save allocations.

func (m *Meta) texts() [10]text {
	return [...]text{
		{headerID, &m.ID, maxName},
		{headerPut, &m.Put, maxName},
		{headerKey, &m.Key, maxName},
		{headerSource, &m.Origin.Source, maxName},
		{headerPartition, &m.Origin.Partition, maxName},
		{headerPosition, &m.Origin.Position, maxName},
		{headerLastError, &m.LastError, maxError},
		{headerRequest, &m.Request, maxName},
		{headerProvider, &m.Provider, maxName},
		{headerOutage, &m.Outage, maxName},
	}
}

type count struct {
	name  string
	value *int
}

func (m *Meta) counts() [4]count {
	return [...]count{{headerVisit, &m.Visit}, {headerAttempts, &m.Attempts}, {headerMerges, &m.Merges}, {headerMergeJob, &m.MergeJob}}
}

type instant struct {
	name  string
	value *time.Time
}

func (m *Meta) instants() [5]instant {
	return [...]instant{
		{headerFirstFailure, &m.FirstFailure},
		{headerLastFailure, &m.LastFailure},
		{headerDue, &m.Due},
		{headerDeadline, &m.Deadline},
		{headerRemembered, &m.Remembered},
	}
}

// ToHeaders returns m as headers of a message in another system: the user's headers
// unchanged, and these, if they are not zero:
//
//	Weir-Id                orders/0/17
//	Weir-Put               orders//5
//	Weir-Key               customer-5
//	Weir-Origin-Source     orders
//	Weir-Origin-Partition  0
//	Weir-Origin-Position   17
//	Weir-Visit             2
//	Weir-Attempts          4
//	Weir-First-Failure     2026-11-23T09:00:00Z
//	Weir-Last-Failure      2026-11-23T09:00:01.000000001Z
//	Weir-Due               2026-11-23T09:01:00Z
//	Weir-Deadline          2026-11-23T10:00:00Z
//	Weir-Last-Error        503 Service Unavailable
//	Weir-Reasons           unavailable,timeout
//	Weir-Way               [{"visit":2,"attempt":4,"begun":"2026-11-23T09:00:01Z","took":1000000,"error":"503 Service Unavailable"}]
//	Weir-Outcome-Unknown   true
//	Weir-Request           "0af7651916cd43dd8448eb211c80319c";seq=1;attempt=4
//	Weir-Remembered        2026-11-24T09:00:00Z
//	Weir-Provider          acquirer-2
//	Weir-Outage            2;9m59s;payments
//	Weir-Merges            1
//	Weir-Merge-Job         17
//
// Weir-Outcome-Unknown is the header of UnsafeToRepeat, and Weir-Way of Timeline, for
// earlier versions.
//
// Texts are UTF-8, in which unprintable characters, percent signs, spaces at either end,
// and commas in a reason are %XX. Times are in UTC, to the nanosecond.
//
// The error names a field that is over its limit or cannot be written. The map belongs to
// the caller.
func (m Meta) ToHeaders() (map[string]string, error) {
	if err := m.fit(); err != nil {
		return nil, refused(m.ID, err)
	}
	h := maps.Clone(m.Headers)
	if h == nil {
		h = make(map[string]string)
	}
	for _, f := range m.texts() {
		if *f.value != "" {
			h[f.name] = escape(*f.value, "")
		}
	}
	for _, f := range m.counts() {
		if *f.value != 0 {
			h[f.name] = strconv.Itoa(*f.value)
		}
	}
	for _, f := range m.instants() {
		if !f.value.IsZero() {
			h[f.name] = f.value.Format(time.RFC3339Nano)
		}
	}
	if len(m.Reasons) > 0 {
		reasons := make([]string, len(m.Reasons))
		for i, r := range m.Reasons {
			reasons[i] = escape(r, ",")
		}
		h[headerReasons] = strings.Join(reasons, ",")
	}
	if len(m.Timeline) > 0 {
		h[headerTimeline] = escape(timelineText(m.Timeline), "")
	}
	if m.UnsafeToRepeat {
		h[headerUnsafeToRepeat] = "true"
	}
	return h, nil
}

// MetaFromHeaders returns the Meta that [Meta.ToHeaders] has written. The names of weir's
// headers are not case-sensitive. Other headers, of the user or a later weir, are in
// Meta.Headers.
//
// The error names each header of weir that is damaged, over its limit, or there twice.
// The Meta lacks this header, and has all others. It is also an error if the headers of
// the user or a later weir are over 1 MiB, or one lacks a name. Then Meta.Headers is nil.
func MetaFromHeaders(h map[string]string) (Meta, error) {
	m, err := metaFromHeaders(h)
	if err != nil {
		return m, fmt.Errorf("delivery: %w", err)
	}
	return m, nil
}

func metaFromHeaders(h map[string]string) (m Meta, err error) {
	r := headerReader{ours: make(map[string]string)}
	m.Headers = r.sort(h)
	for _, f := range m.texts() {
		if value, ok := r.take(f.name, f.limit); ok {
			text, err := unescape(value)
			if err == nil && len(text) > f.limit {
				err = fmt.Errorf("%d bytes, at most %d are allowed", len(text), f.limit)
			}
			if r.note(f.name, value, err) {
				*f.value = text
			}
		}
	}
	for _, f := range m.counts() {
		if value, ok := r.take(f.name, maxShort); ok {
			n, err := strconv.ParseUint(value, 10, 30) // so that it can grow, even on 32 bits
			if r.note(f.name, value, err) {
				*f.value = int(n)
			}
		}
	}
	for _, f := range m.instants() {
		if value, ok := r.take(f.name, maxShort); ok {
			*f.value = r.instant(f.name, value)
		}
	}
	m.Reasons = r.reasons()
	m.Timeline = r.timeline()
	if value, ok := r.take(headerUnsafeToRepeat, maxShort); ok {
		m.UnsafeToRepeat = value == "true"
		if !m.UnsafeToRepeat {
			r.note(headerUnsafeToRepeat, value, errors.New("want true"))
		}
	}
	return m, r.err
}

type headerReader struct {
	ours map[string]string // by lower-case name
	err  error
}

// sort takes weir's headers out of h and returns the others, or nil if they are over
// their limit or one lacks a name. Weir's headers are read all the same: a foreign header
// must not change the id of a message.
func (r *headerReader) sort(h map[string]string) (others map[string]string) {
	size := 0
	var twice []string // lower-case names
	_, lacksName := h[""]
	for name, value := range h {
		if !isOurs(name) {
			size += len(name) + len(value)
			continue
		}
		canonical := strings.ToLower(name)
		if _, there := r.ours[canonical]; there {
			twice = append(twice, canonical)
		}
		r.ours[canonical] = value
	}
	slices.Sort(twice)
	for _, name := range slices.Compact(twice) {
		r.err = errors.Join(r.err, fmt.Errorf("header %s is there twice", name))
		delete(r.ours, name)
	}
	if lacksName {
		r.err = errors.Join(r.err, errors.New("a header has no name"))
	}
	if size > maxHeaders {
		r.err = errors.Join(r.err, fmt.Errorf("the user's headers have %d bytes, at most %d are allowed", size, maxHeaders))
	}
	if lacksName || size > maxHeaders {
		return nil
	}
	for name, value := range h {
		if isOurs(name) {
			continue
		}
		if others == nil {
			others = make(map[string]string)
		}
		others[name] = value
	}
	return others
}

// take returns the value of a header. ok is false if it is missing, or longer than an
// escaped text of limit bytes can be.
func (r *headerReader) take(name string, limit int) (value string, ok bool) {
	canonical := strings.ToLower(name)
	value, ok = r.ours[canonical]
	if len(value) > maxEscaped*limit {
		r.err = errors.Join(r.err, fmt.Errorf("header %s has %d bytes", name, len(value)))
		return "", false
	}
	return value, ok
}

// note adds an error about a header to r.err. isSound is true if err is nil.
func (r *headerReader) note(name, value string, err error) (isSound bool) {
	if err != nil {
		r.err = errors.Join(r.err, fmt.Errorf("header %s: %q: %w", name, cut(value, maxShort), err))
	}
	return err == nil
}

func (r *headerReader) instant(name, value string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, value)
	at = at.UTC()
	if err == nil {
		err = checkYear(at)
	}
	if !r.note(name, value, err) || at.IsZero() {
		return time.Time{} // in UTC: == compares the zone
	}
	return at
}

func (r *headerReader) reasons() (reasons []string) {
	value, ok := r.take(headerReasons, maxReasons*(maxReason+1))
	if !ok || value == "" {
		return nil
	}
	for escaped := range strings.SplitSeq(value, ",") {
		reason, err := unescape(escaped)
		if err == nil && (len(reason) > maxReason || len(reasons) == maxReasons) {
			err = fmt.Errorf("more than %d reasons, or %d bytes in one", maxReasons, maxReason)
		}
		if err != nil {
			r.note(headerReasons, escaped, err)
			return nil
		}
		reasons = append(reasons, reason)
	}
	return reasons
}
