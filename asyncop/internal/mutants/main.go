// Command mutants checks that the tests notice when a law of DESIGN.md is broken. A
// mutant is a small change of package core, call or drive that breaks a law. The list is
// in list.go.
//
//	go run ./asyncop/internal/mutants [-run regexp]
//
// For each mutant, it runs the tests of the changed package and, if they pass, the tests
// of the whole operator in asyncop/internal/tests, beginning with the directory of the
// law. It prints the test that fails, and changes no file. The exit status is 1 if a
// mutant is not caught or does not fit the code, or if a test fails without a mutant.
//
// The tests are compiled once, with all mutants in them, which is faster: see schema.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

const root = "github.com/weirflow/weir/asyncop"

// mutant is a change that breaks a law.
type mutant struct {
	name string // the fault
	law  string
	file string // in asyncop/internal
	old  string // occurs once in the file, in a function
	new  string
}

func (m mutant) String() string { return m.law + " " + m.file + ": " + m.name }

func main() {
	only := flag.String("run", "", "only mutants whose law, file or name matches this regular expression")
	flag.Parse()
	wanted, err := regexp.Compile(*only)
	if err == nil {
		err = run(wanted)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

var (
	errNotCaught = errors.New("not all mutants are caught")
	errNoMutant  = errors.New("it would seem to catch all")
)

func run(wanted *regexp.Regexp) (err error) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", root).Output()
	if err != nil {
		return fmt.Errorf("directory of asyncop: %w", err)
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	t := tests{strings.TrimSpace(string(dir)), tmp, map[string]bool{}}
	if err := t.overlay(); err != nil {
		return err
	}
	some, escaped := 0, 0
	for i, m := range mutants {
		if !wanted.MatchString(m.String()) {
			continue
		}
		some++
		test, err := t.catching(i)
		if err != nil {
			return err
		}
		if test == "" {
			escaped++
			fmt.Printf("%v: NOT CAUGHT\n", m)
			continue
		}
		fmt.Printf("%v: caught by %s\n", m, test)
	}
	fmt.Printf("%d mutants, %d not caught\n", some, escaped)
	if some == 0 || escaped > 0 {
		return errNotCaught
	}
	return nil
}

// tests has the compiled tests of packages, by path below asyncop.
type tests struct {
	dir      string          // of asyncop
	tmp      string          // directory for generated files
	compiled map[string]bool // by package
}

// overlay writes the files with mutants, for the go command.
func (t tests) overlay() error {
	files := map[string][]int{} // by file
	for i, m := range mutants {
		files[m.file] = append(files[m.file], i)
	}
	replace := map[string]string{}
	put := func(file, text string) error {
		changed := filepath.Join(t.tmp, strings.ReplaceAll(file, "/", "_"))
		replace[filepath.Join(t.dir, "internal", filepath.FromSlash(file))] = changed
		return os.WriteFile(changed, []byte(text), 0o600)
	}
	for file, some := range files {
		text, err := schema(filepath.Join(t.dir, "internal"), file, some)
		if err != nil {
			return err
		}
		dir := path.Dir(file)
		if err := errors.Join(put(file, text), put(dir+"/mutant.go", fmt.Sprintf(chosen, dir))); err != nil {
			return err
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.tmp, "overlay.json"), b, 0o600)
}

func (t tests) binary(p string) string { return filepath.Join(t.tmp, path.Base(p)+".test.exe") }

// compile compiles the tests of a package once, and runs them without a mutant.
func (t tests) compile(p string) error {
	if t.compiled[p] {
		return nil
	}
	t.compiled[p] = true
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(t.tmp, "overlay.json"), "-o", t.binary(p), ".")
	cmd.Dir = filepath.Join(t.dir, filepath.FromSlash(p))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile asyncop/%s with mutants: %w\n%s", p, err, out)
	}
	if test, err := t.failing(p, 0); err != nil || test != "" {
		return fmt.Errorf("asyncop/%s without a mutant: %q fails: %w", p, test, cmp.Or(err, errNoMutant))
	}
	return nil
}

// catching returns the test that fails with a mutant, or "".
func (t tests) catching(mutant int) (test string, err error) {
	own, _, _ := strings.Cut(mutants[mutant].file, "/")
	packages, err := t.packages(mutants[mutant].law)
	if err != nil {
		return "", err
	}
	for _, p := range append([]string{"internal/" + own}, packages...) {
		if err := t.compile(p); err != nil {
			return "", err
		}
		test, err = t.failing(p, mutant+1)
		if err != nil || test != "" {
			return test, err
		}
	}
	return "", nil
}

// packages returns the packages that test the whole operator, beginning with the law's.
func (t tests) packages(law string) ([]string, error) {
	dirs, err := os.ReadDir(filepath.Join(t.dir, "internal", "tests"))
	all := []string{"."}
	for _, d := range dirs {
		all = append(all, "internal/tests/"+d.Name())
	}
	first := slices.Index(all, "internal/tests/"+cmp.Or(about[law], about[law[:1]]))
	if first > 0 {
		all[0], all[first] = all[first], all[0]
	}
	return all, err
}

// about is the directory with the tests of a law or of a letter of laws.
var about = map[string]string{
	"A": "endings", "A3": "timeouts", "A4": "retry", "B": "calls", "C": "checkpoints", "D": "messages", "F": "endings", "K": "order", "O": "observing", "Q": "order",
	"T": "timeouts", "X": "retry",
}

var (
	failed  = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	running = regexp.MustCompile(`(?m)^=== (?:RUN|CONT|NAME) +(\S+)`)
)

// failing runs the tests of a package, with a mutant unless it is 0, and returns the
// first test that fails, or "".
func (t tests) failing(p string, mutant int) (test string, err error) {
	// A loop in virtual time may outlast the test timeout.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.binary(p), "-test.v", "-test.short", "-test.failfast", "-test.timeout=90s")
	cmd.Dir = filepath.Join(t.dir, filepath.FromSlash(p))
	cmd.Env = append(os.Environ(), "WEIR_MUTANT="+strconv.Itoa(mutant))
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		return "", err
	}
	if f := failed.FindSubmatch(out); f != nil {
		return string(f[1]), nil
	}
	if r := running.FindAllSubmatch(out, -1); r != nil { // the process ended in it
		return cmp.Or(string(r[len(r)-1][1]), "?"), nil
	}
	return "", fmt.Errorf("tests of asyncop/%s: %w\n%s", p, err, out)
}
