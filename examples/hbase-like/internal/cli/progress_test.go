package cli

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// A line that wraps cannot be drawn over: a terminal that is too narrow for the bar gets lines.
func TestBarNeedsRoom(t *testing.T) {
	for style, want := range map[Style][2]Style{Auto: {Bar, Plain}, Bar: {Bar, Plain}, Plain: {Plain, Plain}} {
		if wide, narrow := style.on(true, barColumns), style.on(true, barColumns-1); wide != want[0] || narrow != want[1] {
			t.Errorf("style %v: %v, and %v where it is narrow", style, wide, narrow)
		}
	}
	if style := Auto.on(false, 120); style != Plain {
		t.Errorf("style %v for a file", style)
	}
	for _, columns := range []int{barColumns, barColumns + 1, 80, 120} {
		var out strings.Builder
		b := newBar(&out, 20_000, columns)
		b.show(Sample{Ended: 19_999, Waiting: 1234, Retries: 123_456, Trouble: "region server 3 went away"})
		b.finish(Sample{Ended: 20_000, Waiting: 1234, Retries: 123_456, Trouble: "region server 3 went away"})
		for line := range strings.FieldsFuncSeq(out.String(), func(r rune) bool { return r == '\r' || r == '\n' }) {
			if n := utf8.RuneCountInString(line); n > columns {
				t.Errorf("%d columns, %d runes: %q", columns, n, line)
			}
			if line = strings.TrimRight(line, " "); strings.Contains(line, "retr") && !strings.Contains(line, "retries") {
				t.Errorf("%d columns: cut inside of a word: %q", columns, line)
			}
		}
		if columns >= 80 && !strings.Contains(out.String(), "1,234 waiting, 123,456 retries") {
			t.Errorf("%d columns: %q", columns, out.String())
		}
	}
}
