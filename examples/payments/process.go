package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// env is set for the processes that the supervisor starts: a JSON of settings.
const env = "WEIR_PAYMENTS"

// settings are those of a process: a provider, or the job.
type settings struct {
	Provider string // "": the job
	Start    int    // how often it was started before
	Dir      string
	Seed     uint64
	Orders   int64
	Break    string
	Limit    time.Duration // it ends by then, whatever happens
}

// child is the process of a provider or of the job, if the supervisor has started this one. It does not return then.
func child() {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	var s settings
	err := json.Unmarshal([]byte(text), &s)
	go func() { // it ends with the supervisor
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	time.AfterFunc(s.Limit, func() { os.Exit(1) })
	switch {
	case err != nil:
	case s.Provider != "":
		err = serveProvider(s)
	default:
		err = runJob(s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is one that the supervisor has started.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	// Read after ended.
	stderr bytes.Buffer
	err    error
}

// start starts a process and waits until it is ready. line gets what it prints after that.
func start(s settings, line func(text []byte)) (*process, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(exe), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env+"="+string(text))
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	once := sync.OnceFunc(func() { close(ready) })
	go func() { // ends with the process
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			select {
			case <-ready:
				line(lines.Bytes())
			default:
				once()
			}
		}
		p.err = p.cmd.Wait()
		close(p.ended)
		once()
	}()
	<-ready
	if p.hasEnded() && p.err != nil {
		return nil, p.failure()
	}
	return p, nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// failure says why a process that has ended did so; nil if it was done.
func (p *process) failure() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", p.err, bytes.TrimSpace(p.stderr.Bytes()))
}

// kill ends it as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
	_ = p.stdin.Close()
}
