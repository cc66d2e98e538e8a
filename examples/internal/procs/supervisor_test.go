package procs_test

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weirflow/weir/examples/internal/procs"
)

// settings are the settings of the processes in these tests.
type settings struct {
	Ends  bool // when it is ready
	Fails bool // then, with an error
}

func child(s settings) error {
	fmt.Println("ready")
	switch {
	case s.Fails:
		return errors.New("the disk is full")
	case s.Ends:
		return nil
	}
	fmt.Println("a report")
	select {}
}

func TestMain(m *testing.M) {
	procs.Child(child)
	os.Exit(m.Run())
}

// exitsOf waits until n processes have ended by themselves.
func exitsOf(t *testing.T, s *procs.Supervisor, n int) (exits []procs.Exit) {
	t.Helper()
	require.Eventually(t, func() bool { exits = s.Exits(); return len(exits) == n }, time.Minute, 5*time.Millisecond)
	return exits
}

func TestSupervisor(t *testing.T) {
	s := procs.NewSupervisor(10 * time.Minute)
	defer s.Stop()
	reports := make(chan string, 10)
	require.NoError(t, procs.Run(s, "stays", settings{}, func(text []byte) { reports <- string(text) }))
	require.Equal(t, "a report", <-reports)
	require.Empty(t, s.Exits())

	for name, set := range map[string]settings{"fails": {Fails: true}, "ends": {Ends: true}} {
		ready, err := procs.RunSoon(s, name, set)
		require.NoError(t, err)
		<-ready
	}
	exits := exitsOf(t, s, 2)
	require.Equal(t, "ends", exits[0].Name)
	require.EqualError(t, exits[0].Err, "ends: it has ended")
	require.Equal(t, "fails", exits[1].Name)
	require.ErrorContains(t, exits[1].Err, "the disk is full")

	require.NoError(t, procs.Run(s, "ends", settings{}, func([]byte) {}), "it replaces the ended process")
	s.Kill("fails")
	s.Kill("stays")
	s.Kill("stays")
	require.Empty(t, s.Exits(), "a process that was killed has not ended by itself")
}
