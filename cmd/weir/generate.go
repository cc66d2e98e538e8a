package main

import (
	_ "embed"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

//go:embed generate/alerts.yml
var alerts string

//go:embed generate/dashboard.json
var dashboard string

// exampleConsole is the console's address in the file of alerts.
const exampleConsole = "https://console.example"

func (a *app) generate() *cobra.Command {
	return group("generate", "Write a dashboard, and alerts with a runbook",
		&cobra.Command{Use: "dashboard", Short: "Write a dashboard for Grafana, over the metrics of weirprom", Args: none, RunE: func(*cobra.Command, []string) error {
			return a.print(dashboard)
		}},
		a.generateAlerts())
}

func (a *app) generateAlerts() *cobra.Command {
	var address string
	c := &cobra.Command{
		Use: "alerts", Short: "Write alerting rules for Prometheus, over the metrics of weirprom", Args: none,
		RunE: func(*cobra.Command, []string) error {
			if address == "" {
				return a.print(withoutConsole(alerts))
			}
			u, err := url.Parse(address)
			isAddress := err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" && u.RawQuery == "" && u.Fragment == ""
			if !isAddress || strings.ContainsAny(address, "'{}\r\n") { // the rules are templates in quotes
				return usagef("--console %q: it must be the address of a console, such as https://ops.example.com/weir", address)
			}
			return a.print(strings.ReplaceAll(alerts, exampleConsole, strings.TrimSuffix(address, "/")))
		},
	}
	c.Flags().StringVar(&address, "console", "", "link each alert to its page in the console at this `ADDRESS` (default: no links)")
	return c
}

// withoutConsole returns the rules without links to a console.
func withoutConsole(rules string) string {
	var b strings.Builder
	for line := range strings.Lines(rules) {
		if !strings.Contains(line, exampleConsole) {
			b.WriteString(line)
		}
	}
	return b.String()
}
