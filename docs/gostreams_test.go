package docs_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/reugn/go-streams"
	"github.com/reugn/go-streams/extension"
	streamsflow "github.com/reugn/go-streams/flow"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/flow"
	"github.com/weirflow/weir/message"
	"github.com/weirflow/weir/strategies"
)

// airports returns a channel with three keys, which is closed.
func airports() chan any {
	keys := make(chan any, 3)
	for _, key := range []string{"airlhr", "cdg", "airfra"} {
		keys <- key
	}
	close(keys)
	return keys
}

// price is a placeholder for a call.
func price(_ context.Context, key string) (int, error) {
	if key == "" {
		return 0, errors.New("no key")
	}
	return 100*len(key) + 99, nil
}

// count is a placeholder for a call.
func count(_ context.Context, key string) (int, error) { return len(key), nil }

// save is a placeholder for a write.
func save(_ context.Context, cents int) (string, error) { return fmt.Sprint("saved ", cents), nil }

// all returns the texts of the values in a closed channel, sorted.
func all(out chan any) (texts []string) {
	for v := range out {
		texts = append(texts, fmt.Sprint(v))
	}
	slices.Sort(texts)
	return texts
}

func Example_goStreams() {
	keys := airports()
	prices := asyncop.OrderedWait(asyncop.Blocking(price), 5*time.Second, 100)
	extension.NewChanSource(keys).
		Via(prices).
		Via(streamsflow.NewMap(func(cents int) string { return fmt.Sprintf("%d.%02d", cents/100, cents%100) }, 1)).
		To(extension.NewStdoutSink())
	if err := prices.Wait(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 6.99
	// 3.99
	// 6.99
}

func Example_goStreamsFanOut() {
	keys, out := airports(), make(chan any, 10)
	branches := streamsflow.FanOut(extension.NewChanSource(keys), 2)
	prices := asyncop.OrderedWait(asyncop.Blocking(price), 5*time.Second, 100)
	stock := asyncop.OrderedWait(asyncop.Blocking(count), 5*time.Second, 100)
	flow.Merge(branches[0].Via(prices), branches[1].Via(stock)).
		To(extension.NewChanSink(out))
	if err := errors.Join(prices.Wait(), stock.Wait()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(all(out))
	// Output: [3 399 6 6 699 699]
}

func Example_goStreamsSplit() {
	keys, out := airports(), make(chan any, 10)
	halves := streamsflow.Split(extension.NewChanSource(keys), func(key string) bool { return strings.HasPrefix(key, "air") })
	fast := asyncop.UnorderedWait(asyncop.Blocking(price), time.Second, 100)
	slow := asyncop.UnorderedWait(asyncop.Blocking(price), time.Minute, 10)
	flow.Merge(halves[0].Via(fast), halves[1].Via(slow)).To(extension.NewChanSink(out))
	fmt.Println(all(out), fast.Wait(), slow.Wait())
	// Output: [399 699 699] <nil> <nil>
}

type entry struct{ Account, Number int }

func accountOf(e entry) int { return e.Account }

func book(_ context.Context, e entry) (entry, error) { return e, nil }

// someBookings returns bookings of two accounts.
func someBookings() chan any {
	bookings := make(chan any, 10)
	for n := range 10 {
		bookings <- entry{n % 2, n}
	}
	close(bookings)
	return bookings
}

// inOrder reports whether the bookings of each account come in order.
func inOrder(out chan any) bool {
	last, n := map[int]int{0: -1, 1: -1}, 0
	for v := range out {
		e := v.(entry)
		if e.Number < last[e.Account] {
			return false
		}
		last[e.Account] = e.Number
		n++
	}
	return n == 10
}

func Example_goStreamsKeyed() {
	bookings, out := someBookings(), make(chan any, 10)
	keyed := streamsflow.NewKeyed(accountOf, func() streams.Flow {
		return asyncop.OrderedWait(asyncop.Blocking(book), time.Second, 10)
	})
	extension.NewChanSource(bookings).Via(keyed).To(extension.NewChanSink(out))
	fmt.Println(inOrder(out))
	// Output: true
}

func Example_goStreamsKeyOrder() {
	bookings, out := someBookings(), make(chan any, 10)
	booked := asyncop.KeyOrderedWait(asyncop.Blocking(book), accountOf, time.Second, 100, strategies.NoRetry[entry]())
	extension.NewChanSource(bookings).Via(booked).To(extension.NewChanSink(out))
	fmt.Println(inOrder(out))
	// Output: true
}

func Example_goStreamsThrottler() {
	keys, out := airports(), make(chan any, 10)
	_, cancelSource := context.WithCancelCause(context.Background())
	prices := asyncop.OrderedWait(asyncop.Blocking(price), 5*time.Second, 100)
	store := asyncop.OrderedWait(asyncop.Blocking(save), 5*time.Second, 100, asyncop.WithUpstreamCancel(cancelSource))
	extension.NewChanSource(keys).
		Via(prices).
		Via(streamsflow.NewThrottler(100, time.Second, 1, streamsflow.Backpressure)).
		Via(store).
		To(extension.NewChanSink(out))
	if err := errors.Join(prices.Wait(), store.Wait()); err != nil {
		log.Fatal(err)
	}
	fmt.Println(all(out))
	// Output: [saved 399 saved 699 saved 699]
}

func Example_goStreamsWindows() {
	keys, out := airports(), make(chan any, 10)
	sum := asyncop.OrderedWait(asyncop.Blocking(func(ctx context.Context, window []int) (int, error) {
		total := 0
		for _, cents := range window {
			total += cents
		}
		return total, nil
	}), 5*time.Second, 10)
	extension.NewChanSource(keys).
		Via(asyncop.OrderedWait(asyncop.Blocking(price), 5*time.Second, 100)).
		Via(streamsflow.NewSessionWindow[int](time.Minute)).
		Via(sum).
		To(extension.NewChanSink(out))
	fmt.Println(all(out), sum.Wait())
	// Output: [1797] <nil>
}

func Example_goStreamsSideOutput() {
	keys, out, failed := make(chan any, 3), make(chan any, 3), make(chan any, 3)
	for _, key := range []string{"lhr", "", "fra"} {
		keys <- key
	}
	close(keys)
	failures := make(chan any)
	prices := asyncop.UnorderedWait(asyncop.Blocking(price), 5*time.Second, 100,
		asyncop.WithFailureSink(func(ctx context.Context, f asyncop.Failure[string]) error {
			select {
			case failures <- f: // f.Abandoned: the operator itself has ended, and f.Element has not failed
				return nil
			case <-ctx.Done(): // the operator ends; f is offered once more, for up to 30 s
				return context.Cause(ctx)
			}
		}))
	var side sync.WaitGroup
	side.Go(func() {
		extension.NewChanSource(failures).Via(streamsflow.NewPassThrough()).To(extension.NewChanSink(failed))
	})
	extension.NewChanSource(keys).Via(prices).To(extension.NewChanSink(out))
	err := prices.Wait()
	close(failures)
	side.Wait()
	f := (<-failed).(asyncop.Failure[string])
	fmt.Printf("%q %q %v %v\n", all(out), f.Element, f.Err, err)
	// Output: ["399" "399"] "" no key <nil>
}

// endless returns a channel of numbers that is closed when ctx ends.
func endless(ctx context.Context) chan any {
	numbers := make(chan any)
	go func() {
		defer close(numbers)
		for n := 0; ctx.Err() == nil; n++ {
			select {
			case numbers <- n:
			case <-ctx.Done():
			}
		}
	}()
	return numbers
}

func Example_goStreamsStop() {
	signals, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	source, cancelSource := context.WithCancelCause(signals) // a signal ends the source, not the operators
	sent := 0
	numbers := make(chan any)
	go func() {
		defer close(numbers)
		for ; source.Err() == nil; sent++ {
			numbers <- sent
		}
	}()
	first := asyncop.OrderedWait(asyncop.Blocking(double), time.Second, 100, asyncop.WithUpstreamCancel(cancelSource))
	second := asyncop.OrderedWait(asyncop.Blocking(failing), time.Second, 100)
	extension.NewChanSource(numbers).Via(first).Via(second).To(extension.NewIgnoreSink())
	err := errors.Join(first.Wait(), second.Wait())
	<-first.InputClosed()
	<-second.InputClosed()
	a, b := first.Stats(), second.Stats()
	fmt.Println(
		int64(sent) == a.Accepted+a.Discarded,
		a.Emitted == b.Accepted+b.Discarded+a.Undelivered,
		b.Accepted == b.Completed+b.Failed+b.Abandoned)
	fmt.Println(strings.Contains(err.Error(), "element 1000 failed"))
	// Output:
	// true true true
	// true
}

func double(_ context.Context, n int) (int, error) { return 2 * n, nil }

func failing(_ context.Context, n int) (int, error) {
	if n == 1000 {
		return 0, errors.New("full")
	}
	return n, nil
}

func Example_goStreamsUpstreamCancel() {
	source, cancelSource := context.WithCancelCause(context.Background())
	numbers := endless(source) // closes the channel when source ends
	first := asyncop.OrderedWait(asyncop.Blocking(double), time.Second, 100)
	second := asyncop.OrderedWait(asyncop.Blocking(failing), time.Second, 100, asyncop.WithUpstreamCancel(cancelSource))
	extension.NewChanSource(numbers).
		Via(first).
		Via(streamsflow.NewFilter(func(n int) bool { return n%4 == 0 }, 1)).
		Via(second).
		To(extension.NewIgnoreSink())
	err := errors.Join(first.Wait(), second.Wait())
	fmt.Println(strings.Contains(err.Error(), "element 1000 failed"), context.Cause(source) != nil)
	// Output: true true
}

func Example_goStreamsMessages() {
	received, file := make(chan any, 3), new(bytes.Buffer)
	var settled sync.WaitGroup
	for _, key := range []string{"lhr", "london"} {
		settled.Add(1)
		received <- message.New(key, &message.Meta{ID: key}, func(message.Settlement) { settled.Done() })
	}
	close(received)
	prices := asyncop.OrderedWait(asyncop.Blocking(price), 5*time.Second, 100)
	sink := flow.NewSink(func(cents int) error {
		_, err := fmt.Fprintln(file, cents)
		return err
	})
	extension.NewChanSource(received).Via(prices).To(sink)
	err := errors.Join(prices.Wait(), sink.Err())
	settled.Wait()
	fmt.Print(file)
	fmt.Println(err)
	// Output:
	// 399
	// 699
	// <nil>
}

// ends are the three ways in which a pipeline ends.
var ends = map[string]struct{ limit, failsAt int }{
	"its source is cancelled": {limit: 1 << 60, failsAt: -1},
	"its last step fails":     {limit: 1 << 60, failsAt: 20},
	"its input ends":          {limit: 10_007, failsAt: -1},
}

// Every element of a pipeline with two operators, a window and a side output is saved,
// has failed, or is counted as discarded.
func TestGoStreamsPipeline_CountsEveryElement(t *testing.T) {
	for name, end := range ends {
		for range 5 {
			source, cancelSource := context.WithCancelCause(t.Context())
			products, failures, sent := make(chan any), make(chan any), int64(0)
			go func() {
				defer close(products)
				for ; source.Err() == nil && sent < int64(end.limit); sent++ {
					products <- int(sent)
				}
			}()
			prices := asyncop.UnorderedWait(asyncop.Blocking(func(_ context.Context, n int) (int, error) {
				if n%10 == 9 {
					return 0, errors.New("unknown product")
				}
				return 100 * n, nil
			}), time.Second, 100, asyncop.WithUpstreamCancel(cancelSource), asyncop.WithLogger(quiet),
				asyncop.WithFailureSink(func(_ context.Context, f asyncop.Failure[int]) error { failures <- f.Element; return nil }))
			var windows, inWindows atomic.Int64
			counted := flow.NewMap(func(window []int) []int {
				windows.Add(1)
				inWindows.Add(int64(len(window)))
				return window
			})
			store := asyncop.OrderedWait(asyncop.Blocking(func(_ context.Context, window []int) (int, error) {
				if end.failsAt >= 0 && window[0] > 100_000*end.failsAt/20 {
					return 0, errors.New("disk full")
				}
				return len(window), nil
			}), 5*time.Second, 4, asyncop.WithUpstreamCancel(cancelSource), asyncop.WithUpstreamRunning(), asyncop.WithLogger(quiet))
			saved := int64(0)
			sink, failed := flow.NewSink(func(n int) error { saved += int64(n); return nil }), flow.NewSink(func(int) error { return nil })
			var side sync.WaitGroup
			side.Go(func() { extension.NewChanSource(failures).Via(streamsflow.NewPassThrough()).To(failed) })
			if strings.Contains(name, "cancelled") {
				time.AfterFunc(20*time.Millisecond, func() { cancelSource(errors.New("SIGTERM")) })
			}
			extension.NewChanSource(products).Via(prices).Via(streamsflow.NewBatch[int](50, time.Second)).Via(counted).Via(store).To(sink)
			first, second := prices.Wait(), store.Wait()
			close(failures)
			side.Wait()

			require.NoError(t, first, "%s: its input has ended", name)
			require.Equal(t, end.failsAt >= 0, second != nil, "%s: %v", name, second)
			<-prices.InputClosed()
			<-store.InputClosed() // the steps before it have ended, too
			p, s := prices.Stats(), store.Stats()
			require.Equal(t, sent, p.Accepted+p.Discarded, name)
			require.Equal(t, p.Accepted, inWindows.Load()+failed.Written()+p.Abandoned, name)
			require.Equal(t, windows.Load(), s.Completed+s.Failed+s.Abandoned+s.Discarded, name)
			if second == nil {
				require.Equal(t, sent, saved+failed.Written(), name)
				require.Zero(t, p.Discarded+s.Discarded, name)
			} else {
				require.Less(t, saved, inWindows.Load(), name)
			}
		}
	}
}

// The program of the page ends on SIGTERM, and every element that it has read is saved or
// in the side output.
func TestGoStreamsProgram_SIGTERM(t *testing.T) {
	run := exec.CommandContext(t.Context(), program(t, "gostreams"))
	var logged strings.Builder
	run.Stderr = &logged
	out, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "running\n", line)
	require.NoError(t, run.Process.Signal(syscall.SIGTERM))
	require.NoError(t, run.Wait(), "%s", &logged)
	require.Contains(t, logged.String(), "all accounted for: true error: <nil>")
}
