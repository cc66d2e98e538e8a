package optest

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/predicates"
	"github.com/weirflow/weir/strategies"
)

// Reports receives the states of operators of strings, and decodes them.
type Reports struct {
	T       *testing.T
	results codec.Codec[string]

	mu     sync.Mutex
	States map[uint64]string // guarded by mu
}

func (r *Reports) Report(id uint64, name string, state participant.State, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	assert.NoError(r.T, err)
	assert.Equal(r.T, "op", name)
	assert.NotContains(r.T, r.States, id, "reported twice")
	if state == nil {
		r.States[id] = "passed"
		return
	}
	text, err := stateText[string](state.Bytes(), r.results)
	assert.NoError(r.T, err)
	r.States[id] = text
}

// State returns the state reported for a checkpoint, or "none".
func (r *Reports) State(id uint64) string {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.States[id]; ok {
		return s
	}
	return "none"
}

// CheckRig is a Rig with checkpoints.
type CheckRig struct {
	*Rig
	*Reports
	Coordinator *checkpoint.Coordinator
	Pending     chan participant.Barrier // of the coordinator, for the test to send
}

// BarrierFeed is the source of a CheckRig, as a participant.
type BarrierFeed struct{ Barriers chan participant.Barrier }

func (f BarrierFeed) Pending(b participant.Barrier) {
	b.Report("feed", participant.State{}, nil)
	f.Barriers <- b
}
func (f BarrierFeed) Completed(uint64)      {}
func (f BarrierFeed) Aborted(uint64, error) {}

func NewCheckRig(t *testing.T, m Mode, s Setup, store *checkpointtest.MemoryStore) *CheckRig {
	t.Helper()
	if store == nil {
		store = checkpointtest.NewMemoryStore()
	}
	c, err := checkpoint.NewCoordinator(store, checkpoint.WithLogger(slog.New(slog.DiscardHandler)))
	require.NoError(t, err)
	r := &CheckRig{
		Coordinator: c, Pending: make(chan participant.Barrier, 1),
		Reports: &Reports{T: t, States: map[uint64]string{}},
	}
	c.Host().Register("feed", BarrierFeed{r.Pending})
	s.Opts = append(s.Opts, asyncop.WithName("op"), asyncop.WithCheckpoints(c, s.State))
	r.Rig = NewRig(t, m, s)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.Start())
	return r
}

func (r *CheckRig) Barrier(id uint64, kind participant.Kind) {
	r.Send(participant.NewBarrier(id, kind, r.Reports))
}

// Trigger starts a checkpoint of the coordinator and returns its barrier, for the test to
// send. For a Drain, it is the marker of the end of the input, and Finish sends the final
// barrier.
func (r *CheckRig) Trigger(kind checkpoint.Kind) (b participant.Barrier, done <-chan error) {
	errs := make(chan error, 1)
	go func() {
		if kind != checkpoint.Periodic {
			errs <- r.Coordinator.Finish(context.Background(), kind)
			return
		}
		_, err := r.Coordinator.Trigger(context.Background())
		errs <- err
	}()
	b = <-r.Pending
	synctest.Wait()
	return b, errs
}

// Finish sends the final barrier of a Drain and returns the outcome.
func (r *CheckRig) Finish(done <-chan error) error {
	select {
	case b := <-r.Pending:
		r.Send(b)
		return <-done
	case err := <-done:
		return err
	}
}

func (r *CheckRig) Save() {
	r.Rig.T.Helper()
	b, done := r.Trigger(checkpoint.Periodic)
	r.Send(b)
	require.NoError(r.Rig.T, <-done)
}

var barrierText = regexp.MustCompile(`barrier (\d+) \(\w+\)`)

var markerText = regexp.MustCompile(`barrier \d+ \(end of input\)`)

// Outputs returns the outputs with barriers as <1>, and the end of the input as <end>.
func (r *CheckRig) Outputs() string {
	return barrierText.ReplaceAllString(markerText.ReplaceAllString(r.Rig.Outputs(), "<end>"), "<$1>")
}

// StateIn returns the operator's state in the newest checkpoint of store.
func StateIn(t *testing.T, store checkpoint.Store, results codec.Codec[string]) string {
	t.Helper()
	s, _, err := checkpoint.Latest(t.Context(), store)
	require.NoError(t, err)
	text, err := stateText[string](s.States["op"].Bytes(), results)
	require.NoError(t, err)
	return text
}

var ErrAgain = errors.New("again")

func RetryAgain(maxRetries int, delay time.Duration) Strategy {
	return strategies.FixedDelay[string](maxRetries, delay).RetryIfException(predicates.ErrorIs(ErrAgain))
}

type handHandler struct {
	*Hand
	timeout func(ctx context.Context, in string) ([]string, error)
}

func (h handHandler) Timeout(ctx context.Context, in string) ([]string, error) {
	return h.timeout(ctx, in)
}

func WithHandler(timeout func(ctx context.Context, in string) ([]string, error)) func(*Hand) Function {
	return func(h *Hand) Function { return handHandler{h, timeout} }
}
