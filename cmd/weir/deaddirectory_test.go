package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/ext/sqlite"
	formats "github.com/weirflow/weir/internal/testing/golden"
	"github.com/weirflow/weir/internal/vfs"
	"github.com/weirflow/weir/message"
)

func (r result) ok(t *testing.T) result {
	t.Helper()
	require.Equal(t, 0, r.status, r.stderr)
	return r
}

// writtenDirectory copies testdata/deadfile, which package deadfile wrote in its last
// version: a replay was closed after one of its messages was acknowledged, one nacked and
// one rejected, a line of replay.jsonl was damaged, and a crash has torn dead.jsonl.
func writtenDirectory(t *testing.T) (dir, dead string) {
	t.Helper()
	dir = t.TempDir()
	dead = filepath.Join(dir, "dead letters")
	require.NoError(t, os.CopyFS(dead, os.DirFS("testdata/deadfile")))
	return dir, dead
}

// Law W4.
func TestDeadImport_Directory(t *testing.T) {
	dir, dead := writtenDirectory(t)
	before := filesOf(t, dead)
	run := func(args ...string) result { return execute(t, command(t, dir, args...)) }

	r := run("dead", "import", "dead letters", "--queue", "orders-dead")
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "--create")
	require.NoFileExists(t, filepath.Join(dir, "orders.db"))

	r = run("dead", "import", "dead letters", "--queue", "orders-dead", "--create").ok(t)
	require.Equal(t, "5 messages read: 5 new\n", r.stdout)
	require.Contains(t, r.stderr, "ends with 29 bytes of a line that a crash cut short")
	require.Contains(t, r.stderr, filepath.Join("dead letters", "damaged.jsonl"))
	exported := run("dead", "export").ok(t).stdout
	var ids []string
	for line := range strings.Lines(exported) {
		var m store.Message
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		ids = append(ids, fmt.Sprintf("%s %s %d %q %q", m.Meta.ID, m.Cause, m.Meta.Merges, m.Meta.LastError, m.Payload))
	}
	assert.ElementsMatch(t, []string{
		`again permanent 1 "refused again" "{\"n\":3}"`, // the newer line
		`later exhausted 0 "error of later" "{\"n\":6}"`,
		`last-batch exhausted 0 "error of last-batch" "\"text\""`,
		`waits exhausted 0 "error of waits" "{\"n\":2}"`,
		`open unsafe to repeat 0 "error of open" "\xff text"`,
	}, ids, "not the one that is done, nor the damaged one")
	require.NotContains(t, exported, "crc")
	require.NotContains(t, exported, `"batch":`)

	again := run("dead", "import", "dead letters", "--queue", "orders-dead").ok(t)
	require.Equal(t, "5 messages read: 0 new, 5 there already (--replace replaces them)\n", again.stdout)
	require.Equal(t, before, filesOf(t, dead), "the import changes nothing")

	db, err := sqlite.OpenDB(t.Context(), filepath.Join(dir, "orders.db"))
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, sqlite.New(db).Migrate(t.Context()), "by the program, later")
}

func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		if e.Name() != deadLockName { // has the process that locked it last
			files[e.Name()] = string(b)
		}
	}
	return files
}

// One of the files is enough.
func TestDeadImport_PartOfADirectory(t *testing.T) {
	for name, c := range map[string]struct {
		removed []string
		read    string
	}{
		"only dead letters":       {[]string{replayName, replayDoneName}, "3 messages read: 3 new\n"},
		"only a replay":           {[]string{deadLettersName}, "2 messages read: 2 new\n"},
		"a replay without record": {[]string{deadLettersName, replayDoneName}, "4 messages read: 4 new\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, dead := writtenDirectory(t)
			for _, file := range c.removed {
				require.NoError(t, os.Remove(filepath.Join(dead, file)))
			}
			r := execute(t, command(t, dir, "dead", "import", "dead letters", "--queue", "orders-dead", "--create")).ok(t)
			require.Equal(t, c.read, r.stdout)
		})
	}
}

// A crash, after a rejected message of a replay was appended to dead.jsonl and before its
// mark reached replay.done, leaves the message in both files. The newer line is imported.
func TestDeadImport_MessageInBothFiles(t *testing.T) {
	dir, dead := writtenDirectory(t)
	require.NoError(t, os.Remove(filepath.Join(dead, replayDoneName)))
	for _, args := range [][]string{{"--create"}, {"--replace"}} {
		execute(t, command(t, dir, append([]string{"dead", "import", "dead letters", "--queue", "orders-dead"}, args...)...)).ok(t)
		var merges []int
		for line := range strings.Lines(execute(t, command(t, dir, "dead", "export")).ok(t).stdout) {
			var m store.Message
			require.NoError(t, json.Unmarshal([]byte(line), &m))
			if m.Meta.ID == "again" {
				merges = append(merges, m.Meta.Merges)
			}
		}
		require.Equal(t, []int{1}, merges, "%v", args)
	}
}

