package hbase

import (
	"context"
	"sync"
	"time"

	"github.com/tsuna/gohbase/hrpc"
	"google.golang.org/protobuf/proto"

	"github.com/weirflow/weir/predicates"
)

// write is a mutation that gohbase sends at most once.
//
// SendRPC of gohbase repeats a request after most errors and returns only the last error.
// write is the request that SendRPC sees: it notices when gohbase sends the request,
// keeps the result, and then ends the context of SendRPC. That prevents a repetition,
// since gohbase sends no request whose context has ended.
//
// The order of the calls by gohbase, where "server" is the goroutine of the connection:
//
//	SendRPC:  SetRegion   SerializeCellBlocks   ResultChan      SetRegion  …
//	server:                          ResultChan, sends the result
//
// Both goroutines call ResultChan once, in either order. They get two channels, and relay
// passes the result on. If the request was not sent, because the region is not available
// or its connection has just ended, gohbase calls SetRegion again and continues.
type write struct {
	*hrpc.Mutate

	attempt context.Context
	limited context.Context // ends with the attempt, the mutation's context, or a call of end
	end     func()

	returned  chan struct{} // closed when SendRPC has returned
	stopWatch func() bool   // keeps closeStalled from running

	mu         sync.Mutex      // guards the fields below
	current    context.Context // limited, or its child in which gohbase traces the request
	sent       bool
	connection hrpc.RegionClient      // if sent; nil if it has just ended
	isStalled  bool                   // closeStalled has closed the connection
	report     predicates.SentRequest // if sent
	result     hrpc.RPCResult
	hasEnd     bool // result is set

	calls int                    // of ResultChan since SetRegion
	ends  [2]chan hrpc.RPCResult // of the result: the server's and SendRPC's
}

// newWrite returns a write of m. The caller must call finish.
func newWrite(ctx context.Context, m *hrpc.Mutate) *write {
	limited, cancel := context.WithCancel(m.Context())
	stop := context.AfterFunc(ctx, cancel)
	w := &write{Mutate: m, attempt: ctx, limited: limited, current: limited, returned: make(chan struct{})}
	w.stopWatch = context.AfterFunc(limited, w.closeStalled)
	w.end = func() {
		stop()
		cancel()
	}
	return w
}

func (w *write) finish() {
	close(w.returned)
	w.stopWatch() // before end, which would start closeStalled
	w.end()
}

// writeGrace is how long gohbase may continue to write a request after its attempt should
// have ended. Tests change it.
var writeGrace = 5 * time.Second

// closeStalled closes the connection if gohbase still writes the request writeGrace after
// the attempt should have ended, because the server does not read. Then SendRPC returns.
// Otherwise the attempt, and all other writes to the server, would never end.
func (w *write) closeStalled() {
	if w.writingTo() == nil {
		return
	}
	grace, end := context.WithTimeout(context.WithoutCancel(w.limited), writeGrace)
	defer end()
	select {
	case <-w.returned:
		return
	case <-grace.Done():
	}
	connection := w.writingTo()
	if connection == nil {
		return
	}
	w.mu.Lock()
	w.isStalled = true
	w.mu.Unlock()
	connection.Close()
}

func (w *write) writingTo() hrpc.RegionClient {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sent || w.calls > 0 {
		return nil
	}
	return w.connection
}

func (w *write) request() (predicates.SentRequest, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report, w.sent
}

// answer returns the result of the sent request, unless it is due to closeStalled: then
// the attempt has timed out.
func (w *write) answer() (hrpc.RPCResult, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.result, w.hasEnd && !w.isStalled
}

func (w *write) Context() context.Context {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.current
}

func (w *write) SetContext(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.current = ctx
}

// SkipBatch implements hrpc.Batchable: SendRPC's goroutine sends the write.
func (w *write) SkipBatch() bool { return true }

// SetRegion implements hrpc.Call. gohbase calls it before each sending.
func (w *write) SetRegion(region hrpc.RegionInfo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sent {
		w.end()
		return // leave the region alone: the connection may still read it
	}
	w.calls = 0
	w.ends = [2]chan hrpc.RPCResult{make(chan hrpc.RPCResult, 1), make(chan hrpc.RPCResult, 1)}
	w.Mutate.SetRegion(region)
}

// SerializeCellBlocks is called by gohbase just before it writes the request.
func (w *write) SerializeCellBlocks() (proto.Message, [][]byte, uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.sent {
		w.sent = true
		w.connection = w.Region().Client()
		w.report = predicates.ReportSent(w.attempt)
	}
	return w.Mutate.SerializeCellBlocks()
}

func (w *write) ResultChan() chan hrpc.RPCResult {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	switch w.calls {
	case 1:
		go w.relay(w.ends) // ends with the context
		return w.ends[0]
	case 2:
		return w.ends[1]
	}
	return make(chan hrpc.RPCResult, 1) // the write has ended: SetRegion was called
}

// relay passes the result from one end to the other, and keeps it if the request was
// sent. After an error it ends the write as soon as SendRPC has taken the result.
func (w *write) relay(ends [2]chan hrpc.RPCResult) {
	var to chan hrpc.RPCResult
	var result hrpc.RPCResult
	select {
	case result = <-ends[0]:
		to = ends[1]
	case result = <-ends[1]:
		to = ends[0]
	case <-w.limited.Done():
		return
	}
	isSent := w.keep(result)
	to <- result // has room: the first of this channel
	if !isSent || result.Error == nil {
		return
	}
	select {
	case to <- hrpc.RPCResult{}: // has room again: SendRPC has taken the result
		w.end()
	case <-w.limited.Done():
	}
}

func (w *write) keep(result hrpc.RPCResult) (isSent bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sent {
		w.result, w.hasEnd = result, true
	}
	return w.sent
}
