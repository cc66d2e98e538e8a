package killtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// env is set for the processes of the test: a JSON of settings.
const env = "WEIR_KILLTEST"

const (
	roleServer = "server"
	roleClient = "client"

	timeLimit = 10 * time.Minute // of a process
)

type settings struct {
	Role     string
	Database string // of a server
	URL, Dir string // of a client: the service, and where its checkpoint lies
}

// Child is the process of a server or of a client, if this process was started by [Run]; it does not return then. TestMain
// calls it first. open opens a server's database.
func Child(open func(ctx context.Context, database string) (Service, error)) {
	text := os.Getenv(env)
	if text == "" {
		return
	}
	go func() { // the process ends with the test's
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	time.AfterFunc(timeLimit, func() { os.Exit(4) })
	var s settings
	err := json.Unmarshal([]byte(text), &s)
	switch {
	case err != nil:
	case s.Role == roleServer:
		err = serve(open, s.Database)
	default:
		err = call(s)
	}
	if err != nil {
		fmt.Println("FAILED:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// process is one of the test's processes.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer // the process ends when it is closed
	first string    // the first line that it printed
	ended chan struct{}

	// Read after ended.
	output bytes.Buffer
	err    error // of Wait
}

// start starts a process and waits for its first line.
func start(s settings) (*process, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^$"), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env+"="+string(text))
	p.cmd.Stderr = &p.output
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
	late := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	lines := bufio.NewReader(stdout)
	p.first, err = lines.ReadString('\n')
	late.Stop()
	go func() {
		rest, _ := io.ReadAll(lines) // until it has ended
		p.err = p.cmd.Wait()
		p.output.WriteString(p.first)
		p.output.Write(rest)
		close(p.ended)
	}()
	p.first = strings.TrimSuffix(p.first, "\n")
	if err != nil || strings.HasPrefix(p.first, "FAILED") {
		_ = p.cmd.Process.Kill()
		<-p.ended
		return nil, fmt.Errorf("killtest: process %s does not start: %w: %v", s.Role, errors.Join(err, p.err), &p.output)
	}
	return p, nil
}

// kill ends the process as kill -9 does. The error says that it has ended before.
func (p *process) kill() error {
	select {
	case <-p.ended:
		return fmt.Errorf("killtest: it has ended: %w: %v", p.err, &p.output)
	default:
	}
	_ = p.cmd.Process.Kill() // it may end just now
	<-p.ended
	_ = p.stdin.Close()
	return nil
}
