package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/weirflow/weir/examples/internal/show"
	"github.com/weirflow/weir/progress"
)

// startView shows the run: redrawn in place on a terminal, otherwise a line for each
// event and each second.
func (s *supervisor) startView(w io.Writer) (stop func()) {
	var draw func(last bool)
	every := time.Second
	switch s.View.On(w) {
	case progress.Bar:
		every = 100 * time.Millisecond
		drawn := 0
		draw = func(last bool) {
			lines := s.picture()
			if last { // the summary replaces it
				lines = nil
			}
			var b strings.Builder
			if drawn > 0 {
				fmt.Fprintf(&b, "\x1b[%dA\x1b[J", drawn) // moves up and clears the rest
			}
			width := show.Columns(w)
			for _, line := range lines { // a wrapped line could not be redrawn
				b.WriteString(line[:min(len(line), width)] + "\n")
			}
			drawn = len(lines)
			_, _ = io.WriteString(w, b.String())
		}
	case progress.Plain:
		draw = func(bool) {
			s.mu.Lock()
			news := append(s.news, s.progress())
			s.news = nil
			s.mu.Unlock()
			_, _ = fmt.Fprintln(w, strings.Join(news, "\n"))
		}
	default:
		return func() {}
	}
	return show.Every(every, draw)
}

// progress formats the progress line. The caller holds mu. "To do" is arrived minus paid
// and dead, because the stream still holds messages that a killed worker had finished.
func (s *supervisor) progress() string {
	arrived := max(s.arrived, s.now.paid+s.now.dead) // an order can be done before its put is confirmed
	todo := arrived - s.now.paid - s.now.dead
	text := fmt.Sprintf("%5.1fs  %s of %s orders: %s paid, %s dead, %s to do", time.Since(s.begun).Seconds(),
		show.Count(arrived), show.Count(s.Orders), show.Count(s.now.paid), show.Count(s.now.dead), show.Count(todo))
	if s.isMute() {
		text += ", no leader"
	}
	return text
}

const shownEvents = 6

// picture formats the view of a terminal, at most 80 columns wide.
func (s *supervisor) picture() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	lines := []string{s.progress(), ""}
	for i := range serverNames {
		server, worker := s.members[i], s.members[i+len(serverNames)]
		lines = append(lines, fmt.Sprintf("    %-36s%s", server.text(s.inSync || s.isMute()), worker.text(true)))
	}
	lines = append(lines, "")
	s.events = append(s.events, s.news...)
	s.news = nil
	s.events = s.events[max(0, len(s.events)-shownEvents):]
	return append(lines, s.events...)
}

func (m *member) text(inSync bool) string {
	text := m.Name + "  " + m.state
	switch {
	case m.leads:
		text += ", leads the orders"
	case m.state == isUp && !inSync:
		text += ", catching up"
	case m.state == "":
		text = m.Name + "  not started"
	}
	return text
}
