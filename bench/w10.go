package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/weirflow/weir/exactlyonce"
	"github.com/weirflow/weir/exactlyonce/server"
)

// BytesPerRecord is the memory of a tracked request with an answer of 64 bytes.
const BytesPerRecord = "B/record"

// w10 measures the server of exactly-once calls with a handler that does nothing. Answers
// have 64 bytes.
func w10(c Config) []Group {
	var groups []Group
	for _, held := range []int{1_000, c.elems(1_000_000, 10_000)} {
		groups = append(groups, Group{
			Workload: "W10", Variant: fmt.Sprintf("case=call/held=%d", held), Elems: c.elems(1_000_000, 10_000),
			Title: fmt.Sprintf("track a call while the answers to %d others are kept", held),
			Rows: []Row{
				{Impl: "weir", Kind: Weir, Run: func(m *Meter, n int) error { return tracked(m, n, held) }},
				{Impl: "handler", Kind: Floor, Run: func(m *Meter, n int) error {
					h := newOnceHandler()
					m.Start()
					for range n {
						if _, err := h.handle(context.Background()); err != nil {
							return err
						}
					}
					m.Stop()
					return h.check(n)
				}},
			},
			Aims: []Aim{{Impl: "weir", Max: 1_000}, {Impl: "weir", Metric: AllocsPerElem, Max: 3.01}},
		})
	}
	return append(groups, Group{
		Workload: "W10", Variant: "case=http", Elems: c.elems(20_000, 200), Title: "an HTTP request over loopback, one at a time",
		Rows: []Row{
			{Impl: "weir", Kind: Weir, Run: func(m *Meter, n int) error {
				results := server.NewResults(server.Config{})
				err := overHTTP(m, n, func(next http.Handler) http.Handler {
					return results.Handler(next, server.HandlerConfig{
						Scope: func(*http.Request) (string, bool) { return "", true }, Required: true,
					})
				})
				return errors.Join(err, results.Close(context.Background()))
			}},
			{Impl: "handler", Kind: Floor, Run: func(m *Meter, n int) error {
				return overHTTP(m, n, func(next http.Handler) http.Handler { return next })
			}},
		},
	})
}

type onceHandler struct {
	calls  int
	answer []byte
}

func newOnceHandler() *onceHandler { return &onceHandler{answer: bytes.Repeat([]byte{'x'}, 64)} }

func (h *onceHandler) handle(context.Context) ([]byte, error) {
	h.calls++
	return append([]byte(nil), h.answer...), nil
}

func (h *onceHandler) check(n int) error {
	if h.calls != n {
		return fmt.Errorf("%d calls of %d requests", h.calls, n)
	}
	return nil
}

// tracked sends n requests of a client that leaves held answers unacknowledged.
func tracked(m *Meter, n, held int) error {
	ctx := context.Background()
	h := newOnceHandler()
	client := exactlyonce.NewClient()
	do := func(results *server.Results, seq int) error {
		_, replayed, err := results.Do(ctx, exactlyonce.Request{ID: exactlyonce.ID{
			Client: client, Sequence: int64(seq), Attempt: 1, First: int64(max(1, seq-held)),
		}}, h.handle)
		if err == nil && replayed {
			err = fmt.Errorf("request %d has an answer", seq)
		}
		return err
	}
	before := liveBytes()
	results := server.NewResults(server.Config{MaxRecords: held + 2, MaxBytes: 1 << 40})
	for seq := 1; seq <= held; seq++ {
		if err := do(results, seq); err != nil {
			return err
		}
	}
	m.Report(BytesPerRecord, float64(liveBytes()-before)/float64(held))
	h.calls = 0
	m.Start()
	for seq := held + 1; seq <= held+n; seq++ {
		if err := do(results, seq); err != nil {
			return err
		}
	}
	m.Stop()
	return errors.Join(h.check(n), results.Close(ctx))
}

func overHTTP(m *Meter, n int, wrap func(http.Handler) http.Handler) error {
	h := newOnceHandler()
	server := httptest.NewServer(wrap(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		answer, _ := h.handle(req.Context())
		_, _ = w.Write(answer) // checked by the client
	})))
	defer server.Close()
	client := server.Client()
	id := exactlyonce.ID{Client: exactlyonce.NewClient(), Attempt: 1}
	body := bytes.Repeat([]byte{'b'}, 64)
	m.Start()
	for range n {
		id.Sequence++
		id.First = id.Sequence
		req, err := http.NewRequest(http.MethodPost, server.URL, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set(exactlyonce.Header, id.String())
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK || !bytes.Equal(answer, h.answer) {
			return fmt.Errorf("%s: %q", resp.Status, answer)
		}
	}
	m.Stop()
	client.CloseIdleConnections()
	return h.check(n)
}
