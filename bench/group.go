package bench

import (
	"cmp"
	"fmt"
	"runtime"
	"time"
)

// Kind says what a row is compared with.
type Kind uint8

// Kinds of rows.
const (
	Peer      Kind = iota // a library, or what a user writes by hand: counts when the best peer is looked for
	Weir                  // the operator under measurement
	Reference             // shown beside, but no peer: it does more or less than the work asks for
	Floor                 // the bare cost of what everything is made of
)

// String returns the kind in lower case.
func (k Kind) String() string { return [...]string{"peer", "weir", "reference", "floor"}[k] }

// Row is one implementation of a group's work.
type Row struct {
	Impl string
	Kind Kind
	// Div > 1 marks a slow row: it runs 1/Div of the group's elements. What it costs to
	// start and to finish then weighs more, so a row gets a Div only where its run still
	// takes seconds.
	Div int
	// Run does the work for n elements, calls Start and Stop of m around it, and returns
	// an error if the output is not what the work asks for.
	Run func(m *Meter, n int) error
}

// Aim is a claim about a group: Impl's metric is at most Max times that of Against, or
// Max itself if Against is empty.
type Aim struct {
	Impl    string
	Metric  string // default: the key of the group
	Against string // an Impl, or BestPeer
	Max     float64
	Or      float64 // with Against: this much is good enough in any case
}

// BestPeer stands for the row of kind Peer with the lowest key.
const BestPeer = "best peer"

// Group is one workload under one variant.
type Group struct {
	Workload string // "W1"
	Variant  string // "mode=ordered": benchstat's key=value form, parts joined by /
	Title    string
	Elems    int
	Key      string // the metric that rows are compared by; default NsPerElem
	// Heavy rows take many seconds each, or leave the process changed (a million
	// goroutines): the table command runs them fewer times, each in a process of its own.
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

// Config sizes the workloads.
type Config struct {
	Short  bool // small sizes: does it work?
	Elems  int  // elements of every group, if > 0
	Buffer int  // of the channels at both ends of every flow that lets one choose, weir's and ours; < 0: none
	Ends   int  // buffer of the channels of source and sink; go-streams' own connectors have none
}

// DefaultBuffer is the buffer at the ends of flows that let one choose: weir's default up
// to a capacity of 1,024.
const DefaultBuffer = 128

func (c Config) buffer() int {
	if c.Buffer < 0 {
		return 0
	}
	return cmp.Or(c.Buffer, DefaultBuffer)
}

// elems picks a size.
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

// stuckAfter is how long a row may run before it is taken for hung.
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
