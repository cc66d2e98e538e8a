module github.com/weirflow/weir/examples

go 1.26.0

require (
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/reugn/go-streams v0.13.0
	github.com/schollz/progressbar/v3 v3.19.0
	github.com/stretchr/testify v1.12.1
	github.com/weirflow/weir v0.0.0
	github.com/weirflow/weir/ext/failsafe v0.0.0
	go.uber.org/goleak v1.3.0
	golang.org/x/term v0.28.0
)

require (
	github.com/benbjohnson/clock v1.3.5 // indirect
	github.com/bits-and-blooms/bitset v1.24.4 // indirect
	github.com/mitchellh/colorstring v0.0.0-20190213212951-d06e56a500db // indirect
	github.com/rivo/uniseg v0.4.7 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.29.0 // indirect
)

replace (
	github.com/weirflow/weir => ../
	github.com/weirflow/weir/ext/failsafe => ../ext/failsafe
)
