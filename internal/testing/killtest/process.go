package killtest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/weirflow/weir/internal/testing/child"
)

const (
	name = "killtest"

	roleServer = "server"
	roleClient = "client"

	timeLimit = 10 * time.Minute
)

type settings struct {
	Role     string
	Database string // of a server
	URL, Dir string // of a client: the service, and the directory of its checkpoint
}

// Child runs a server or a client, and does not return, if [Run] started this process.
// TestMain must call it first. open opens a server's database.
func Child(open func(ctx context.Context, database string) (Service, error)) {
	child.Run(name, func(text string) error {
		time.AfterFunc(timeLimit, func() { os.Exit(4) })
		var s settings
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return err
		}
		if s.Role == roleServer {
			return serve(open, s.Database)
		}
		return call(s)
	})
}

func start(s settings) (p *child.Process, line string, err error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, "", err
	}
	p, err = child.Start(name, string(text))
	if err != nil {
		return nil, "", err
	}
	line, err = p.Line(patience)
	if err != nil {
		_ = p.Kill() // it may have ended
		return nil, "", fmt.Errorf("killtest: process %s does not start: %w", s.Role, err)
	}
	return p, line, nil
}
