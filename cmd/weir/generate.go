package main

import (
	"embed"

	"github.com/spf13/cobra"
)

//go:embed generate
var generated embed.FS

// generate writes configuration for other systems.
func (a *app) generate() *cobra.Command {
	write := func(use, short, file string) *cobra.Command {
		return &cobra.Command{Use: use, Short: short, Args: none, RunE: func(*cobra.Command, []string) error {
			text, err := generated.ReadFile("generate/" + file)
			if err != nil {
				return err
			}
			return a.print(string(text))
		}}
	}
	return group("generate", "Write a dashboard, and alerts with a runbook",
		write("dashboard", "Write a dashboard for Grafana, over the metrics of weirprom", "dashboard.json"),
		write("alerts", "Write alerting rules for Prometheus, over the metrics of weirprom", "alerts.yml"))
}
