package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/examples/hbase-like/internal/cli"
	"github.com/weirflow/weir/examples/hbase-like/internal/data"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

// fileInput is a CSV of flights with a position to go back to.
type fileInput struct {
	name string
	open func() (io.ReadCloser, error)
	hash string // of all of it
	rows int    // flights, about

	book   *ledger.Ledger
	file   io.Closer
	reader *flights.Reader
	at     inputPosition
	begin  int // flights before the position that it resumed from
}

var _ checkpoint.Input[flights.Flight] = (*fileInput)(nil)

// inputPosition is what a checkpoint has of the input. It counts flights rather
// than bytes: whoever resumes reads the ones before again, for the books.
type inputPosition struct {
	SHA256  string `json:"sha256"`
	Flights int    `json:"flights"`
}

// openFileInput opens a regular file, or the embedded flights for "".
func openFileInput(name string) (*fileInput, error) {
	in := &fileInput{name: name, open: func() (io.ReadCloser, error) { return os.Open(name) }}
	if name == "" {
		in.name = "flights.csv (built in)"
		in.open = func() (io.ReadCloser, error) { return io.NopCloser(data.Flights()), nil }
	} else if info, err := os.Stat(name); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("-in %s: not a regular file, which -checkpoint needs to read it again after a crash", name)
	}
	r, err := in.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }()
	hash, lines := sha256.New(), &lineCounter{}
	if _, err := io.Copy(io.MultiWriter(hash, lines), r); err != nil {
		return nil, err
	}
	in.hash, in.rows = hex.EncodeToString(hash.Sum(nil)), max(0, lines.n-1)
	in.at.SHA256 = in.hash
	if in.file, in.reader, err = in.newReader(); err != nil {
		return nil, err
	}
	return in, nil
}

func (in *fileInput) newReader() (io.Closer, *flights.Reader, error) {
	f, err := in.open()
	if err != nil {
		return nil, nil, err
	}
	r, err := flights.NewReader(in.name, f)
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, r, nil
}

// Next implements checkpoint.Input.
func (in *fileInput) Next() (flights.Flight, error) {
	f, err := in.reader.Read()
	if err == nil {
		in.book.Read(f)
		in.at.Flights++
	}
	return f, err
}

// Position implements checkpoint.Input.
func (in *fileInput) Position() []byte {
	b, _ := json.Marshal(in.at) // strings and numbers always encode
	return b
}

// Seek implements checkpoint.Input. It refuses a position in another input.
func (in *fileInput) Seek(position []byte) error {
	var to inputPosition
	if err := json.Unmarshal(position, &to); err != nil {
		return err
	}
	if to.SHA256 != in.hash {
		return fmt.Errorf("%s is not the input that the checkpoint is of: its SHA-256 is %.12s…, it was %.12s…; "+
			"a changed input needs a new -checkpoint directory", in.name, in.hash, to.SHA256)
	}
	for in.at.Flights < to.Flights {
		if _, err := in.Next(); err != nil {
			return fmt.Errorf("%s: flight %d of %d: %w", in.name, in.at.Flights+1, to.Flights, err)
		}
	}
	in.begin = to.Flights
	return nil
}

// Close implements checkpoint.Input.
func (in *fileInput) Close() error { return in.file.Close() }

type lineCounter struct{ n int }

func (c *lineCounter) Write(p []byte) (int, error) {
	c.n += bytes.Count(p, []byte("\n"))
	return len(p), nil
}

// fileOutput is the file of the enriched flights, exactly once, together with the
// flights given up: in one state, so that they cannot drift apart.
type fileOutput struct {
	file   *checkpoint.FileOutput[[]byte]
	kind   outputKind
	header []byte
	book   *ledger.Ledger
	sync   func() // waits for the side outputs
	lines  int    // written, the header aside
	before int    // flights that had come out when it resumed
}

var _ checkpoint.Output[[]byte] = (*fileOutput)(nil)

// outputKind is what must stay the same for the file to make sense.
type outputKind struct {
	Path    string         `json:"path"`
	Format  flights.Format `json:"format"`
	Ordered bool           `json:"ordered"`
}

// outputState is what a checkpoint has of the output.
type outputState struct {
	Kind    outputKind    `json:"kind"`
	Lines   int           `json:"lines"`
	GivenUp []ledger.Lost `json:"givenUp"`
	File    []byte        `json:"file"` // the state of the FileOutput
}

