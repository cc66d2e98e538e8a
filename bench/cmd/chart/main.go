// Command chart draws bench/chart.svg and writes the tables of the documentation from the
// medians in bench/results.json and bench/flink/results.json. It draws
// docs/pictures/figures.svg from the README's table.
//
//	go run ./bench/cmd/chart          writes changed files; run it in the root of the repository
//	go run ./bench/cmd/chart -check   only fails if a file would change
//
// A table in a markdown file is between the lines <!-- table peers --> and <!-- end of
// table -->.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weirflow/weir/bench"
	"github.com/weirflow/weir/bench/flink"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

type section struct {
	name    string // in the markers of the table
	title   string
	against string // the meaning of ratio 1
	peers   bool   // the table names the best of several peers
	works   []bench.Work
	results bench.Results
}

func run(args []string) error {
	fs := flag.NewFlagSet("chart", flag.ContinueOnError)
	root := fs.String("root", ".", "the root `directory` of the repository")
	check := fs.Bool("check", false, "write nothing; fail if a file is not what it should be")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	peers, err := bench.ReadResults(filepath.Join(*root, "bench", "results.json"))
	if err != nil {
		return err
	}
	jobs, err := bench.ReadResults(filepath.Join(*root, "bench", "flink", "results.json"))
	if err != nil {
		return err
	}
	files, err := render(*root, []section{
		{"peers", "beside the best code in Go", "the best peer", true, bench.Published(), peers},
		{"flink", "beside a Flink job", "the job", false, flink.Published(), jobs},
	})
	if err != nil {
		return err
	}
	var stale []string
	for name, want := range files {
		got, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if string(got) == want {
			continue
		}
		stale = append(stale, name)
		if !*check {
			if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
				return err
			}
		}
	}
	if *check && len(stale) > 0 {
		return fmt.Errorf("not made of the results: %s (go run ./bench/cmd/chart)", strings.Join(stale, ", "))
	}
	return nil
}

func render(root string, sections []section) (map[string]string, error) {
	svg, err := draw(sections)
	if err != nil {
		return nil, err
	}
	files := map[string]string{filepath.Join(root, "bench", "chart.svg"): svg}
	shown := map[string]bool{}
	for _, pattern := range []string{"*.md", "bench/*.md", "bench/*/*.md", "docs/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			page := string(text)
			for _, s := range sections {
				page, err = insert(page, s, shown)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
			}
			files[name] = page
		}
	}
	if readme := files[filepath.Join(root, "README.md")]; strings.Contains(readme, figuresHead) {
		files[filepath.Join(root, "docs", "pictures", "figures.svg")], err = figures(readme)
		if err != nil {
			return nil, err
		}
	}
	for _, s := range sections {
		if !shown[s.name] {
			return nil, fmt.Errorf("no file has a line <!-- table %s -->", s.name)
		}
	}
	return files, nil
}

// insert replaces the table of s in a page, if the page has its markers.
func insert(page string, s section, shown map[string]bool) (string, error) {
	begin, end := "<!-- table "+s.name+" -->\n", "<!-- end of table -->\n"
	before, rest, found := strings.Cut(page, begin)
	if !found {
		return page, nil
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		return "", fmt.Errorf("no line %s after %s", strings.TrimSpace(end), strings.TrimSpace(begin))
	}
	shown[s.name] = true
	return before + begin + table(s) + end + after, nil
}
