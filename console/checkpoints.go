package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weirflow/weir/delivery/jobs"
)

// saved is [checkpoint.Stats] in JSON.
type saved struct {
	Pipeline string `json:"-"`
	Where    string `json:"-"` // the process

	Completed, Failed uint64
	FailedInRow       int
	LastError         string
	LastTime          time.Time
	LastDuration      time.Duration
	LastSize          int64
	UnderWay          uint64
	Since             time.Time
}

func (s *server) about() jobs.Worker {
	w := jobs.Worker{Checkpoints: map[string]json.RawMessage{}}
	for name, c := range s.Checkpoints {
		w.Checkpoints[name], _ = json.Marshal(c.Stats()) // numbers and texts
	}
	return w
}

// checkpointsOf returns the statistics of pipelines, by name: from s.Checkpoints, and
// from heartbeats.
func (s *server) checkpointsOf(l *look) (list []saved) {
	add := func(name, where string, stats json.RawMessage) {
		r := saved{Pipeline: name, Where: where}
		if json.Unmarshal(stats, &r) == nil { // else it is of a later version
			list = append(list, r)
		}
	}
	own := s.about().Checkpoints
	for name, stats := range own {
		add(name, "this process", stats)
	}
	host, _ := os.Hostname() // may be empty
	for _, w := range l.Workers {
		where, isOurs := fmt.Sprintf("%s, %d", w.Host, w.PID), w.Host == host && w.PID == os.Getpid()
		if isOurs {
			where = "this process"
		}
		for name, stats := range w.Checkpoints {
			if _, has := own[name]; !isOurs || !has { // the handler reports its own in heartbeats, too
				add(name, where, stats)
			}
		}
	}
	slices.SortFunc(list, func(a, b saved) int {
		return cmp.Or(strings.Compare(a.Pipeline, b.Pipeline), strings.Compare(a.Where, b.Where))
	})
	return list
}

func (s *server) checkpointProblems(list []saved) (problems []problem) {
	for _, c := range list {
		if c.FailedInRow > 0 {
			level := 1
			if c.FailedInRow > 2 {
				level = 2
			}
			problems = append(problems, problem{level, fmt.Sprintf("%s of %s (%s) failed in a row: %s", count(c.FailedInRow, "checkpoint"), cut(100, c.Pipeline), cut(100, c.Where), failure(200, c.LastError)), s.link("/") + "#checkpoints", "checkpoints"})
		}
	}
	return problems
}

func took(d time.Duration) string {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

func size(n int64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if n < 10<<10 {
			return fmt.Sprintf("%d %s", n, unit)
		}
		n >>= 10
	}
	return fmt.Sprintf("%d GiB", n)
}
