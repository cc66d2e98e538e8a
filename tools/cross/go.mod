// The tool that checks the code for other machines. It is not in go.work, so that its requirements are its own.
module github.com/weirflow/weir/tools/cross

go 1.26.0

require golang.org/x/tools v0.52.0

require (
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)
