package lincheck_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// input is an operation on one request: an attempt, or the end of the client's interest
// in it.
type input struct {
	request int
	forget  bool
}

// output is the result of an attempt: the number of the effect that it saw, stale, or an
// error.
type output struct {
	effect int
	stale  bool
	failed bool // it, or the attempt that it waited for, failed without an effect
}

// state is a request: 0 effects or 1, and whether it is stale.
type state struct {
	effect int
	stale  bool
}

// model is a request whose attempts run one after the other (law X1).
var model = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byRequest := map[int][]porcupine.Operation{}
		for _, op := range history {
			n := op.Input.(input).request
			byRequest[n] = append(byRequest[n], op)
		}
		var all [][]porcupine.Operation
		for _, ops := range byRequest {
			all = append(all, ops)
		}
		return all
	},
	Init: func() any { return state{} },
	Step: func(s, in, out any) (bool, any) {
		now, op, got := s.(state), in.(input), out.(output)
		switch {
		case op.forget:
			now.stale = true
			return true, now
		case now.stale || got.stale: // an attempt that began earlier may get another result: it comes before in the order
			return now.stale && got.stale, now
		case got.failed: // it had no effect; another attempt may have had one
			return true, now
		case now.effect == 0:
			now.effect = got.effect
			return true, now
		}
		return now.effect == got.effect, now
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v -> %+v", in, out) },
}

var errNoEffect = errors.New("no effect")

// X1: clients repeat, duplicate and give up requests; replicas take over and fail. The
// history is linearizable, and every request has at most one effect.
func TestResultsAreLinearizable(t *testing.T) {
	var takenOver, attached uint64
	for seed := range uint64(30) {
		history, effects, stats := run(t, seed)
		takenOver += stats.TakenOver
		attached += stats.Attached
		for request := range effects {
			require.LessOrEqual(t, effects[request].Load(), int64(1), "seed %d: effects of request %d", seed, request)
		}
		result := porcupine.CheckOperationsTimeout(model, history, time.Minute)
		require.Equal(t, porcupine.Ok, result, "seed %d", seed)
	}
	require.NotZero(t, takenOver)
	require.NotZero(t, attached)
}

// The checker detects a tracker that runs a request twice.
func TestCheckerFindsASecondEffect(t *testing.T) {
	history := []porcupine.Operation{
		{ClientId: 0, Input: input{}, Output: output{effect: 1}, Call: 0, Return: 1},
		{ClientId: 1, Input: input{}, Output: output{effect: 2}, Call: 2, Return: 3},
	}
	require.False(t, porcupine.CheckOperations(model, history))
	history[1].Output = output{stale: true}
	require.False(t, porcupine.CheckOperations(model, history), "stale, although nobody has given it up")
	history[1].Output = output{effect: 1}
	require.True(t, porcupine.CheckOperations(model, history))
}

const (
	clients  = 6
	requests = 10
	attempts = 40 // of each client
)

func run(t *testing.T, seed uint64) ([]porcupine.Operation, *[requests]atomic.Int64, server.Stats) {
	t.Helper()
	results := server.NewResults(server.Config{})
	client := exactlyonce.NewClient()
	start := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var effects [requests]atomic.Int64
	var numbers atomic.Int64
	record := func(who int, call time.Duration, in input, out output) {
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{
			ClientId: who, Input: in, Output: out, Call: int64(call), Return: int64(time.Since(start)),
		})
	}
	// finish has the effect and answers in one step, as a transaction would, if the call
	// is the driver.
	var transaction sync.Mutex
	finish := func(call *server.Call, request int) (int, error) {
		transaction.Lock()
		defer transaction.Unlock()
		if !call.IsDriver() {
			return 0, exactlyonce.ErrInProgress
		}
		n := int(numbers.Add(1))
		effects[request].Add(1)
		return n, call.Complete([]byte{byte(n), byte(n >> 8)})
	}
	number := func(answer []byte) int { return int(answer[0]) | int(answer[1])<<8 }

	var wg sync.WaitGroup
	for who := range clients {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(who)))
			for n := range attempts {
				request := random.IntN(requests)
				id := exactlyonce.ID{Client: client, Sequence: int64(request) + 1, Attempt: n*clients + who + 1}
				in := input{request: request}
				began := time.Since(start)
				if random.IntN(200) == 0 { // the client gives up all lower requests
					id.First = id.Sequence
				}
				req := exactlyonce.Request{ID: id}
				var call *server.Call
				var err error
				if random.IntN(5) == 0 {
					transaction.Lock() // replicas agree on an order
					call, err = results.TakeOver(req)
					transaction.Unlock()
				} else {
					call, err = results.Track(context.Background(), req)
				}
				if id.First != 0 {
					for below := range request {
						record(who, began, input{below, true}, output{})
					}
				}
				var out output
				switch {
				case errors.Is(err, exactlyonce.ErrStale):
					out.stale = true
				case err != nil:
					t.Errorf("track: %v", err)
					return
				case call.IsNew():
					for range random.IntN(3) {
						time.Sleep(time.Duration(random.IntN(50)) * time.Microsecond)
					}
					if random.IntN(3) == 0 {
						call.Fail(errNoEffect)
						out.failed = true
					} else if out.effect, err = finish(call, request); err != nil {
						call.Fail(nil)
						out = output{failed: true}
					}
				default:
					ctx, cancel := context.WithCancel(context.Background())
					if random.IntN(4) == 0 {
						cancel() // the caller leaves
					}
					var answer []byte
					if answer, err = call.Wait(ctx); err != nil {
						out.failed = true
					} else {
						out.effect = number(answer)
					}
					cancel()
				}
				record(who, began, in, out)
			}
		})
	}
	wg.Wait()
	s := results.Stats()
	require.Zero(t, s.InProgress)
	require.Zero(t, s.Waiting)
	require.NoError(t, results.Close(context.Background()))
	return history, &effects, s
}
