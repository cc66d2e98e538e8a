package streams_test

import (
	"fmt"
	"testing/synctest"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/asyncop/internal/core"
	"github.com/weirflow/weir/asyncop/internal/drive"
	"github.com/weirflow/weir/asyncop/internal/modeltest"
	"github.com/weirflow/weir/checkpoint/participant"
	"github.com/weirflow/weir/codec"
)

// modelHost is a coordinator whose barriers and restarts follow a schedule.
type modelHost struct {
	run     *modelRun
	op      participant.Participant
	started chan struct{}

	taken int
	state participant.State // the newest
	items []modeltest.Item  // the expected items, by the model
	sent  int               // values sent before its barrier
}

var modelCodec = drive.StateCodec[modelInput, any]{
	Inputs: codec.Default[modelInput](),
	Results: codec.Func(func(dst []byte, v any) ([]byte, error) { return append(dst, v.(string)...), nil },
		func(src []byte) (any, error) { return string(src), nil }),
}

func newModelHost(r *modelRun) *modelHost {
	h := &modelHost{run: r, started: make(chan struct{})}
	close(h.started)
	return h
}

func (h *modelHost) Host() participant.Host { return h }

func (h *modelHost) Register(_ string, p participant.Participant) (participant.State, bool) {
	h.op = p
	return h.state, h.state != nil
}

func (h *modelHost) Refuse(_ string, reason error)   { panic(reason) }
func (h *modelHost) Started() <-chan struct{}        { return h.started }
func (h *modelHost) Fail(string, error)              {}
func (h *modelHost) RequestCheckpoint()              {}
func (h *modelHost) RequestFinal(_ participant.Kind) {}
func (h *modelHost) Ended() <-chan struct{}          { return nil }
func (h *modelHost) Err() error                      { return nil }

func (h *modelHost) Report(_ uint64, _ string, state participant.State, err error) {
	h.run.mu.Lock()
	defer h.run.mu.Unlock()
	if h.state = state; err != nil {
		h.run.wrong = append(h.run.wrong, err.Error())
	}
}

func (h *modelHost) option() asyncop.Option {
	return asyncop.WithCheckpoints(h, asyncop.State[modelInput, any]{Inputs: modelCodec.Inputs, Results: modelCodec.Results})
}

// barrier takes a checkpoint and compares it with the model (law C1).
func (r *modelRun) barrier() string {
	h := r.host
	h.taken++
	h.state = nil
	b := participant.NewBarrier(uint64(h.taken), participant.Periodic, h)
	h.op.Pending(b)
	r.feed <- b
	h.items, h.sent = r.model.Barrier(fmt.Sprintf("B%d", h.taken)), len(r.sent)
	synctest.Wait()
	s, err := modelCodec.Decode(h.state.Bytes())
	if err != nil {
		r.report("state: %v", err)
	}
	want, got := "", ""
	for _, it := range h.items {
		want += fmt.Sprintf("%v made %d; ", it, it.Made)
	}
	for _, it := range s.Items {
		is := modeltest.Item{Input: modeltest.Input{Name: fmt.Sprint(it.In.ID)}, Wait: it.Wait}
		switch it.Kind {
		case core.Control:
			is.Name = fmt.Sprintf("W%d", it.Rest.(asyncop.Watermark).Timestamp.Unix())
		case core.Completed:
			for _, v := range it.Results() {
				is.Results = append(is.Results, v.(string))
			}
		}
		got += fmt.Sprintf("%v made %d; ", is, it.Attempts)
	}
	r.same("C1: checkpoint", want, got)
	return "barrier: " + want
}

// restart cuts the run off and begins another run from the newest checkpoint.
func (r *modelRun) restart() string {
	r.compare(r.release())
	r.compare(r.openAll())
	r.cancelRun()
	r.compare("restart")
	r.checkEnd()
	r.checkLaws()
	r.tearDown()
	r.model = r.model.Restore(r.host.items)
	r.closed, r.calls, r.told = false, map[string]*modelHandle{}, nil
	r.begin()
	for _, in := range r.sent[r.host.sent:] {
		r.model.Send(in.Input)
		r.feed <- in.value
	}
	return "from the checkpoint"
}
