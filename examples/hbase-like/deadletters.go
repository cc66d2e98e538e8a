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

// deadLetters are the flights that were given up, each with its history, as lines of the
// input. A nil one takes none.
type deadLetters struct {
	input string
	file  *deadfile.File[flights.Flight]
}

// openDeadLetters opens the directory of the dead letters; nil if there is none.
func openDeadLetters(dir, input string) (*deadLetters, error) {
	if dir == "" {
		return nil, nil //nolint:nilnil // a nil one takes none
	}
	file, err := deadfile.Open(dir, codec.Func(appendLine, decodeLine))
	if err != nil {
		return nil, err
	}
	return &deadLetters{input, file}, nil
}

// take stores a flight. The id is its place in the input, so one that is offered again
// after a restart has the same.
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

// appendLine writes a flight as a line of the input, in a JSON string: jq -r .payload
// makes an input of the file.
func appendLine(dst []byte, f flights.Flight) ([]byte, error) {
	line, err := json.Marshal(f.InputLine())
	return append(dst, line...), err
}

// decodeLine is for a replay by a program, which this one is not.
func decodeLine([]byte) (flights.Flight, error) {
	return flights.Flight{}, errors.New("replay flights with jq and -in: see README.md")
}
