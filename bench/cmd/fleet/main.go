// Command fleet measures processes that share the limit of a service (backend.Shared), on
// a file of SQLite or on PostgreSQL. By default it compares their throughput with fixed
// parts of the limit. With -picture it draws the calls of a fleet in which a process
// starts and another one is killed:
//
//	go run ./bench/cmd/fleet                                  # 100 s
//	go run ./bench/cmd/fleet -postgres postgres://localhost/test # 100 s
//	go run ./bench/cmd/fleet -picture > docs/pictures/fleet.svg # 40 s
package main

import (
	"flag"
	"io"
	"log"
	"os"
	"path/filepath"
	"time"
)

func main() {
	runChild()
	err := run(os.Args[1:], os.Stdout)
	if err != nil {
		log.Fatal(err)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fleet", flag.ExitOnError)
	draws := flags.Bool("picture", false, "draw a run instead")
	rounds := flags.Int("rounds", 5, "compare `n` times")
	window := flags.Duration("for", 5*time.Second, "count the calls for this `time`, after as long a start")
	url := flags.String("postgres", "", "share on the PostgreSQL database with this `URL`")
	_ = flags.Parse(args) // exits on an error
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	engine := filepath.Join(dir, "engine.db")
	if *url != "" {
		engine = *url
	}
	if *draws {
		return picture(engine, out)
	}
	return compare(engine, *rounds, *window, out)
}
