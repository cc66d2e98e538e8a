//go:build !linux

package clustertest

import (
	"errors"
	"os/exec"
)

func ownMounts(*exec.Cmd) {}

func mount(string, int64) error { return errors.ErrUnsupported }
