package delivery

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Names of the headers.
const (
	headerID             = "Weir-Id"
	headerKey            = "Weir-Key"
	headerSource         = "Weir-Origin-Source"
	headerPartition      = "Weir-Origin-Partition"
	headerPosition       = "Weir-Origin-Position"
	headerVisit          = "Weir-Visit"
	headerAttempts       = "Weir-Attempts"
	headerFirstFailure   = "Weir-First-Failure"
	headerLastFailure    = "Weir-Last-Failure"
	headerDue            = "Weir-Due"
	headerLastError      = "Weir-Last-Error"
	headerReasons        = "Weir-Reasons"
	headerOutcomeUnknown = "Weir-Outcome-Unknown"
	headerRequest        = "Weir-Request"
	headerRemembered     = "Weir-Remembered"
	headerProvider       = "Weir-Provider"
	headerMerges         = "Weir-Merges"
)

// text is a header with a text; long bounds its bytes.
type text struct {
	name  string
	value *string
	long  int
}

// The fields of a Meta that are headers. Arrays, so that nothing of this is allocated.

func (m *Meta) texts() [8]text {
	return [...]text{
		{headerID, &m.ID, maxName},
		{headerKey, &m.Key, maxName},
		{headerSource, &m.Origin.Source, maxName},
		{headerPartition, &m.Origin.Partition, maxName},
		{headerPosition, &m.Origin.Position, maxName},
		{headerLastError, &m.LastError, maxError},
		{headerRequest, &m.Request, maxName},
		{headerProvider, &m.Provider, maxName},
	}
}

type count struct {
	name  string
	value *int
}

func (m *Meta) counts() [3]count {
	return [...]count{{headerVisit, &m.Visit}, {headerAttempts, &m.Attempts}, {headerMerges, &m.Merges}}
}

type instant struct {
	name  string
	value *time.Time
}

func (m *Meta) instants() [4]instant {
	return [...]instant{{headerFirstFailure, &m.FirstFailure}, {headerLastFailure, &m.LastFailure}, {headerDue, &m.Due}, {headerRemembered, &m.Remembered}}
}

// ToHeaders returns m as headers of a message in a foreign system: the user's as they are, and these, without those that are
// zero:
//
//	Weir-Id                orders/0/17
//	Weir-Key               customer-5
//	Weir-Origin-Source     orders
//	Weir-Origin-Partition  0
//	Weir-Origin-Position   17
//	Weir-Visit             2
//	Weir-Attempts          4
//	Weir-First-Failure     2026-11-23T09:00:00Z
//	Weir-Last-Failure      2026-11-23T09:00:01.000000001Z
//	Weir-Due               2026-11-23T09:01:00Z
//	Weir-Last-Error        503 Service Unavailable
//	Weir-Reasons           unavailable,timeout
//	Weir-Outcome-Unknown   true
//	Weir-Request           "0af7651916cd43dd8448eb211c80319c";seq=1;attempt=4
//	Weir-Remembered        2026-11-24T09:00:00Z
//	Weir-Provider          acquirer-2
//	Weir-Merges            1
//
// Texts are UTF-8; in them, what is not printable, percent signs, spaces at either end, and commas in a reason are written as
// %XX. Times are in UTC, to the nanosecond.
//
// The error names what is over its limit or cannot be written. The map belongs to the caller.
func (m Meta) ToHeaders() (map[string]string, error) {
	m, err := m.fit()
	if err != nil {
		return nil, fmt.Errorf("delivery: meta of message %q: %w", cut(m.ID, maxName), err)
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
	if m.OutcomeUnknown {
		h[headerOutcomeUnknown] = "true"
	}
	return h, nil
}

// MetaFromHeaders returns what [Meta.ToHeaders] has written. The names of weir's headers are taken in any case; the others are
// the user's. The error names the header that is damaged, over its limit, not known, or there twice.
func MetaFromHeaders(h map[string]string) (Meta, error) {
	m, err := metaFromHeaders(h)
	if err != nil {
		return Meta{}, fmt.Errorf("delivery: %w", err)
	}
	return m, nil
}

func metaFromHeaders(h map[string]string) (m Meta, err error) {
	ours := make(map[string]string)
	size := 0
	for name, value := range h {
		if isReserved(name) {
			canonical := strings.ToLower(name)
			if _, twice := ours[canonical]; twice {
				return Meta{}, fmt.Errorf("header %s is there twice", canonical)
			}
			ours[canonical] = value
			continue
		}
		if size += len(name) + len(value); size > maxHeaders || name == "" {
			return Meta{}, fmt.Errorf("header %q: it has no name, or the headers have more than %d bytes", cut(name, maxName), maxHeaders)
		}
		if m.Headers == nil {
			m.Headers = make(map[string]string)
		}
		m.Headers[name] = value
	}
	take := func(name string, long int) (value string, ok bool) {
		canonical := strings.ToLower(name)
		value, ok = ours[canonical]
		delete(ours, canonical)
		if len(value) > maxEscaped*long {
			err = errors.Join(err, fmt.Errorf("header %s has %d bytes", name, len(value)))
			return "", false
		}
		return value, ok
	}
	damaged := func(name, value string, why error) {
		if why != nil {
			err = errors.Join(err, fmt.Errorf("header %s: %q: %w", name, cut(value, maxReason), why))
		}
	}
	for _, f := range m.texts() {
		if value, ok := take(f.name, f.long); ok {
			v, bad := unescape(value)
			if bad == nil && len(v) > f.long {
				bad = fmt.Errorf("%d bytes, at most %d are allowed", len(v), f.long)
			}
			damaged(f.name, value, bad)
			*f.value = v
		}
	}
	for _, f := range m.counts() {
		if value, ok := take(f.name, maxReason); ok {
			n, bad := strconv.ParseUint(value, 10, strconv.IntSize-1)
			damaged(f.name, value, bad)
			*f.value = int(n)
		}
	}
	for _, f := range m.instants() {
		if value, ok := take(f.name, maxReason); ok {
			at, bad := time.Parse(time.RFC3339Nano, value)
			if at = at.UTC(); bad == nil {
				bad = checkYear(at)
			}
			damaged(f.name, value, bad)
			if !at.IsZero() {
				*f.value = at
			}
		}
	}
	if value, ok := take(headerReasons, maxReasons*(maxReason+1)); ok && value != "" {
		for r := range strings.SplitSeq(value, ",") {
			v, bad := unescape(r)
			if bad == nil && (len(v) > maxReason || len(m.Reasons) == maxReasons) {
				bad = fmt.Errorf("more than %d reasons, or %d bytes in one", maxReasons, maxReason)
			}
			damaged(headerReasons, r, bad)
			if bad != nil {
				break
			}
			m.Reasons = append(m.Reasons, v)
		}
	}
	if value, ok := take(headerOutcomeUnknown, maxReason); ok {
		m.OutcomeUnknown = value == "true"
		if !m.OutcomeUnknown {
			damaged(headerOutcomeUnknown, value, errors.New("want true"))
		}
	}
	if len(ours) > 0 {
		name := slices.Min(slices.Collect(maps.Keys(ours)))
		err = errors.Join(err, fmt.Errorf("header %s is not known: was it written by a later version?", cut(name, maxReason)))
	}
	if err != nil {
		return Meta{}, err
	}
	return m, nil
}
