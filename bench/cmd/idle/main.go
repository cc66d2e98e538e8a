// Command idle measures the processor time of workers whose queues are empty, in one
// process and on one database:
//
//	go run ./bench/cmd/idle                             # SQLite; 6 minutes
//	go run ./bench/cmd/idle -sources                    # without reports and history
//	go run ./bench/cmd/idle -postgres URL               # without the time of the server
//	go run ./bench/cmd/idle -for 60s -cpuprofile idle.cpu
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/postgres"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// spread is the time over which the workers start, since workers that start together also
// report together.
const spread = 20 * time.Second

type settings struct {
	queues  int
	sources bool
	window  time.Duration
	url     string
	profile string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var s settings
	flag.IntVar(&s.queues, "queues", 300, "run `n` queues, with a worker for each")
	flag.BoolVar(&s.sources, "sources", false, "run sources alone in place of workers")
	flag.DurationVar(&s.window, "for", 5*time.Minute, "measure for this `time`, after a start of 40 s")
	flag.StringVar(&s.url, "postgres", "", "use the PostgreSQL database with this `URL`")
	flag.StringVar(&s.profile, "cpuprofile", "", "write a profile of the processor time to this `file`")
	flag.Parse()
	slog.SetLogLoggerLevel(slog.LevelWarn) // each worker logs its end
	err := s.run(ctx, os.Stdout)
	if err != nil {
		log.Fatal(err)
	}
}

func (s *settings) run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "idle-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	engine, err := s.open(ctx, filepath.Join(dir, "engine.db"))
	if err != nil {
		return err
	}
	defer engine.Close() //nolint:errcheck // the process ends
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	failed := make(chan error, s.queues)
	for i := range s.queues {
		queue := delivery.NewQueue[string](engine, "queue-"+strconv.Itoa(i), delivery.RetryAfter(time.Minute, time.Hour))
		running.Go(func() { // ends with ctx
			err := sleep(ctx, spread*time.Duration(i)/time.Duration(s.queues), nil)
			if err == nil {
				err = s.consume(ctx, queue)
			}
			failed <- err
		})
	}
	err = sleep(ctx, 2*spread, failed)
	if err != nil {
		return err
	}
	return s.measure(ctx, failed, out)
}

func (s *settings) open(ctx context.Context, file string) (store.Engine, error) {
	if s.url != "" {
		return postgres.Open(ctx, s.url)
	}
	return sqlite.Open(ctx, file)
}

// consume runs a worker of a queue, or its source alone, until ctx ends.
func (s *settings) consume(ctx context.Context, queue *delivery.Queue[string]) error {
	if s.sources {
		return receive(ctx, queue.Source(nil))
	}
	call := asyncop.Blocking(func(_ context.Context, text string) (string, error) { return text, nil })
	op := asyncop.UnorderedWait(call, time.Minute, 10, asyncop.WithFailureSink(queue.TakeFailure))
	_, err := delivery.Run(ctx, queue, op, discard{})
	return err
}

func receive(ctx context.Context, source delivery.Source[string]) error {
	defer source.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the queue is empty
	_, err := source.Receive(ctx, 10)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("an empty queue has returned messages, or the error %w", err)
}

// discard is a sink that takes results and drops them.
type discard struct{}

func (discard) PutAll(context.Context, []message.Message[string]) error { return nil }

// measure prints the share of a processor that the process takes in the window.
func (s *settings) measure(ctx context.Context, failed <-chan error, out io.Writer) error {
	if s.profile != "" {
		file, err := os.Create(s.profile)
		if err != nil {
			return err
		}
		defer file.Close() //nolint:errcheck // StopCPUProfile has written it
		err = pprof.StartCPUProfile(file)
		if err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	before, err := processorTime()
	if err != nil {
		return err
	}
	begun := time.Now()
	err = sleep(ctx, s.window, failed)
	if err != nil {
		return err
	}
	elapsed := time.Since(begun)
	after, err := processorTime()
	if err != nil {
		return err
	}
	used := after - before
	_, err = fmt.Fprintf(out, "%d idle queues: %v of processor time in %v: %.2f %%\n", s.queues,
		used.Round(time.Millisecond), elapsed.Round(time.Second), 100*used.Seconds()/elapsed.Seconds())
	return err
}

// sleep returns an error if ctx ends or a consumer fails before the time d has passed.
func sleep(ctx context.Context, d time.Duration, failed <-chan error) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case err := <-failed:
		return errors.Join(errors.New("a consumer has ended before the measurement"), err)
	}
}

// processorTime returns the user and system time of the process so far.
func processorTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}
