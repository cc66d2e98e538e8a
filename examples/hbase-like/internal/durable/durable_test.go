package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/weirflow/weir/checkpoint"
	"github.com/weirflow/weir/checkpoint/checkpointtest"
	"github.com/weirflow/weir/examples/hbase-like/internal/durable"
	"github.com/weirflow/weir/examples/hbase-like/internal/flights"
	"github.com/weirflow/weir/examples/hbase-like/internal/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const header = "date,delay,distance,origin,destination\n"

func line(origin, destination string) string {
	return "2001/01/01 12:00,0,100," + origin + "," + destination + "\n"
}

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

func open(t *testing.T, name string) (*durable.Input, *ledger.Ledger) {
	t.Helper()
	book := ledger.New(true, nil)
	in, err := durable.OpenInput(name, 0, 1, book)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, in.Close()) })
	return in, book
}

func TestInput(t *testing.T) {
	name := file(t, header+line("ATL", "DTW")+line("DTW", "LAX")+line("LAX", "ATL"))
	in, _ := open(t, name)
	assert.Equal(t, 3, in.Total())
	assert.Equal(t, name, in.Name())
	_, err := in.Next()
	require.NoError(t, err)
	position := in.Position()

	again, book := open(t, name)
	require.NoError(t, again.Seek(position))
	assert.Equal(t, 1, again.Resumed())
	f, err := again.Next()
	require.NoError(t, err)
	assert.Equal(t, []any{1, 3, "DTW"}, []any{f.Seq, f.Line, f.Origin.IATA})
	_, err = again.Next()
	require.NoError(t, err)
	_, err = again.Next()
	require.ErrorIs(t, err, io.EOF)
	read, _ := book.Progress()
	assert.Equal(t, 3, read, "those before the position are in the books, too")

	builtIn, _ := open(t, "")
	assert.Equal(t, 20_000, builtIn.Total())
	require.ErrorContains(t, builtIn.Seek(position), "flights.csv (built in) is not the input that the checkpoint is of")
	require.Error(t, builtIn.Seek([]byte("{")))
}

// The parts together are the whole input. In each part the flights count from 0 and keep
// their line numbers.
func TestParts(t *testing.T) {
	name := file(t, header+line("ATL", "DTW")+line("DTW", "LAX")+line("LAX", "ATL")+line("ATL", "LAX")+line("LAX", "DTW"))
	for n := 1; n <= 7; n++ { // some parts are empty
		lines := []int{}
		for part := range n {
			book := ledger.New(true, nil)
			in, err := durable.OpenInput(name, part, n, book)
			require.NoError(t, err)
			positions := [][]byte{in.Position()}
			var fs []flights.Flight
			f, err := in.Next()
			for ; err == nil; f, err = in.Next() {
				assert.Equal(t, len(fs), f.Seq)
				lines = append(lines, f.Line)
				fs, positions = append(fs, f), append(positions, in.Position())
			}
			require.ErrorIs(t, err, io.EOF)
			require.Len(t, fs, in.Total())
			require.NoError(t, in.Close())
			for i, position := range positions {
				again, err := durable.OpenInput(name, part, n, ledger.New(true, nil))
				require.NoError(t, err)
				require.NoError(t, again.Seek(position))
				f, err := again.Next()
				if i == len(fs) {
					require.ErrorIs(t, err, io.EOF)
				} else {
					require.NoError(t, err)
					assert.Equal(t, fs[i], f)
				}
				require.NoError(t, again.Close())
			}
		}
		assert.Equal(t, []int{2, 3, 4, 5, 6}, lines)
	}
}

func TestInputsThatAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                            ":1: empty",
		header + "2001,0,0,ATL,DTW\n": `:2: column "date"`,
		header + line("ATL", "DTW") + "2001/01/01 12:00\n": ":3: wrong number of fields",
	} {
		name := file(t, text)
		_, err := durable.OpenInput(name, 0, 1, nil)
		require.ErrorContains(t, err, name+want)
	}
	_, err := durable.OpenInput(os.DevNull, 0, 1, nil)
	require.ErrorContains(t, err, "not a regular file")
	_, err = durable.OpenInput("no such file", 0, 1, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestInputFollowsTheRules(t *testing.T) {
	name := file(t, header+line("ATL", "DTW")+line("DTW", "LAX")+line("LAX", "ATL"))
	checkpointtest.RunInput(t, func(t *testing.T) checkpoint.Input[flights.Flight] {
		in, err := durable.OpenInput(name, 0, 1, ledger.New(true, nil))
		require.NoError(t, err)
		return in
	}, nil)
}

func TestOutputFollowsTheRules(t *testing.T) {
	header, source := flights.CSV.Header(), file(t, header)
	checkpointtest.RunOutput(t, func(t *testing.T) checkpointtest.Outlet[[]byte] {
		name := filepath.Join(t.TempDir(), "out")
		return checkpointtest.Outlet[[]byte]{
			Open: func() (checkpoint.Output[[]byte], error) {
				in, _ := open(t, source)
				return durable.NewOutput(name, flights.CSV, true, in)
			},
			Visible: func() ([][]byte, error) {
				b, err := os.ReadFile(name)
				lines := bytes.SplitAfter(bytes.TrimPrefix(b, header), []byte("\n"))
				return lines[:len(lines)-1], err
			},
		}
	}, func(i int) []byte { return fmt.Appendln(nil, "flight", i) }, bytes.Equal)
}

// The proof detects each kind of wrong output.
func TestProof(t *testing.T) {
	airports := []flights.Airport{{IATA: "ATL", Name: "Atlanta"}, {IATA: "DTW", Name: "Detroit"}, {IATA: "LAX", Name: "Los Angeles"}}
	want := string(flights.CSV.Header())
	var rows []string
	for _, pair := range [][2]int{{0, 1}, {1, 2}, {2, 0}} {
		row := flights.Flight{Distance: 100, Origin: airports[pair[0]], Destination: airports[pair[1]]}
		row.Departure = row.Departure.AddDate(2000, 0, 0).Add(12 * 60 * 60 * 1e9)
		rows = append(rows, string(flights.CSV.Line(row)))
	}
	whole := want + strings.Join(rows, "")
	for name, c := range map[string]struct {
		output    string
		lost      []ledger.Lost
		ordered   string // the problem, or "missing", or ""
		unordered string
	}{
		"right":              {output: whole},
		"reordered":          {output: want + rows[1] + rows[0] + rows[2], ordered: "flight 1 of the output is not that of line 2 of the input"},
		"one missing":        {output: want + rows[0] + rows[1], ordered: "missing", unordered: "missing"},
		"one given up":       {output: want + rows[0] + rows[2], lost: []ledger.Lost{{Seq: 1}}},
		"given up and there": {output: whole, lost: []ledger.Lost{{Seq: 1}}, ordered: "flight 2 of the output", unordered: "too often in the output"},
		"twice":              {output: whole + rows[2], ordered: "too often in the output", unordered: "too often in the output"},
		"torn":               {output: whole[:len(whole)-1], ordered: "flight 3 of the output", unordered: "too often in the output"},
		"changed":            {output: strings.Replace(whole, "Detroit", "Chicago", 1), ordered: "flight 1 of the output", unordered: "too often in the output"},
		"no header":          {output: strings.Join(rows, ""), ordered: "does not begin with its header", unordered: "does not begin with its header"},
		"empty":              {output: "", ordered: "does not begin with its header", unordered: "does not begin with its header"},
	} {
		for _, ordered := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				in, book := open(t, file(t, header+line("ATL", "DTW")+line("DTW", "LAX")+line("LAX", "ATL")))
				var err error
				for err == nil {
					_, err = in.Next()
				}
				book.Restore(c.lost)
				out, err := durable.NewOutput(file(t, c.output), flights.CSV, ordered, in)
				require.NoError(t, err)
				p, err := durable.Prove(in, out, airports)
				require.NoError(t, err)
				problem := c.unordered
				if ordered {
					problem = c.ordered
				}
				switch problem {
				case "":
					assert.Equal(t, &durable.Proof{Read: 3, Enriched: 3 - len(c.lost)}, p)
				case "missing":
					assert.Equal(t, &durable.Proof{Read: 3, Enriched: 2, Missing: 1}, p)
				default:
					require.Len(t, p.Problems, 1)
					assert.Contains(t, p.Problems[0], problem)
				}
			})
		}
	}
}

// The state contains the flights given up before the barrier, and both they and the lines
// survive a crash.
func TestOutput(t *testing.T) {
	text := header + line("ATL", "DTW") + line("XQQ", "LAX")
	name := filepath.Join(t.TempDir(), "out")
	in, book := open(t, file(t, text))
	enriched, err := in.Next()
	require.NoError(t, err)
	lost, err := in.Next()
	require.NoError(t, err)
	out, err := durable.NewOutput(name, flights.CSV, true, in)
	require.NoError(t, err)
	require.NoError(t, out.FreshStart(t.Context()))
	require.NoError(t, out.Write(t.Context(), flights.CSV.Line(enriched)))
	book.GivenUp(lost, errors.New("nowhere"))
	state, err := out.Prepare(t.Context())
	require.NoError(t, err)
	require.NoError(t, out.Write(t.Context(), []byte("after the checkpoint")))
	require.NoError(t, out.Close())

	again, book := open(t, in.Name())
	require.NoError(t, again.Seek(in.Position()))
	out, err = durable.NewOutput(name, flights.CSV, true, again)
	require.NoError(t, err)
	require.NoError(t, out.Restore(t.Context(), state))
	assert.Equal(t, 2, out.Resumed())
	assert.Equal(t, []ledger.Lost{{Seq: 1, Line: 3, Airport: "XQQ", Why: "nowhere"}}, book.Lost())
	want := string(flights.CSV.Header()) + string(flights.CSV.Line(enriched))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, want, string(b))

	require.NoError(t, out.Write(t.Context(), []byte("more\n")))
	state, err = out.Prepare(t.Context())
	require.NoError(t, err)
	require.NoError(t, out.Commit(t.Context(), state))
	require.NoError(t, out.Close())
	b, err = os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, want+"more\n", string(b))
	names, err := filepath.Glob(name + "*")
	require.NoError(t, err)
	assert.Equal(t, []string{name}, names, "no parts are left")
}

// A state that does not fit is refused, and the file is unchanged.
func TestOutputOfOtherFlags(t *testing.T) {
	in, _ := open(t, file(t, header))
	name := file(t, "precious")
	out, err := durable.NewOutput(name, flights.CSV, true, in)
	require.NoError(t, err)
	require.ErrorContains(t, out.Restore(t.Context(), []byte(`{"kind":{"path":"x","format":"csv"}}`)), "they were -out x -format csv -mode unordered, now they are -out "+name)
	require.Error(t, out.Restore(t.Context(), []byte("{")))
	require.ErrorContains(t, out.FreshStart(t.Context()), "is not empty")
	require.Error(t, out.Commit(t.Context(), []byte("{")))
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	assert.Equal(t, "precious", string(b))

	_, err = durable.NewOutput(in.Name(), flights.CSV, true, in)
	require.ErrorContains(t, err, "would overwrite the input")
	_, err = durable.NewOutput(filepath.Join(t.TempDir(), "no", "such"), flights.CSV, true, in)
	require.ErrorIs(t, err, os.ErrNotExist)
}
