package jetstream

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestOpen_ExplainsMissingPlace(t *testing.T) {
	refusal := &jetstream.APIError{Code: 400, ErrorCode: 10005, Description: "no suitable peers for placement"}
	c := StreamConfig("weir")
	c.Replicas, c.Placement = 3, &jetstream.Placement{Cluster: "west", Tags: []string{"ssd"}}
	err := noPlace(c, refusal)
	const want = `the servers that are up have no place for 3 replicas (WithReplicas) in the cluster "west" on servers with the tags ["ssd"] (Placement in WithStreamConfig): `
	if !strings.HasPrefix(err.Error(), want) || !errors.Is(err, error(refusal)) || !isUnplaced(err) {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		set := newSettings("Open", []Option{WithLogger(slog.New(slog.NewTextHandler(&log, nil)))})
		ended := set.again(t.Context(), func(context.Context) error { return err })
		if !errors.Is(ended, error(refusal)) || !strings.Contains(ended.Error(), "waited 30s for more servers to join") {
			t.Fatal(ended)
		}
		if !strings.Contains(log.String(), "too few servers for the stream") || !strings.Contains(log.String(), "ssd") {
			t.Fatal(log.String())
		}
	})
}

func TestOpen_HowLongItWaits(t *testing.T) {
	unplaced := &jetstream.APIError{Code: 400, ErrorCode: 10005, Description: "no suitable peers for placement"}
	for name, of := range map[string]struct {
		err         error
		least, most time.Duration
	}{
		"no server":       {nats.ErrNoServers, openWait, openWait + lastWait},
		"no leader":       {&jetstream.APIError{Code: 503, ErrorCode: 10008}, openWait, openWait + lastWait},
		"no place":        {unplaced, placeWait, placeWait + lastWait},
		"another refusal": {&jetstream.APIError{Code: 400, ErrorCode: 10052}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				err := newSettings("Open", []Option{WithLogger(slog.New(slog.DiscardHandler))}).again(t.Context(), func(context.Context) error { return of.err })
				if waited := time.Since(begun); !errors.Is(err, of.err) || waited < of.least || waited > of.most {
					t.Fatal(err, "after", waited)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := newSettings("Open", []Option{WithLogger(slog.New(slog.DiscardHandler))}).again(t.Context(), func(context.Context) error {
			switch waited := time.Since(begun); {
			case waited < placeWait/2:
				return unplaced
			case waited < time.Minute:
				return nats.ErrNoServers
			case waited < time.Minute+placeWait/2:
				return unplaced
			}
			return nil
		})
		if err != nil {
			t.Fatal("servers that go and come back, and then hear of each other:", err)
		}
	})
}
