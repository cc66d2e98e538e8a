// Command flink measures weir against Apache Flink and prints markdown tables with
// ratios. bench/flink/run.sh builds the Java code and starts it:
//
//	./bench/flink/run.sh                       everything: about fifteen minutes on two cores
//	./bench/flink/run.sh -w '^W1/' -rounds 3   one workload
//	./bench/flink/run.sh -short                only check that it works
//	./bench/flink/run.sh -list                 groups, rows, and their settings
//
// Progress goes to standard error.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/weirflow/weir/bench"
	"github.com/weirflow/weir/bench/flink"
)

func main() {
	if err := run(os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "flink:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	var c flink.Config
	fs := flag.NewFlagSet("flink", flag.ContinueOnError)
	fs.StringVar(&c.Java, "java", "java", "the `command` that starts Java, split at spaces; the class path comes from CLASSPATH")
	which := fs.String("w", ".", "groups to run, a regular `expression` on names such as W1/mode=ordered")
	rounds := fs.Int("rounds", 5, "rounds that count; W4 has at most two")
	fs.BoolVar(&c.Short, "short", false, "few elements, one round: does it work?")
	jsonFile := fs.String("json", "", "write all medians to this `file` too")
	list := fs.Bool("list", false, "list groups and rows")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if c.Short {
		*rounds = 1
	}
	pattern, err := regexp.Compile(*which)
	if err != nil {
		return err
	}
	var groups []*flink.Group
	for _, g := range flink.Groups(c) {
		if pattern.MatchString(g.Name()) {
			groups = append(groups, g)
		}
	}
	if len(groups) == 0 {
		return errors.New("nothing matches -w")
	}
	if *list {
		for _, g := range groups {
			fmt.Print(g.Describe())
			for _, r := range g.Rows {
				fmt.Printf("  - %s (%v)\n", r.Impl, r.Kind)
			}
		}
		return nil
	}
	version, err := javaVersion(c.Java)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s/%s, GOMAXPROCS %d; %s\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), version)
	reports, err := measure(groups, *rounds)
	if err != nil || *jsonFile == "" {
		return err
	}
	return write(*jsonFile, bench.NewResults(reports))
}

func measure(groups []*flink.Group, rounds int) ([]bench.Report, error) {
	var reports []bench.Report
	for _, g := range groups {
		began := time.Now()
		report, err := g.Measure(rounds, func(r bench.Row, s bench.Sample) {
			fmt.Fprintf(os.Stderr, "%-36s %-24s %10.1f %s\n", g.Name(), r.Impl, s[g.KeyMetric()], g.KeyMetric())
		})
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%s took %v\n", g.Name(), time.Since(began).Round(time.Millisecond))
		if err := report.WriteMarkdown(os.Stdout); err != nil {
			return nil, err
		}
		reports = append(reports, report)
	}
	return reports, nil
}

func write(file string, rows bench.Results) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return rows.Write(f)
}

func javaVersion(java string) (string, error) {
	words := strings.Fields(java)
	if len(words) == 0 {
		return "", errors.New("-java names no command")
	}
	out, err := exec.Command(words[0], "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s -version: %w", words[0], err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first, nil
}
