// Package sleep sleeps for less than a millisecond, for the backends of benchmarks.
package sleep

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Sleeper sleeps with the precision of the kernel's timers, like Java's
// LockSupport.parkNanos. In an idle Go program time.Sleep ends up to a millisecond late,
// because the runtime's poller counts in milliseconds.
type Sleeper struct {
	fd   int
	file *os.File // or nil, for time.Sleep, if the kernel refuses a timer
}

// New returns a sleeper. The caller must close it.
func New() *Sleeper {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return &Sleeper{}
	}
	return &Sleeper{fd, os.NewFile(uintptr(fd), "timer")}
}

// Sleep sleeps for d.
func (s *Sleeper) Sleep(d time.Duration) {
	if s.file != nil && d > 0 {
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
		if err := unix.TimerfdSettime(s.fd, 0, &spec, nil); err == nil {
			var expirations [8]byte
			if _, err := s.file.Read(expirations[:]); err == nil {
				return
			}
		}
	}
	time.Sleep(d)
}

// Close frees the sleeper's resources.
func (s *Sleeper) Close() {
	if s.file != nil {
		_ = s.file.Close()
	}
}
