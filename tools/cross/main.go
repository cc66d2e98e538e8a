// Command cross type-checks packages, their tests and imports for another platform, in a
// fraction of a build's time.
//
//	cross GOOS/GOARCH PATTERN...
//
// It runs in a module or a workspace. The exit status is 1 if a package has errors.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: cross GOOS/GOARCH PATTERN...")
	}
	goos, goarch, ok := strings.Cut(os.Args[1], "/")
	if !ok {
		log.Fatalf("cross: %q: not of the form GOOS/GOARCH", os.Args[1])
	}
	config := &packages.Config{
		// NeedDeps and NeedTypes check imports from source, without function bodies.
		Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports |
			packages.NeedDeps | packages.NeedTypes | packages.NeedSyntax | packages.NeedTypesInfo |
			packages.NeedTypesSizes | packages.NeedModule,
		Env:   append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
		Tests: true,
	}
	loaded, err := packages.Load(config, os.Args[2:]...)
	if err != nil {
		log.Fatalf("cross: %v", err)
	}
	if len(loaded) == 0 {
		log.Fatalf("cross: no packages match %q", os.Args[2:])
	}
	found := map[string]bool{}
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, e := range p.Errors {
			found[e.Error()] = true
		}
	})
	for e := range found {
		log.Print(e)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
	fmt.Printf("%s: %d packages and tests\n", os.Args[1], len(loaded))
}