// A file that is there but cannot be read is an error: the directory is deleted after the
// import.
func TestDeadImport_DanglingLink(t *testing.T) {
	for _, name := range []string{deadLettersName, replayName, replayDoneName} {
		t.Run(name, func(t *testing.T) {
			dir, dead := writtenDirectory(t)
			require.NoError(t, os.Remove(filepath.Join(dead, name)))
			err := os.Symlink("moved away", filepath.Join(dead, name))
			if err != nil {
				t.Skip("this system does not make symbolic links: ", err)
			}
			r := execute(t, command(t, dir, "dead", "import", "dead letters", "--queue", "orders-dead", "--create"))
			require.Equal(t, 1, r.status, r.stdout)
			require.Contains(t, r.stderr, name)
		})
	}
}

// readOnlyFiles is a read-only file system.
type readOnlyFiles struct{ vfs.FS }

func (readOnlyFiles) Lock(name string) (vfs.Lock, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EROFS}
}

// A directory in a snapshot, or on a file system that is mounted read-only, is read
// without its lock, and the user gets a note.
func TestOpenDeadDirectory_ReadOnly(t *testing.T) {
	_, dead := writtenDirectory(t)
	var notes strings.Builder
	d, err := openDeadDirectory(readOnlyFiles{vfs.OS()}, dead, func(format string, args ...any) { fmt.Fprintf(&notes, format+"\n", args...) })
	require.NoError(t, err)
	defer d.close()
	require.Contains(t, notes.String(), dead+" is on a read-only file system and is read without its lock")
	read := 0
	for _, err := range d.messages() {
		require.NoError(t, err)
		read++
	}
	require.Equal(t, 5, read)
}

// A line that lacks only its end is imported, and dead.jsonl can be imported as a file.
func TestDeadImport_LineWithoutEnd(t *testing.T) {
	dir, dead := writtenDirectory(t)
	path := filepath.Join(dead, deadLettersName)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, b[:bytes.LastIndexByte(b, '\n')], 0o600))
	r := execute(t, command(t, dir, "dead", "import", "dead letters", "--queue", "orders-dead", "--create")).ok(t)
	require.Equal(t, "5 messages read: 5 new\n", r.stdout)
	require.NotContains(t, r.stderr, "torn")

	r = execute(t, command(t, dir, "dead", "import", path, "--queue", "other-dead")).ok(t)
	require.Equal(t, "3 messages read: 3 new\n", r.stdout)
	require.NotContains(t, execute(t, command(t, dir, "dead", "export", "--queue", "other-dead")).ok(t).stdout, "crc")
}

// The sound lines are imported, and the command fails.
func TestDeadImport_DamagedDirectory(t *testing.T) {
	dir, dead := writtenDirectory(t)
	path := filepath.Join(dead, deadLettersName)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[100] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
	r := execute(t, command(t, dir, "dead", "import", "dead letters", "--queue", "orders-dead", "--create"))
	require.Equal(t, 1, r.status)
	require.Equal(t, "4 messages read: 4 new\n", r.stdout, "the rejected message is done in the replay")
	require.Contains(t, r.stderr, "is damaged: 259 bytes at byte 0 cannot be read")
	require.Contains(t, r.stderr, "has damaged parts, 1 in all")
}

