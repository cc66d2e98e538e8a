package bench

import (
	"cmp"
	"fmt"
	"runtime"
	"time"
)

// Kind is the role of a row in comparisons.
type Kind uint8

// Kinds of rows.
const (
	Peer Kind = iota // a library or handwritten code
	Weir
	Reference // shown, but not comparable: does more or less work
	Floor     // the cost of the building blocks
)

// String returns the kind in lower case.
func (k Kind) String() string { return [...]string{"peer", "weir", "reference", "floor"}[k] }

// Row is one implementation of a group's work.
type Row struct {
	Impl string
	Kind Kind
	// Div > 1 marks a slow row, which runs 1/Div of the group's elements. Starting and
	// finishing then weigh more, so only rows that still take seconds have a Div.
	Div int
	// Run does the work for n elements between m.Start and m.Stop. It returns an error if
	// the output is wrong.
	Run func(m *Meter, n int) error
}

// Aim is a claim about a group: Impl's metric is at most Max times the metric of Against,
// or at most Max if Against is empty.
type Aim struct {
	Impl    string
	Metric  string // default: the key of the group
	Against string // an Impl, or BestPeer
	Max     float64
	Or      float64 // with Against: a metric of Impl up to this also meets the aim
}

// BestPeer selects the row of kind Peer with the lowest key.
const BestPeer = "best peer"

// Group is one workload under one variant.
type Group struct {
	Workload string // "W1"
	Variant  string // "mode=ordered": benchstat's key=value format, joined by /
	Title    string
	Elems    int
	Key      string // metric that rows are compared by; default NsPerElem
	// Heavy rows take many seconds each, or change the process (a million goroutines).
	// The table command runs them fewer times, each in its own process.
	Heavy bool
	Rows  []Row
	Aims  []Aim
}

// Name returns "W1/mode=ordered".
func (g Group) Name() string {
	if g.Variant == "" {
		return g.Workload
	}
	return g.Workload + "/" + g.Variant
}

// KeyMetric returns the metric that rows are compared by.
func (g Group) KeyMetric() string { return cmp.Or(g.Key, NsPerElem) }

// Config sets the size of the workloads.
type Config struct {
	Short  bool // small sizes, as a check
	Elems  int  // elements of every group, if > 0
	Buffer int  // channels at both ends of every flow, if there is a choice; < 0 means unbuffered
	Ends   int  // channels of source and sink; go-streams' own connectors have none
}

// DefaultBuffer is the default of Config.Buffer, and weir's default up to a capacity of
// 1,024.
const DefaultBuffer = 128

func (c Config) buffer() int {
	if c.Buffer < 0 {
		return 0
	}
	return cmp.Or(c.Buffer, DefaultBuffer)
}

func (c Config) elems(full, short int) int {
	switch {
	case c.Elems > 0:
		return c.Elems
	case c.Short:
		return short
	default:
		return full
	}
}

// Groups returns all groups, W1 to W17.
func Groups(c Config) []Group {
	var all []Group
	for _, groups := range [][]Group{
		w1(c), w1b(c), w2(c), w3(c), w4(c), w5(c), w6(c), w7(c), w8(c), w9(c), w10(c), w11(c), w12(c), w13(c),
		w14(c), w15(c), w16(c), w17(c),
	} {
		all = append(all, groups...)
	}
	return all
}

// stuckAfter bounds a row's run. A longer run panics.
const stuckAfter = 5 * time.Minute

// RunRow runs one row of g once.
func RunRow(g Group, r Row) (Sample, error) {
	stuck := time.AfterFunc(stuckAfter, func() {
		buf := make([]byte, 1<<20)
		panic(fmt.Sprintf("bench: %s %s has not ended after %v\n%s",
			g.Name(), r.Impl, stuckAfter, buf[:runtime.Stack(buf, true)]))
	})
	defer stuck.Stop()
	m := &Meter{elems: g.Elems / max(1, r.Div)}
	if err := r.Run(m, m.elems); err != nil {
		return nil, fmt.Errorf("%s %s: %w", g.Name(), r.Impl, err)
	}
	return m.sample(), nil
}
