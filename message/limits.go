package message

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/weirflow/weir/internal/guard"
)

// Limits of the stored forms. Identifiers that are too long are refused. Descriptions are
// cut: LastError, Reasons and Timeline.
const (
	maxName    = 1 << 10 // bytes of id, put, key, request, provider, outage and each part of the origin
	maxError   = 4 << 10 // bytes of LastError
	maxReasons = 64
	maxReason  = 256 // bytes
	maxShort   = 256 // bytes of a number, a time or a flag, and of a value in an error
	maxHeaders = 1 << 20
	maxEscaped = 3 // times that escapes lengthen a text, at most
)

// reserved begins the names of weir's headers, in upper or lower case.
const reserved = "Weir-"

// fit cuts the descriptions in m to their limits, and brings its times and empty fields
// into the stored form. It returns an error for an identifier, a number, a time or
// headers over a limit.
func (m *Meta) fit() error {
	for _, f := range []struct{ name, value string }{
		{"ID", m.ID},
		{"Put", m.Put},
		{"Key", m.Key},
		{"Origin.Source", m.Origin.Source},
		{"Origin.Partition", m.Origin.Partition},
		{"Origin.Position", m.Origin.Position},
		{"Request", m.Request},
		{"Provider", m.Provider},
		{"Outage", m.Outage},
	} {
		if len(f.value) > maxName {
			return fmt.Errorf("%s has %d bytes, at most %d are allowed", f.name, len(f.value), maxName)
		}
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"Visit", m.Visit}, {"Attempts", m.Attempts}, {"Merges", m.Merges}, {"MergeJob", m.MergeJob}} {
		if f.value < 0 {
			return fmt.Errorf("%s is %d", f.name, f.value)
		}
	}
	for _, f := range []struct {
		name  string
		value *time.Time
	}{{"FirstFailure", &m.FirstFailure}, {"LastFailure", &m.LastFailure}, {"Due", &m.Due}, {"Deadline", &m.Deadline}, {"Remembered", &m.Remembered}} {
		if f.value.IsZero() {
			*f.value = time.Time{}
			continue
		}
		*f.value = f.value.UTC().Round(0)
		if err := checkYear(*f.value); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	size := 0
	for name, value := range m.Headers {
		if name == "" || isOurs(name) {
			return fmt.Errorf("a header of the user's cannot have the name %q", name)
		}
		size += len(name) + len(value)
	}
	if size > maxHeaders {
		return fmt.Errorf("the Headers have %d bytes, at most %d are allowed", size, maxHeaders)
	}
	if len(m.Headers) == 0 {
		m.Headers = nil
	}
	m.LastError = cut(m.LastError, maxError)
	m.Reasons = fitReasons(m.Reasons)
	m.Timeline = fitTimeline(m.Timeline)
	return nil
}

// fitReasons returns the last reasons, cut to their limit, without empty ones.
func fitReasons(reasons []string) []string {
	reasons = slices.DeleteFunc(slices.Clone(reasons), func(r string) bool { return r == "" })
	reasons = reasons[max(0, len(reasons)-maxReasons):]
	for i, r := range reasons {
		reasons[i] = cut(r, maxReason)
	}
	if len(reasons) == 0 {
		return nil
	}
	return reasons
}

func refused(id string, err error) error {
	return fmt.Errorf("message %q: %w: %w", guard.Shown(id), ErrRefused, err)
}

// checkYear returns an error for a time without a form in RFC 3339.
func checkYear(at time.Time) error {
	if y := at.Year(); y < 1 || y > 9999 {
		return fmt.Errorf("the year is %d", y)
	}
	return nil
}

// isOurs reports whether this version knows a header, whatever the case of its letters.
// Other reserved names belong to later versions: their headers are passed on like the
// user's (law W4).
func isOurs(name string) bool {
	return len(name) >= len(reserved) && strings.EqualFold(name[:len(reserved)], reserved) && ours[strings.ToLower(name)]
}

// cut returns at most limit bytes of s, cut between two characters.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for n := limit; n > limit-utf8.UTFMax; n-- {
		if utf8.RuneStart(s[n]) {
			return s[:n]
		}
	}
	return s[:limit]
}
