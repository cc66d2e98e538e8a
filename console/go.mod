module github.com/weirflow/weir/console

go 1.26.0

require (
	github.com/benbjohnson/clock v1.3.5
	github.com/stretchr/testify v1.12.1
	github.com/weirflow/weir v0.0.0
)

require (
	github.com/reugn/go-streams v0.13.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/weirflow/weir => ../
