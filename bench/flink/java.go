package flink

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/weirflow/weir/bench"
)

// server is the Java process of one row. Its compiler sees no other row.
type server struct {
	java   string
	driver string
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
}

const (
	answersWithin = 2 * time.Minute
	endsWithin    = 20 * time.Second
)

func (s *server) row(w work, driver string) func(m *bench.Meter, n int) error {
	s.driver = driver
	if driver == "floor" {
		w.fails = false
	}
	return func(m *bench.Meter, n int) error {
		sample, err := s.run(w.line(driver, n))
		for metric, v := range sample {
			m.Report(metric, v)
		}
		return err
	}
}

func (s *server) start() (err error) {
	words := strings.Fields(s.java)
	if len(words) == 0 {
		return errors.New("no command for Java")
	}
	s.cmd = exec.Command(words[0], append(words[1:], "weirbench.Server")...)
	s.cmd.Stderr = os.Stderr
	s.in, err = s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.out = bufio.NewReader(out)
	return s.cmd.Start()
}

// run sends a line and returns the answer. It kills a process that does not answer in
// time.
func (s *server) run(line string) (bench.Sample, error) {
	if _, err := io.WriteString(s.in, line+"\n"); err != nil {
		return nil, err
	}
	stuck := time.AfterFunc(answersWithin, func() { _ = s.cmd.Process.Kill() })
	defer stuck.Stop()
	text, err := s.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("no answer from Java: %w", err)
	}
	var answer struct {
		Error  string
		Sample bench.Sample
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return nil, fmt.Errorf("answer from Java %q: %w", text, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("in Java: %s", answer.Error)
	}
	return answer.Sample, nil
}

// close ends the process by closing its input.
func (s *server) close() error {
	if s.cmd == nil || s.cmd.Process == nil {
		return nil
	}
	stuck := time.AfterFunc(endsWithin, func() { _ = s.cmd.Process.Kill() })
	defer stuck.Stop()
	if err := s.in.Close(); err != nil {
		return err
	}
	return s.cmd.Wait()
}