func TestDeadImport_WrongDirectory(t *testing.T) {
	dir, dead := writtenDirectory(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty"), 0o700))
	r := execute(t, command(t, dir, "dead", "import", "empty", "--queue", "orders-dead", "--create"))
	assert.Equal(t, 1, r.status)
	assert.Contains(t, r.stderr, "empty is not a directory of dead letters: it has neither dead.jsonl nor replay.jsonl")

	lock, err := vfs.OS().Lock(filepath.Join(dead, deadLockName))
	require.NoError(t, err)
	r = execute(t, command(t, dir, "dead", "import", "dead letters", "--queue", "orders-dead", "--create"))
	assert.Equal(t, 1, r.status)
	assert.Contains(t, r.stderr, "dead letters is in use: stop the program that writes it")
	require.NoError(t, lock.Close())

	r = execute(t, command(t, dir, "dead", "list", "--db", "file:dead letters"))
	assert.Equal(t, 2, r.status)
	assert.Contains(t, r.stderr, "weir dead import --db sqlite:dead.db --create --queue orders-dead dead letters")
}

// Two lines of a file of dead letters, and of the record of a replay: a line that is done
// and a line that waits (law W4).
func TestFormatsOfADeadDirectory(t *testing.T) {
	lines := formats.Read(t, "dead.jsonl")
	var found []store.Message
	scan := deadScan{
		found:   func(_ []byte, m store.Message) bool { found = append(found, m); return true },
		damaged: func(p deadPiece) { t.Errorf("damaged: %v", p) },
		torn:    func(p deadPiece) { t.Errorf("torn: %v", p) },
	}
	require.NoError(t, scan.read(bytes.NewReader(lines)))
	require.Equal(t, []store.Message{formats.Message(), formats.Message()}, found)

	done := bytes.Split(formats.Read(t, "replay.done"), []byte("\n"))
	mark, ok := parseDone(done[0])
	require.True(t, ok)
	require.Equal(t, deadMarkOf([]byte("a line")), mark)
	_, ok = parseDone(done[1])
	require.False(t, ok, "it waits")
}

// deadLine returns a line as package deadfile wrote it.
func deadLine(t testing.TB, batch int64, m store.Message) []byte {
	t.Helper()
	body, err := m.MarshalJSON()
	require.NoError(t, err)
	line := fmt.Appendf(nil, `{"batch":%d,%s`, batch, bytes.TrimSuffix(bytes.TrimPrefix(body, []byte("{")), []byte("}")))
	return fmt.Appendf(line, "%s%08x%s\n", deadCRCBegin, crc32.Checksum(line, castagnoli), deadCRCEnd)
}

func oneDeadLetter() store.Message {
	return store.Message{Cause: store.Exhausted, Meta: message.Meta{ID: "a"}, Payload: []byte(`{"n":1}`)}
}

// Every flipped bit and every prefix is found.
func TestParseDeadLine_Damaged(t *testing.T) {
	raw := bytes.TrimSuffix(deadLine(t, 7, oneDeadLetter()), []byte("\n"))
	batch, m, err := parseDeadLine(raw)
	require.NoError(t, err)
	require.EqualValues(t, 7, batch)
	require.Equal(t, oneDeadLetter(), m)
	for i := range raw {
		_, _, err := parseDeadLine(raw[:i])
		require.Error(t, err)
		for bit := range 8 {
			damaged := bytes.Clone(raw)
			damaged[i] ^= 1 << bit
			_, _, err := parseDeadLine(damaged)
			require.Error(t, err, "%s", damaged)
		}
	}
	_, _, err = parseDeadLine(bytes.TrimSpace(deadLine(t, -1, oneDeadLetter())))
	require.Error(t, err)
}

// Damaged parts are distinguished from parts torn by a crash, and a line that is too long
// is not kept in memory.
func TestDeadScan(t *testing.T) {
	one := deadLine(t, 0, oneDeadLetter())
	two := append(bytes.Clone(one), deadLine(t, int64(len(one)), oneDeadLetter())...)
	long := append(bytes.Repeat([]byte("x"), maxDeadLine+1), '\n')
	for name, c := range map[string]struct {
		file                 []byte
		found, damaged, torn int
	}{
		"empty":              {},
		"two batches":        {file: two, found: 2},
		"end torn":           {file: two[:len(two)-10], found: 1, torn: 1},
		"zeros at the end":   {file: append(bytes.Clone(one), append(make([]byte, 50), '\n')...), found: 1, torn: 1},
		"zeros before":       {file: append(append(make([]byte, len(one)-1), '\n'), two[len(one):]...), found: 1, damaged: 1},
		"text at the end":    {file: append(bytes.Clone(one), "text\n"...), found: 1, damaged: 1},
		"a line too long":    {file: append(bytes.Clone(one), long...), found: 1, damaged: 1},
		"without a line end": {file: two[:len(two)-1], found: 2},
	} {
		t.Run(name, func(t *testing.T) {
			found, damaged, torn := 0, 0, 0
			scan := deadScan{
				found:   func([]byte, store.Message) bool { found++; return true },
				damaged: func(deadPiece) { damaged++ },
				torn:    func(deadPiece) { torn++ },
			}
			require.NoError(t, scan.read(bytes.NewReader(c.file)))
			require.Equal(t, []int{c.found, c.damaged, c.torn}, []int{found, damaged, torn})
		})
	}
}

// Each line that can be read by itself is found, in order, and the rest is reported.
func FuzzDeadScan(f *testing.F) {
	one := deadLine(f, 0, oneDeadLetter())
	two := append(bytes.Clone(one), deadLine(f, int64(len(one)), oneDeadLetter())...)
	f.Add(two)
	f.Add(two[:len(two)-10])
	f.Add(append(bytes.Repeat([]byte{0}, len(one)), two[len(one):]...))
	f.Add([]byte(`{"batch":0,"crc":"00000000"}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want, got [][]byte
		rest := 0
		for line := range bytes.Lines(b) {
			raw := bytes.TrimSuffix(line, []byte("\n"))
			if _, _, err := parseDeadLine(raw); err == nil {
				want = append(want, raw)
			} else {
				rest++
			}
		}
		scan := deadScan{
			found: func(raw []byte, m store.Message) bool {
				require.NoError(t, m.Validate())
				got = append(got, bytes.Clone(raw))
				return true
			},
			damaged: func(deadPiece) { rest-- },
			torn:    func(deadPiece) { rest-- },
		}
		require.NoError(t, scan.read(bytes.NewReader(b)))
		require.Equal(t, want, got)
		require.Zero(t, rest)
	})
}

// Any text accepted by parseDone is written in the same way, except for upper case.
func FuzzParseDone(f *testing.F) {
	f.Add([]byte("5d4e3c586d5ae6ca86c46dcb"))
	f.Add([]byte("c77c7d27f717651d3a1c4902 2127323110000000000"))
	f.Fuzz(func(t *testing.T, b []byte) {
		mark, ok := parseDone(b)
		if ok {
			require.Equal(t, strings.ToLower(string(b)), fmt.Sprintf("%x", mark[:]))
		}
	})
}
