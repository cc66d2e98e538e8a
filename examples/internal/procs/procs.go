// Package procs starts the parts of an example as processes of the same program, which
// end with the process that started them.
package procs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"time"
)

// env is set in started processes: an order in JSON.
const env = "WEIR_EXAMPLE_PROCESS"

type order struct {
	Limit    time.Duration // of the process's life
	Settings json.RawMessage
}

// Child runs the part for which Start has started this process, and then exits. In other
// processes it does nothing. The part must print a line when it is ready.
func Child[S any](part func(S) error) {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	signal.Ignore(os.Interrupt) // a terminal sends it to all processes; the parent ends this one
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // blocks until the parent ends
		os.Exit(1)
	}()
	if err := run(text, part); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run[S any](text string, part func(S) error) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	time.AfterFunc(o.Limit, func() { os.Exit(1) })
	var s S
	if err := json.Unmarshal(o.Settings, &s); err != nil {
		return err
	}
	return part(s)
}

// Process is a started process.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	ended chan struct{}

	// Valid once ended is closed.
	stderr bytes.Buffer
	err    error
}

// Start starts a process, which ends after limit at the latest, and waits until it is
// ready. line receives each line that it prints after that.
func Start[S any](settings S, limit time.Duration, line func(text []byte)) (*Process, error) {
	p, ready, err := Begin(settings, limit, line)
	if err != nil {
		return nil, err
	}
	<-ready
	if p.HasEnded() && p.err != nil {
		return nil, p.Failure()
	}
	return p, nil
}

// Begin is Start without the wait: ready is closed when the process is ready or has
// ended.
func Begin[S any](settings S, limit time.Duration, line func(text []byte)) (p *Process, ready <-chan struct{}, err error) {
	o := order{Limit: limit}
	o.Settings, err = json.Marshal(settings)
	if err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(o)
	if err != nil {
		return nil, nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	p = &Process{cmd: exec.Command(exe), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env+"="+string(text))
	p.cmd.Stderr = &p.stderr
	p.stdin, err = p.cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, err
	}
	isReady := make(chan struct{})
	once := sync.OnceFunc(func() { close(isReady) })
	go func() { // ends with the process
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			select {
			case <-isReady:
				line(lines.Bytes())
			default:
				once()
			}
		}
		p.err = p.cmd.Wait()
		close(p.ended)
		once()
	}()
	return p, isReady, nil
}

// HasEnded reports whether the process has ended.
func (p *Process) HasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Failure returns why an ended process failed, or nil.
func (p *Process) Failure() error {
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", p.err, bytes.TrimSpace(p.stderr.Bytes()))
}

// Kill kills the process with SIGKILL and waits for its end. It may be called twice.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
	_ = p.stdin.Close()
}
