package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/reugn/go-streams/extension"
	streamsflow "github.com/reugn/go-streams/flow"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/flow"
)

func price(ctx context.Context, n int) (int, error) { // a placeholder for a call to a service
	if n%10 == 9 {
		return 0, errors.New("unknown product")
	}
	return 100 * n, nil
}

func save(ctx context.Context, window []int) (int, error) { return len(window), nil } // a write to a database

func main() {
	signals, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	source, cancelSource := context.WithCancelCause(signals) // the signal ends the source only
	products := make(chan any)
	failures := make(chan any)
	sent := int64(0)
	go func() {
		defer close(products)
		for ; source.Err() == nil; sent++ {
			products <- int(sent)
		}
	}()
	prices := asyncop.UnorderedWait(asyncop.Blocking(price), time.Second, 100, asyncop.WithUpstreamCancel(cancelSource),
		asyncop.WithFailureSink(func(ctx context.Context, f asyncop.Failure[int]) error { failures <- f.Element; return nil }))
	store := asyncop.OrderedWait(asyncop.Blocking(save), 5*time.Second, 4, asyncop.WithUpstreamCancel(cancelSource))
	saved := int64(0)
	sink := flow.NewSink(func(n int) error { saved += int64(n); return nil }, flow.WithUpstreamCancel(cancelSource))
	var side sync.WaitGroup
	failed := flow.NewSink(func(int) error { return nil })
	side.Go(func() { extension.NewChanSource(failures).Via(streamsflow.NewPassThrough()).To(failed) })
	fmt.Println("running")
	extension.NewChanSource(products).Via(prices).Via(streamsflow.NewBatch[int](50, time.Second)).Via(store).To(sink)
	err := errors.Join(prices.Wait(), store.Wait(), sink.Err())
	close(failures)
	side.Wait()
	discarded := prices.Stats().Discarded + prices.Stats().Abandoned
	log.Println("all accounted for:", sent == saved+failed.Written()+discarded, "error:", err)
}
