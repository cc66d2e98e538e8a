// Package console has web pages for people who operate programs that use weir: they show
// problems, and offer safe actions.
//
//	ui, err := console.Handler(ctx, console.Config{
//		Engine: engine, Prefix: "/weir",
//		Authorize: func(r *http.Request) (console.Role, string, error) {
//			user, err := session(r) // yours
//			return console.Actor, user.Name, err
//		},
//	})
//	…
//	http.Handle("/weir/", ui)
//
// The command weir ui serves the same pages for a database, on this machine only.
// docs/console.md shows them.
//
// # Safety
//
// Without Authorize it answers only to this machine (the loopback interface), and only
// for reading. A [Reader] cannot change anything. Each action of an [Actor] is a job, or
// an order for a backend, with a reason: the engine keeps both, and a line in the log for
// each. If the program of the console is killed, any worker continues its jobs.
//
// Requests that come from pages of other sites are refused. The console's own script is
// the only script, and pages work without it. The console treats the content of messages
// as text: it is escaped, and so are characters that control a terminal or the direction
// of text. Headers that look like secrets are hidden; payloads and errors are not, so let
// only those read who may see the data.
package console
