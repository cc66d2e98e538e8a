package files_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/files"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/internal/testing/crashfs"
	"github.com/weirflow/weir/internal/testing/suite"
)

// Laws C1 and C3: a pipeline of a source, an operator that holds elements back, and a
// file is interrupted at random times by a failure, Close, Suspend, a kill or a power
// cut, sometimes with a disk that fails now and then. Every restart resumes, and at the
// end each line is in the file exactly once. Time is virtual.
func TestCutAndRestart(t *testing.T) {
	// With one processor the sink receives a barrier before the coordinator notices an
	// earlier end of the run.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	seeds := uint64(60)
	if !suite.Full() {
		seeds = 10
	}
	total := map[string]int{}
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			j := &restartJob{rnd: rand.New(rand.NewPCG(seed, 11)), disk: files.NewOutputDisk(t), cuts: total}
			require.NoError(t, errors.Join(j.disk.Mkdir("/var", 0o755), j.disk.Mkdir("/var/lib", 0o755)))
			j.disk.Settle()
			j.disk.FewTears()
			for i := range 150 {
				j.in = append(j.in, fmt.Sprint("line ", i))
			}
			for runs := 0; !j.run(t, runs < 8); runs++ {
				require.Less(t, runs, 100, "seed %d", seed)
			}
			require.Equal(t, strings.Join(j.in, "\n")+"\n", j.disk.Files()[files.OutputPath], "seed %d", seed)
		})
	}
	t.Log(total)
	if !suite.Full() {
		return // too few seeds for all kinds of cuts
	}
	for _, cut := range []string{"fail", "fail at a barrier", "close", "suspend", "kill", "power cut"} {
		require.NotZero(t, total[cut], cut)
	}
}

type restartJob struct {
	rnd  *rand.Rand
	disk *crashfs.FS
	in   []string
	cuts map[string]int
}

// run runs the job until it ends or is interrupted, and reports whether it was completed.
func (j *restartJob) run(t *testing.T, cut bool) (done bool) {
	t.Helper()
	disk := j.disk
	store := must(files.OpenDirOn(disk))
	c := must(NewCoordinator(store, WithLogger(quiet()), WithTimeout(50*time.Millisecond),
		WithInterval(time.Duration(50+j.rnd.IntN(500))*time.Microsecond)))
	src := NewSource(c, "src", Input[string](&slowInput{checkpointtest.NewSliceInput(j.in), time.Duration(j.rnd.IntN(50)) * time.Microsecond}))
	op := newDelayer(c, j.rnd.IntN(10), time.Duration(j.rnd.IntN(100))*time.Microsecond)
	sink := NewSink(c, "sink", files.NewCrashOutput(disk))
	require.NoError(t, c.Start(), "law C3")
	ended := make(chan struct{})
	go func() { op.stream(src.Out(), sink.In()); sink.AwaitCompletion(); close(ended) }()
	if cut {
		j.cut(c, disk, op)
	}
	<-c.Ended()
	<-ended
	disk.OnCall(nil)
	require.NoError(t, c.Close())
	return c.Err() == nil && j.disk == disk && isDrained(t, disk)
}

// isDrained reports whether the newest checkpoint is a Drain.
func isDrained(t *testing.T, disk *crashfs.FS) bool {
	t.Helper()
	store := must(files.OpenDirOn(disk))
	s, _, err := Latest(t.Context(), store)
	require.NoError(t, err)
	require.NoError(t, store.Close())
	return s.Kind == Drain
}

var errKilled = errors.New("killed")

func (j *restartJob) cut(c *Coordinator, disk *crashfs.FS, op *delayer) {
	after := time.Duration(j.rnd.IntN(5000)) * time.Microsecond
	troubled := j.rnd.IntN(3) == 0
	trouble := rand.New(rand.NewPCG(j.rnd.Uint64(), 3)) // calls come from several goroutines, one at a time
	image, calls, at := (*crashfs.FS)(nil), 0, -1
	switch how := []string{"fail", "fail at a barrier", "close", "suspend", "kill", "power cut", "none"}[j.rnd.IntN(7)]; how {
	case "fail":
		j.cuts[how]++
		time.AfterFunc(after, func() { c.Host().Fail("op", errKilled) })
	case "fail at a barrier": // which the delayer still passes to the sink
		j.cuts[how]++
		op.fail.Store(int32(1 + j.rnd.IntN(5)))
	case "close":
		j.cuts[how]++
		time.AfterFunc(after, func() { _ = c.Close() })
	case "suspend":
		j.cuts[how]++
		time.AfterFunc(after, func() { _ = c.Finish(context.Background(), Suspend) })
	case "kill", "power cut":
		at = j.rnd.IntN(400)
		kills := how == "kill"
		defer func() {
			<-c.Ended()
			if image != nil {
				j.cuts[how]++
				j.disk = image
			}
		}()
		take := func() *crashfs.FS {
			if kills {
				return disk.Clone()
			}
			var images []*crashfs.FS
			for i := range disk.Images() {
				if images = append(images, i); len(images) == 50 {
					break
				}
			}
			return images[j.rnd.IntN(len(images))]
		}
		disk.OnCall(func(crashfs.Call) *crashfs.Fault {
			if calls++; calls-1 == at {
				image = take()
				go c.Host().Fail("op", errKilled)
			}
			return nil
		})
		return
	}
	if troubled {
		disk.OnCall(func(crashfs.Call) *crashfs.Fault {
			if trouble.IntN(100) == 0 {
				return &crashfs.Fault{Err: syscall.EIO, Done: trouble.IntN(2) == 0}
			}
			return nil
		})
	}
}

// slowInput sleeps before each element.
type slowInput struct {
	Input[string]
	pause time.Duration
}

func (in *slowInput) Next() (string, error) {
	time.Sleep(in.pause)
	return in.Input.Next()
}

// delayer is an operator that holds elements back. Its state is these elements.
type delayer struct {
	c     *Coordinator
	n     int
	pause time.Duration
	held  []string
	fail  atomic.Int32 // at this barrier, counted down
}

func newDelayer(c *Coordinator, n int, pause time.Duration) *delayer {
	h := &delayer{c: c, n: n, pause: pause}
	if state, ok := c.Host().Register("op", h); ok {
		if err := json.Unmarshal(state.Bytes(), &h.held); err != nil {
			c.Host().Refuse("op", err)
		}
	}
	return h
}

func (*delayer) Pending(participant.Barrier) {}
func (*delayer) Completed(uint64)            {}
func (*delayer) Aborted(uint64, error)       {}

func (h *delayer) stream(in <-chan any, out chan<- any) {
	defer close(out)
	emit := func(keep int) {
		for len(h.held) > keep {
			out <- h.held[0]
			h.held = h.held[1:]
		}
	}
	for v := range in {
		b, ok := v.(participant.Barrier)
		if !ok {
			h.held = append(h.held, v.(string))
			emit(h.n)
			continue
		}
		if b.Kind == participant.EndOfInput {
			emit(0)
			out <- b
			b.Report("op", nil, nil)
			continue
		}
		state := must(json.Marshal(h.held))
		if h.fail.Add(-1) == 0 {
			b.Report("op", participant.State{state}, nil)
			h.c.Host().Fail("op", errKilled)
			out <- b
			continue
		}
		out <- b
		time.Sleep(h.pause) // the run may end meanwhile
		b.Report("op", participant.State{state}, nil)
	}
}
