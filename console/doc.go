// Package console is a web page for people who operate programs that use weir: what is wrong, and what is safe to do.
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
// The command weir ui serves the same pages for a database, on this machine only. docs/console.md shows them.
//
// # Safety
//
// Without Authorize it answers only to this machine (the loopback interface), and changes nothing. A [Reader] can change nothing. What an
// [Actor] does is a job, or an order for a backend, with a reason: the engine keeps both, and a line in the log for each. A job that was
// started goes on in any worker if the program of the console is killed.
//
// Requests that come from pages of other sites are refused. There is no script but the console's own, and pages work without it. All that is
// in a message is text for the console: it is escaped, and so is what controls a terminal or the direction of text. Headers that look
// like secrets are hidden; payloads and errors are not, so let only those read who may see the data.
package console