func newFileOutput(cfg cli.Config, in *fileInput, book *ledger.Ledger, sync func()) (*fileOutput, error) {
	path, err := filepath.Abs(cfg.Out)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("-out %s: not a regular file, which -checkpoint needs to cut it back after a crash", cfg.Out)
		}
		if source, err := os.Stat(in.name); err == nil && os.SameFile(info, source) {
			return nil, fmt.Errorf("-out %s would overwrite the input", cfg.Out)
		}
	} else if _, err := os.Stat(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("-out: %w", err)
	}
	return &fileOutput{
		file:   checkpoint.NewFileOutput(path, func(dst, line []byte) ([]byte, error) { return append(dst, line...), nil }),
		kind:   outputKind{Path: path, Format: cfg.Format, Ordered: cfg.Ordered},
		header: cfg.Format.Header(),
		book:   book,
		sync:   sync,
	}, nil
}

// Restore implements checkpoint.Output.
func (o *fileOutput) Restore(state []byte) error {
	if state == nil {
		if err := o.file.Restore(nil); err != nil {
			return err
		}
		if len(o.header) == 0 {
			return nil
		}
		return o.file.Write(o.header)
	}
	var s outputState
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	if s.Kind != o.kind {
		return fmt.Errorf("it is of other flags: the output was %v, now it is %v", s.Kind, o.kind)
	}
	o.lines, o.before = s.Lines, s.Lines+len(s.GivenUp)
	o.book.Restore(s.GivenUp)
	return o.file.Restore(s.File)
}

func (k outputKind) String() string {
	order := "unordered"
	if k.Ordered {
		order = "ordered"
	}
	return fmt.Sprintf("%s (%s, %s)", k.Path, k.Format, order)
}

// Write implements checkpoint.Output.
func (o *fileOutput) Write(line []byte) error {
	o.lines++
	return o.file.Write(line)
}

// Prepare implements checkpoint.Output. Here, at the end, the barrier has passed
// both look-ups, so what they gave up before it has come out of their side
// outputs, or is about to. What they gave up since is both in GivenUp and in
// flight in the checkpoint: ledger.Restore makes that good.
func (o *fileOutput) Prepare() ([]byte, error) {
	o.sync()
	file, err := o.file.Prepare()
	if err != nil {
		return nil, err
	}
	return json.Marshal(outputState{Kind: o.kind, Lines: o.lines, GivenUp: o.book.Lost(), File: file})
}

// Commit implements checkpoint.Output.
func (o *fileOutput) Commit(state []byte) error {
	var s outputState
	if err := json.Unmarshal(state, &s); err != nil {
		return err
	}
	return o.file.Commit(s.File)
}

// Close implements checkpoint.Output.
func (o *fileOutput) Close() error { return o.file.Close() }

// proof compares the whole output file with the whole input.
type proof struct {
	read, enriched, missing int
	problems                []string
}

// prove reads both files again. Every flight must be in the output exactly once,
// or given up; in input order, if that was asked for. It relies on nothing that
// the runs remember but on what was given up.
func prove(in *fileInput, out *fileOutput, airports []flights.Airport) (*proof, error) {
	table := make(map[string]flights.Airport, len(airports))
	for _, a := range airports {
		table[a.IATA] = a
	}
	givenUp := make(map[int]bool)
	for _, l := range out.book.Lost() {
		givenUp[l.Seq] = true
	}
	file, r, err := in.newReader()
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	f, err := os.Open(out.kind.Path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	lines.Split(scanWholeLines)

	p := &proof{}
	if header := string(out.header); header != "" && (!lines.Scan() || lines.Text() != header) {
		p.problems = append(p.problems, "the output file does not begin with its header")
		return p, lines.Err()
	}
	expected := make(map[string]int) // of an unordered output
	for {
		flight, err := r.Read()
		if err == io.EOF { //nolint:errorlint // Read returns it as it is
			break
		}
		if err != nil {
			return nil, err
		}
		p.read++
		if givenUp[flight.Seq] {
			continue
		}
		flight.Origin, flight.Destination = table[flight.Origin.IATA], table[flight.Destination.IATA]
		want := string(out.kind.Format.Line(flight))
		switch {
		case !out.kind.Ordered:
			expected[want]++
		case !lines.Scan():
			p.missing++
		case lines.Text() != want:
			p.problems = append(p.problems, fmt.Sprintf("flight %d of the output is not that of line %d of the input: %q",
				p.enriched+1, flight.Line, lines.Text()))
			return p, nil // the rest would only repeat it
		default:
			p.enriched++
		}
	}
	for lines.Scan() {
		if expected[lines.Text()] == 0 {
			p.problems = append(p.problems, fmt.Sprintf("too often in the output, or not of the input: %q", lines.Text()))
			return p, nil
		}
		expected[lines.Text()]--
		p.enriched++
	}
	for _, n := range expected {
		p.missing += n
	}
	return p, lines.Err()
}

// scanWholeLines splits into lines with their line ends.
func scanWholeLines(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i+1], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}
