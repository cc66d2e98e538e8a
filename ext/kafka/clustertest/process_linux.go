package clustertest

import (
	"os/exec"
	"syscall"
)

// endWithUs has a command end with this process.
func endWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
