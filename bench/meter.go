package bench

import (
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Names of the metrics that every sample has.
const (
	NsPerElem     = "ns/elem"
	CPUPerElem    = "cpu-ns/elem" // user and system time of the process, getrusage
	AllocsPerElem = "allocs/elem"
	BytesPerElem  = "B/elem"
	Efficiency    = "efficiency" // ideal time / time, if the function waits
)

// Meter measures one interval of a run. It is owned by the goroutine of the row.
type Meter struct {
	elems   int
	began   time.Time
	cpu     time.Duration
	mem     runtime.MemStats
	wall    time.Duration
	ideal   time.Duration
	metrics Sample
}

// Sample is the cost of one run, by metric.
type Sample map[string]float64

// Start starts the measured interval after a garbage collection, so that no row pays for
// another's garbage.
func (m *Meter) Start() {
	runtime.GC()
	runtime.ReadMemStats(&m.mem)
	m.cpu = cpuTime()
	m.began = time.Now()
}

// Stop ends the measured interval.
func (m *Meter) Stop() {
	m.wall = time.Since(m.began)
	m.cpu = cpuTime() - m.cpu
	mallocs, bytes := m.mem.Mallocs, m.mem.TotalAlloc
	runtime.ReadMemStats(&m.mem)
	n := float64(m.elems)
	m.Report(NsPerElem, float64(m.wall)/n)
	m.Report(CPUPerElem, float64(m.cpu)/n)
	m.Report(AllocsPerElem, float64(m.mem.Mallocs-mallocs)/n)
	m.Report(BytesPerElem, float64(m.mem.TotalAlloc-bytes)/n)
}

// Ideal sets the ideal length of the interval: the time that the function itself waits.
func (m *Meter) Ideal(d time.Duration) { m.ideal = d }

// Report sets a metric.
func (m *Meter) Report(metric string, v float64) {
	if m.metrics == nil {
		m.metrics = make(Sample)
	}
	m.metrics[metric] = v
}

func (m *Meter) sample() Sample {
	if m.ideal > 0 && m.wall > 0 {
		m.Report(Efficiency, float64(m.ideal)/float64(m.wall))
	}
	return maps.Clone(m.metrics)
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// liveBytes returns the reachable memory after a collection.
func liveBytes() int64 {
	runtime.GC()
	runtime.GC() // frees what the first collection released from a sync.Pool
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc + s.StackInuse)
}

// residentBytes returns the resident memory after free memory went back to the system, or
// 0 without /proc.
func residentBytes() int64 {
	debug.FreeOSMemory()
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}
