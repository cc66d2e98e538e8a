package deadfile_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/deadfile"
)

// What a service cannot do goes to the dead letters. When the service is mended, they are replayed.
func Example() {
	dir, err := os.MkdirTemp("", "dead")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	dead, err := deadfile.Open(dir, codec.JSON[string]())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = dead.Close() }()

	ctx := context.Background()
	charge := asyncop.Blocking(func(_ context.Context, card string) (string, error) {
		if card == "5105" {
			return "", errors.New("acquirer is down")
		}
		return "charged " + card, nil
	})
	op := asyncop.OrderedWait(charge, time.Second, 10,
		asyncop.WithFailureSink(dead.Take), asyncop.WithLogger(slog.New(slog.DiscardHandler)))
	for reply, err := range op.Results(slices.Values([]string{"4111", "5105", "4242"})) {
		fmt.Println(reply, err)
	}

	replay, err := dead.Replay()
	if err != nil {
		fmt.Println(err)
		return
	}
	for {
		messages, err := replay.Receive(ctx, 100)
		if err == io.EOF {
			break
		}
		for _, m := range messages {
			fmt.Println("again:", m.Value, "after", m.Meta().LastError)
			m.Ack()
		}
	}
	fmt.Println(replay.Close(ctx))
	// Output:
	// charged 4111 <nil>
	// charged 4242 <nil>
	// again: 5105 after acquirer is down
	// <nil>
}
