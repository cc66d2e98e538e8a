//go:build !linux

package clustertest

import "os/exec"

func endWithUs(*exec.Cmd) {}
