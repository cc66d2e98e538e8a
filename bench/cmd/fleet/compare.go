package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weirflow/weir/internal/testing/child"
)

const (
	processes = 4
	limit     = 40
)

// compare measures the throughput of processes with a shared limit, and with fixed parts
// of it, in turn.
func compare(engine string, rounds int, window time.Duration, out io.Writer) error {
	var shared, fixed []float64
	for round := range rounds {
		s, err := throughput(process{Engine: engine, Limit: limit, Window: window})
		if err != nil {
			return err
		}
		f, err := throughput(process{Limit: limit / processes, Window: window})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "round %d: %.0f calls a second shared, %.0f fixed\n", round+1, s, f)
		shared = append(shared, s)
		fixed = append(fixed, f)
	}
	fmt.Fprintf(out, "medians: %.0f shared, %.0f fixed, ratio %.3f\n", median(shared), median(fixed), median(shared)/median(fixed))
	return nil
}

func throughput(p process) (float64, error) {
	all := make([]*child.Process, processes)
	for i := range all {
		var err error
		all[i], err = p.start()
		if err != nil {
			return 0, err
		}
		defer all[i].Kill() //nolint:errcheck // it may have ended
	}
	sum := 0
	for _, c := range all {
		line, err := c.Line(time.Minute + 2*p.Window)
		if err != nil {
			return 0, err
		}
		err = c.Wait(time.Minute) // it releases its share, which the next processes need at once
		if err != nil {
			return 0, err
		}
		calls, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			return 0, err
		}
		sum += calls
	}
	return float64(sum) / p.Window.Seconds(), nil
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return (list[(len(list)-1)/2] + list[len(list)/2]) / 2
}
