// Command table measures weir against its peers and prints markdown tables with ratios.
//
//	go run ./bench/cmd/table                     everything: about an hour on two cores
//	go run ./bench/cmd/table -w '^W1/'           one workload
//	go run ./bench/cmd/table -w W2 -impl 'weir|rill'
//	go run ./bench/cmd/table -short -rounds 1    only check that it works
//	go run ./bench/cmd/table -list
//
// Progress goes to standard error.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"time"

	"github.com/weirflow/weir/bench"
	"github.com/weirflow/weir/ext/jetstream/embedded/clustertest"
)

type options struct {
	config        bench.Config
	workloads     *regexp.Regexp
	impls         *regexp.Regexp
	rounds, heavy int
	jsonFile      string
	cpuProfile    string
	list          bool
	child         bool
}

func main() {
	clustertest.Child() // for W14, which starts this program as a server
	o, err := parse(os.Args[1:])
	if err == nil {
		err = run(o, os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	var workloads, impls string
	fs := flag.NewFlagSet("table", flag.ContinueOnError)
	fs.StringVar(&workloads, "w", ".", "groups to run, a regular `expression` on names such as W1/mode=ordered")
	fs.StringVar(&impls, "impl", ".", "rows to run, a regular `expression` on names such as weir")
	fs.IntVar(&o.rounds, "rounds", 10, "rounds of every group")
	fs.IntVar(&o.heavy, "heavy", 3, "rounds of groups whose rows take many seconds each")
	fs.IntVar(&o.config.Elems, "elems", 0, "elements of every group, instead of its own size")
	fs.IntVar(&o.config.Buffer, "buffer", 0,
		"buffer of the channels at both ends of flows that let one choose; 0: weir's default, -1: none")
	fs.IntVar(&o.config.Ends, "ends", 0, "buffer of the channels of source and sink; go-streams' own have none")
	fs.BoolVar(&o.config.Short, "short", false, "small sizes, one round: does it work?")
	fs.StringVar(&o.jsonFile, "json", "", "write all medians to this `file` too")
	fs.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of rows that run in this process to `file`")
	fs.BoolVar(&o.list, "list", false, "list groups and rows")
	fs.BoolVar(&o.child, "child", false, "run the one row that -w and -impl name, print its sample as JSON (used by this command)")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if o.config.Short {
		o.rounds, o.heavy = 1, 1
	}
	var err error
	o.workloads, err = regexp.Compile(workloads)
	if err != nil {
		return o, err
	}
	o.impls, err = regexp.Compile(impls)
	return o, err
}

func selected(o options) []bench.Group {
	var groups []bench.Group
	for _, g := range bench.Groups(o.config) {
		if !o.workloads.MatchString(g.Name()) {
			continue
		}
		g.Rows = slices.DeleteFunc(slices.Clone(g.Rows), func(r bench.Row) bool { return !o.impls.MatchString(r.Impl) })
		if len(g.Rows) > 0 {
			groups = append(groups, g)
		}
	}
	return groups
}

func run(o options, out io.Writer) (err error) {
	groups := selected(o)
	switch {
	case len(groups) == 0:
		return errors.New("nothing matches -w and -impl")
	case o.list:
		for _, g := range groups {
			for _, r := range g.Rows {
				fmt.Fprintf(out, "%s/impl=%s\t%v\n", g.Name(), r.Impl, r.Kind)
			}
		}
		return nil
	case o.child:
		sample, err := bench.RunRow(groups[0], groups[0].Rows[0])
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(sample)
	}
	if o.cpuProfile != "" {
		f, err := os.Create(o.cpuProfile)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}

	fmt.Fprintf(out, "%s %s/%s, GOMAXPROCS %d\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0))
	var reports []bench.Report
	for _, g := range groups {
		rounds, runRow := o.rounds, bench.RunRow
		if g.Heavy {
			rounds = o.heavy
			runRow = func(g bench.Group, r bench.Row) (bench.Sample, error) { return runChild(o.config, g, r) }
		}
		began := time.Now()
		results, err := bench.Measure(g, rounds, func(g bench.Group, r bench.Row) (bench.Sample, error) {
			s, err := runRow(g, r)
			if err == nil {
				fmt.Fprintf(os.Stderr, "%-40s %-28s %10.1f %s\n", g.Name(), r.Impl, s[g.KeyMetric()], g.KeyMetric())
			}
			return s, err
		})
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s took %v\n", g.Name(), time.Since(began).Round(time.Millisecond))
		report := bench.Report{Group: g, Results: results}
		if err := report.WriteMarkdown(out); err != nil {
			return err
		}
		reports = append(reports, report)
	}
	if o.jsonFile != "" {
		return writeResults(o.jsonFile, bench.NewResults(reports))
	}
	return nil
}

// runChild runs a row in its own process, because a million goroutines or gigabytes of
// heap affect later rows.
func runChild(c bench.Config, g bench.Group, r bench.Row) (bench.Sample, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-child",
		"-w=^"+regexp.QuoteMeta(g.Name())+"$", "-impl=^"+regexp.QuoteMeta(r.Impl)+"$",
		"-elems="+strconv.Itoa(c.Elems), "-buffer="+strconv.Itoa(c.Buffer), "-ends="+strconv.Itoa(c.Ends),
		"-short="+strconv.FormatBool(c.Short))
	cmd.Stderr = os.Stderr
	printed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s in a process of its own: %w", g.Name(), r.Impl, err)
	}
	var sample bench.Sample
	if err := json.Unmarshal(printed, &sample); err != nil {
		return nil, fmt.Errorf("%s %s printed no sample: %w", g.Name(), r.Impl, err)
	}
	return sample, nil
}

func writeResults(file string, rows bench.Results) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return rows.Write(f)
}
