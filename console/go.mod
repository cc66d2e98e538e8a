module github.com/weirflow/weir/console

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/weirflow/weir v0.0.0
)

require github.com/reugn/go-streams v0.13.0 // indirect

replace github.com/weirflow/weir => ../
