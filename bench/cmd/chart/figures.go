package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// figuresHead starts the README's table that the picture shows. A test checks its
// numbers.
const figuresHead = "| | `Results` | as a flow of go-streams | beside |\n|---|---:|---:|---|\n"

var value = regexp.MustCompile(`^([0-9,]+) (ns|µs|bytes)(?:: (.*))?$`)

// figures draws the rows of the README's table as bars, relative to the highest value of
// the row: shorter is better.
func figures(readme string) (string, error) {
	_, table, _ := strings.Cut(readme, figuresHead)
	const left, most, step = 20, 470.0, 18
	var b strings.Builder
	y := 66
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			break
		}
		fmt.Fprintf(&b, "<text x=%q y=\"%d\" class=\"head\">%s</text>\n", strconv.Itoa(left), y, escaped(strings.TrimSpace(cells[0])))
		y += 8
		highest := 0.0
		values := make([][]string, 0, 3)
		for i, cell := range cells[1:] {
			match := value.FindStringSubmatch(strings.TrimSpace(cell))
			if match == nil {
				continue
			}
			if match[3] == "" {
				match[3] = [...]string{"weir, Results", "weir, as a flow"}[i]
			}
			n, err := strconv.ParseFloat(strings.ReplaceAll(match[1], ",", ""), 64)
			if err != nil {
				return "", err
			}
			highest = max(highest, n)
			values = append(values, append(match, strconv.FormatFloat(n, 'g', -1, 64)))
		}
		for i, v := range values {
			n, _ := strconv.ParseFloat(v[4], 64)
			class := "one"
			if i == len(values)-1 {
				class = "wait"
			}
			width := max(2, n/highest*most)
			fmt.Fprintf(&b, "<rect x=%q y=\"%d\" width=\"%.0f\" height=\"13\" rx=\"2\" class=%q/>\n", strconv.Itoa(left), y, width, class)
			fmt.Fprintf(&b, "<text x=\"%.0f\" y=\"%d\" class=\"dim\">%s %s: %s</text>\n", left+width+8, y+11, v[1], v[2], escaped(v[3]))
			y += step
		}
		y += 22
	}
	if b.Len() == 0 {
		return "", errors.New("the README's table of figures has no rows")
	}
	return fmt.Sprintf(figuresFrame, y, y, y, b.String()), nil
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // never fails on a Builder
	return b.String()
}

const figuresFrame = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 %d" width="860" height="%d" role="img" aria-labelledby="title">
<title id="title">Time and memory for an element: weir beside the fastest code of another kind, in six rows</title>
<style>
svg { --ground: #ffffff; --text: #1f2328; --dim: #59636e; --one: #0969da; --wait: #8c959f }
@media (prefers-color-scheme: dark) {
svg { --ground: #0d1117; --text: #f0f6fc; --dim: #9198a1; --one: #4493f8; --wait: #656c76 }
}
text { fill: var(--text); font-family: system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; font-size: 13px }
.dim { fill: var(--dim); font-size: 12px }
.head { font-weight: 600 }
.one { fill: var(--one) } .wait { fill: var(--wait) }
</style>
<rect width="860" height="%d" rx="6" fill="var(--ground)"/>
<text x="20" y="30" class="dim">Shorter is better. Blue: weir. Grey: the fastest code of another kind for the same work.</text>
%s</svg>
`
