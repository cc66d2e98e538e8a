package main

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/weirflow/weir/codec"
	"github.com/weirflow/weir/delivery/deadfile"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/message"
)

// deadLetters stores the flights that were given up, with their history, as lines of the
// input. A nil deadLetters stores nothing.
type deadLetters struct {
	input string
	file  *deadfile.File[flights.Flight]
}

// openDeadLetters opens the directory of dead letters, or returns nil if dir is "".
func openDeadLetters(dir, input string) (*deadLetters, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // a nil deadLetters stores nothing
	}
	file, err := deadfile.Open(dir, codec.Func(appendLine, decodeLine))
	if err != nil {
		return nil, err
	}
	return &deadLetters{input, file}, nil
}

// take stores a flight. Its id is its position in the input, so a flight that is offered
// again after a restart has the same id.
func (d *deadLetters) take(ctx context.Context, f failure) error {
	if d == nil {
		return nil
	}
	origin := message.Origin{Source: d.input, Position: strconv.Itoa(f.Element.Line)}
	return d.file.Take(message.ContextWithMeta(ctx, message.Meta{ID: origin.ID(), Origin: origin}), f)
}

func (d *deadLetters) close() error {
	if d == nil {
		return nil
	}
	return d.file.Close()
}

// appendLine writes a flight as a line of the input in a JSON string, so that jq -r
// .payload turns the file back into an input.
func appendLine(dst []byte, f flights.Flight) ([]byte, error) {
	line, err := json.Marshal(f.InputLine())
	return append(dst, line...), err
}

// decodeLine would be for programs that replay dead letters. This one does not.
func decodeLine([]byte) (flights.Flight, error) {
	return flights.Flight{}, errors.New("replay flights with jq and -in: see README.md")
}
