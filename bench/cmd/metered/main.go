// Command metered compares weir, a plain loop and rill at a metered service, and prints a
// table:
//
//	go run ./bench/cmd/metered          # a minute and a half
//	go run ./bench/cmd/metered -short   # only check that it works: a few seconds
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/weirflow/weir/bench/internal/metered"
)

func main() {
	err := run()
	if err != nil {
		log.Fatal(err)
	}
}

func run() error {
	wasChild, err := metered.RunChild()
	if err != nil || wasChild {
		return err
	}
	isShort := flag.Bool("short", false, "a part with fewer rows")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return metered.Run(ctx, os.Stdout, *isShort)
}
