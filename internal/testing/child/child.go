// Package child runs the current program again in child processes, for programs that kill
// processes.
package child

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// env is set for a child: its name, a space, and its argument.
const env = "WEIR_CHILD"

const failed = "FAILED:"

// Run calls f and exits if [Start] started this process under the name. Main, or
// TestMain, must call it first. The child also ends when its parent does.
func Run(name string, f func(arg string) error) {
	mine, arg, _ := strings.Cut(os.Getenv(env), " ")
	if mine != name {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	if err := f(arg); err != nil {
		fmt.Println(failed, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Again repeats a request to a server that may be down, until it succeeds, for up to a
// minute.
func Again[T any](ctx context.Context, f func(ctx context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		within, cancel := context.WithTimeout(ctx, 2*time.Second)
		v, err := f(within)
		cancel()
		if err == nil || ctx.Err() != nil {
			return v, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Process is a child process. It is safe for concurrent use.
type Process struct {
	cmd   *exec.Cmd
	stdin io.Closer     // closing it ends the process
	line  chan struct{} // closed after the first line of output
	ended chan struct{}
	err   error // read after ended

	mu     sync.Mutex
	first  []byte // output up to the end of the first line
	output bytes.Buffer
}

// Start starts a child. Each change may modify its command first.
func Start(name, arg string, change ...func(*exec.Cmd)) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// If a test does not call Run, its children run no tests.
	p := &Process{cmd: exec.Command(exe, "-test.run=^$"), line: make(chan struct{}), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env+"="+name+" "+arg)
	p.cmd.Stdout, p.cmd.Stderr = (*stdout)(p), (*stderr)(p)
	for _, f := range change {
		f(p.cmd)
	}
	p.stdin, err = p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the process
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Line waits for the process's first line of output.
func (p *Process) Line(patience time.Duration) (string, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.line:
	case <-p.ended: // it may have printed the line before
	case <-timer.C:
		return "", fmt.Errorf("child: process %d prints nothing within %v", p.cmd.Process.Pid, patience)
	}
	select {
	case <-p.line:
		p.mu.Lock()
		line := string(p.first)
		p.mu.Unlock()
		if !strings.HasPrefix(line, failed) {
			return line, nil
		}
		<-p.ended
	default:
	}
	return "", p.failure()
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Wait waits for the end of the process. If the exit status is not 0, the error has the
// output.
func (p *Process) Wait(patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		p.dump()
		return fmt.Errorf("child: process %d does not end within %v: %s", p.cmd.Process.Pid, patience, p.Output())
	}
	if p.err == nil {
		return nil
	}
	return p.failure()
}

func (p *Process) failure() error {
	return fmt.Errorf("child: process %d has ended, %v: %s", p.cmd.Process.Pid, p.cmd.ProcessState, p.Output())
}

// Output returns standard output and standard error so far.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// Signal sends a signal to the process.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends the process with SIGKILL. It returns an error if the process had already
// ended.
func (p *Process) Kill() (err error) {
	select {
	case <-p.ended:
		err = p.failure()
	default:
		_ = p.cmd.Process.Kill() // it may be ending now
		<-p.ended
	}
	_ = p.stdin.Close()
	return err
}

type (
	stdout Process
	stderr Process
)

func (p *stdout) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.line:
	default:
		before, _, whole := bytes.Cut(b, []byte("\n"))
		p.first = append(p.first, before...)
		if whole {
			close(p.line)
		}
	}
	return p.output.Write(b)
}

func (p *stderr) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(b)
}
