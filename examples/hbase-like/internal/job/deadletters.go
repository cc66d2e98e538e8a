package job

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strconv"

	"github.com/weirflow/weir/asyncop"
	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/ext/sqlite"
	"github.com/weirflow/weir/message"
)

// deadLetters keeps the flights that were given up, each with its history, as the dead
// letters of a queue in a SQLite file. If it is nil, it discards them.
type deadLetters struct {
	input  string
	engine *sqlite.Engine
	queue  *delivery.Queue[flights.Flight]
}

// openDeadLetters opens the file of the dead letters. It returns nil if file is empty.
func openDeadLetters(file, input string) (*deadLetters, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // a nil one keeps none
	}
	engine, err := sqlite.Open(context.Background(), file, sqlite.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	queue := delivery.NewQueue[flights.Flight](engine, "flights", delivery.WithCodec(codec.Func(appendLine, decodeLine)))
	return &deadLetters{input, engine, queue}, nil
}

// take stores a flight. Its id is its position in the input, so a flight that is given up
// again after a restart is stored once.
func (d *deadLetters) take(ctx context.Context, f asyncop.Failure[flights.Flight]) error {
	if d == nil {
		return nil
	}
	origin := message.Origin{Source: d.input, Position: strconv.Itoa(f.Element.Line)}
	return d.queue.TakeFailure(message.ContextWithMeta(ctx, message.Meta{ID: origin.ID(), Origin: origin}), f)
}

func (d *deadLetters) close() error {
	if d == nil {
		return nil
	}
	return d.engine.Close()
}

// appendLine writes a flight as a line of the input, in a JSON string.
func appendLine(dst []byte, f flights.Flight) ([]byte, error) {
	line, err := json.Marshal(f.InputLine())
	return append(dst, line...), err
}

// decodeLine is not called, since no worker reads the queue.
func decodeLine([]byte) (flights.Flight, error) {
	return flights.Flight{}, errors.New("process the flights again with jq and -in: see README.md")
}
