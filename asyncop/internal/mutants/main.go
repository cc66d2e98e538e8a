// Command mutants finds out whether the tests notice when a law of DESIGN.md is broken. A mutant is a small change of package core, call
// or drive that breaks one: the list is in list.go.
//
//	go run ./asyncop/internal/mutants [-run regexp]
//
// For each mutant it runs the tests of the changed package and, if they pass, those of the whole operator, in asyncop/internal/tests,
// beginning with the directory of the law, and prints the test that fails. It changes no file of the project. The exit status is 1 if a mutant is not caught or does not fit the code, and if tests fail without one.
//
// The tests are compiled once, with all mutants in them, since that takes longer than they do: see schema.
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
	name string // what goes wrong
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

// tests are those of packages, which have their paths from asyncop.
type tests struct {
	dir      string          // of asyncop
	tmp      string          // of what is made here
	compiled map[string]bool // packages
}

// overlay writes the files with mutants, for the go command to use them in place of those of the project.
func (t tests) overlay() error {
	files := map[string][]int{} // the mutants of each
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

// compile compiles the tests of a package, once. Without a mutant they must pass.
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

// catching returns the test that fails with a mutant; "" if none does.
func (t tests) catching(mutant int) (test string, err error) {
	own, _, _ := strings.Cut(mutants[mutant].file, "/")
	rooms, err := t.rooms(mutants[mutant].law)
	if err != nil {
		return "", err
	}
	for _, p := range append([]string{"internal/" + own}, rooms...) {
		if err := t.compile(p); err != nil {
			return "", err
		}
		if test, err = t.failing(p, mutant+1); err != nil || test != "" {
			return test, err
		}
	}
	return "", nil
}

// rooms returns the packages with tests of the whole operator, beginning with the one about a law.
func (t tests) rooms(law string) ([]string, error) {
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

// about is where the tests of laws lie, by law or letter.
var about = map[string]string{
	"A": "endings", "A3": "timeouts", "A4": "retry", "B": "calls", "C": "checkpoints", "D": "messages", "F": "endings", "K": "order", "O": "observing", "Q": "order",
	"T": "timeouts", "X": "retry",
}

var (
	failed  = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)`)
	running = regexp.MustCompile(`(?m)^=== (?:RUN|CONT|NAME) +(\S+)`)
)

// failing runs the tests of a package with a mutant, 0 for none, and returns the first one that fails, or "".
func (t tests) failing(p string, mutant int) (test string, err error) {
	// The core without its features is tested in a process of its own, which does not know of mutants.
	// A loop in virtual time may outlast the limit of the tests: a harder one ends it.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.binary(p), "-test.v", "-test.short", "-test.failfast", "-test.timeout=90s", "-test.skip=^TestTheCoreStandsAlone$")
	cmd.Dir = filepath.Join(t.dir, filepath.FromSlash(p))
	cmd.Env = append(os.Environ(), "WEIR_MUTANT="+strconv.Itoa(mutant))
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		return "", err
	}
	if f := failed.FindSubmatch(out); f != nil {
		return string(f[1]), nil
	}
	if r := running.FindAllSubmatch(out, -1); r != nil { // the process has ended in it
		return cmp.Or(string(r[len(r)-1][1]), "?"), nil
	}
	return "", fmt.Errorf("tests of asyncop/%s: %w\n%s", p, err, out)
}
