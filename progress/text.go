package progress

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weirflow/weir/internal/guard"
)

// parts returns the parts of the line without the error, the most important first.
func (d *display) parts(now time.Duration, what string) []string {
	s := &d.state
	parts := []string{amount(*s, what)}
	if s.Failed > 0 {
		parts = append(parts, count(s.Failed)+" failed")
	}
	rate := d.rate(now)
	if rate > 0 {
		parts = append(parts, rateText(rate))
		if s.Total > s.Done {
			parts = append(parts, left(float64(s.Total-s.Done)/rate)+" left")
		}
	}
	if s.InFlight > 0 {
		parts = append(parts, count(s.InFlight)+" in flight")
	}
	if s.Retries > 0 {
		parts = append(parts, count(s.Retries)+" retries")
	}
	return parts
}

// leastError is the least room in which an error is shown, including the comma before it.
const leastError = 10

// bar returns the line for a terminal. A part appears completely or not at all, except an
// error, which may be cut, and which replaces the percentage if only one of them fits.
// The last column stays free, because some terminals wrap there.
func (d *display) bar(now time.Duration) string {
	room, text := d.Columns-1, ""
	for i, part := range d.parts(now, "") {
		if i > 0 {
			part = ", " + part
			if columns(text+part) > room {
				return cut(text, room)
			}
		}
		text += part
	}
	withPercent := text
	if s := &d.state; s.Total > 0 {
		withPercent = fmt.Sprintf("%3d %%  %s", 100*min(s.Done, s.Total)/s.Total, text)
	}
	if d.state.LastError != nil {
		trouble := ", " + errorText(d.state.LastError)
		ago := age(d.state.LastErrorAge)
		if ago != "" { // before the error, which may be cut
			trouble = "," + ago + ": " + errorText(d.state.LastError)
		}
		least := min(columns(trouble), leastError)
		for _, text := range []string{withPercent, text} {
			if columns(text)+least <= room {
				return cut(text+trouble, room)
			}
		}
	}
	if columns(withPercent) <= room {
		return withPercent
	}
	return cut(text, room)
}

func amount(s State, what string) string {
	text := count(s.Done)
	if s.Total > 0 {
		text += " of " + count(s.Total)
	}
	if what != "" {
		text += " " + what
	}
	return text
}

func rateText(rate float64) string {
	if rate < 10 {
		return strconv.FormatFloat(rate, 'f', 1, 64) + "/s"
	}
	return count(int64(math.Round(rate))) + "/s"
}

func left(seconds float64) string {
	const day = 24 * 60 * 60
	switch n := int64(math.Ceil(min(seconds, 1000*day))); {
	case n < 60:
		return fmt.Sprintf("%ds", n)
	case n < 60*60:
		return fmt.Sprintf("%dm%02ds", n/60, n%60)
	case n < day:
		return fmt.Sprintf("%dh%02dm", n/(60*60), n/60%60)
	default:
		return fmt.Sprintf("%dd%02dh", n/day, n/(60*60)%24)
	}
}

// age formats an error's age, such as " 12s ago", or returns "" for less than a second.
func age(d time.Duration) string {
	if d < time.Second {
		return ""
	}
	return " " + left(math.Floor(d.Seconds())) + " ago"
}

// errorText formats an error on one line, without the secrets of URLs.
func errorText(err error) string {
	return strings.Join(strings.FieldsFunc(guard.Text(err), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
}

func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// columns returns the number of columns of a text, at most. Characters of two columns
// start at U+1100.
func columns(text string) (n int) {
	for _, r := range text {
		n += width(r)
	}
	return n
}

func width(r rune) int {
	if r >= 0x1100 && r != '…' {
		return 2
	}
	return 1
}

func cut(text string, room int) string {
	if columns(text) <= room {
		return text
	}
	used := 1 // for the ellipsis
	for i, r := range text {
		used += width(r)
		if used > room {
			return text[:i] + "…"
		}
	}
	return text
}
