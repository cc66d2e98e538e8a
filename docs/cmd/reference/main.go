// Command reference writes the pages of docs/reference from the comments of the code, and
// the imports of the snippets into the other pages.
//
//	go run ./docs/cmd/reference          writes what changed; run it in the root of the repository
//	go run ./docs/cmd/reference -check   only fails if there is something to write
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(2)
		}
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	fs := flag.NewFlagSet("reference", flag.ContinueOnError)
	root := fs.String("root", ".", "the root `directory` of the repository")
	check := fs.Bool("check", false, "write nothing; fail if a page differs from the code")
	if err := fs.Parse(args); err != nil {
		return err
	}
	pages, err := pagesOf(*root)
	if err != nil {
		return err
	}
	var stale []string
	for path, page := range pages {
		got, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if bytes.Equal(got, []byte(page)) {
			continue
		}
		stale = append(stale, path)
		if !*check {
			if err := os.WriteFile(path, []byte(page), 0o644); err != nil { //nolint:gosec // a page for everybody
				return err
			}
		}
	}
	if *check && len(stale) > 0 {
		slices.Sort(stale)
		return fmt.Errorf("differs from the code: %s (go run ./docs/cmd/reference)", strings.Join(stale, ", "))
	}
	return nil
}

func pagesOf(root string) (map[string]string, error) {
	packages, err := load(root)
	if err != nil {
		return nil, err
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("%s: no packages", root)
	}
	pages, err := importsPages(root)
	if err != nil {
		return nil, err
	}
	tables, err := tablesPage(root)
	if err != nil {
		return nil, err
	}
	commands, err := commandsPage(root)
	if err != nil {
		return nil, err
	}
	permissions, err := permissionsPage(root)
	if err != nil {
		return nil, err
	}
	for name, page := range map[string]string{
		"options.md": optionsPage(packages), "errors.md": errorsPage(packages), "metrics.md": metricsPage(packages),
		"headers.md": headersPage(packages), "tables.md": tables, "commands.md": commands, "api.txt": apiPage(packages),
		"permissions.md": permissions,
	} {
		pages[filepath.Join(root, "docs", "reference", name)] = page
	}
	return pages, nil
}
